/** The panel of what a request says besides its messages. An empty field says nothing: the model's default applies. */

import { el } from "./dom.js";

const PLACE = "octavo.settings";

const NUMBERS = [
  ["temperature", "Temperature", "0 always takes the likeliest token", { min: 0, max: 2, step: "any" }],
  ["top_p", "Top p", "share of likely tokens to choose from", { min: 0, max: 1, step: "any" }],
  ["top_k", "Top k", "how many tokens to choose from", { min: -1, step: 1 }],
  ["min_p", "Min p", "least likelihood, beside the likeliest", { min: 0, max: 1, step: "any" }],
  ["max_tokens", "Max tokens", "length of an answer", { min: 1, step: 1 }],
  ["seed", "Seed", "the same seed gives the same answer", { step: 1 }],
  ["presence_penalty", "Presence penalty", "against tokens that were said", { min: -2, max: 2, step: "any" }],
  ["frequency_penalty", "Frequency penalty", "the more, the oftener", { min: -2, max: 2, step: "any" }],
  ["repetition_penalty", "Repetition penalty", "above 1 is against repeating", { min: 0, step: "any" }],
];

const TEXTS = [
  ["stop", "Stop at", "one text a line", 2],
  ["tools", "Tools", '[{"type": "function", "function": {"name": …}}]', 4],
  ["response_format", "JSON schema of answers", '{"type": "object", "properties": …}', 4],
];

export class SettingError extends Error {}

export class Settings {
  #form;
  #system;

  constructor(form) {
    this.#form = form;
    this.#system = area("system", "System prompt", "How the model is to answer", 3);
    form.append(
      this.#system,
      el("div", { class: "numbers" }, ...NUMBERS.map(number)),
      ...TEXTS.map((field) => area(...field)),
      el("button", { type: "reset", class: "quiet" }, "Back to defaults"),
    );
    this.#read();
    form.addEventListener("input", () => this.#write());
    form.addEventListener("reset", () => setTimeout(() => this.#write()));
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  get system() {
    return this.#value("system").trim();
  }

  /** The fields of a request. Throws SettingError where something is wrong; the panel says what. */
  fields() {
    const fields = {};
    for (const [name, label] of NUMBERS) {
      const input = this.#form.elements[name];
      if (!input.checkValidity()) {
        input.reportValidity();
        throw new SettingError(`${label}: ${input.validationMessage}`);
      }
      if (input.value !== "") fields[name] = Number(input.value);
    }
    const stop = this.#value("stop").split("\n").filter((line) => line !== "");
    if (stop.length) fields.stop = stop;
    const tools = this.#json("tools", "Tools");
    if (tools) fields.tools = Array.isArray(tools) ? tools : [tools];
    const schema = this.#json("response_format", "JSON schema");
    if (schema) fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
    return fields;
  }

  #value(name) {
    return this.#form.elements[name].value;
  }

  #json(name, label) {
    const input = this.#form.elements[name];
    input.removeAttribute("aria-invalid");
    if (!input.value.trim()) return null;
    try {
      return JSON.parse(input.value);
    } catch (err) {
      input.setAttribute("aria-invalid", "true");
      throw new SettingError(`${label}: this is not JSON (${err.message})`);
    }
  }

  #read() {
    try {
      for (const [name, value] of Object.entries(JSON.parse(localStorage.getItem(PLACE) ?? "{}"))) {
        if (this.#form.elements[name]) this.#form.elements[name].value = value;
      }
    } catch {
      // what cannot be read is as good as nothing
    }
  }

  #write() {
    const said = [...new FormData(this.#form)].filter(([, value]) => value !== "");
    localStorage.setItem(PLACE, JSON.stringify(Object.fromEntries(said)));
  }
}

function number([name, label, hint, limits]) {
  const input = el("input", { type: "number", name, id: `set-${name}`, "aria-describedby": `hint-${name}`, ...limits,
    placeholder: "default", autocomplete: "off" });
  return el("div", { class: "field" }, el("label", { for: `set-${name}` }, label), input,
    el("small", { id: `hint-${name}` }, hint));
}

function area(name, label, hint, rows) {
  const input = el("textarea", { name, id: `set-${name}`, rows, placeholder: hint, spellcheck: "false" });
  return el("div", { class: "field" }, el("label", { for: `set-${name}` }, label), input);
}
