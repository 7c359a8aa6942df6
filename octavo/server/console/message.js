/** One message on the page. Grows while an answer streams in; knows no server. */

import { appendText, copyButton, el, setText } from "./dom.js";
import { Markdown } from "./markdown.js";
import { TokenView } from "./sure.js";

const NAMES = { user: "You", assistant: "Octavo", tool: "Tool" };

/** What a message can be asked to do; `actions` has a function for each button that is wanted. */
export class MessageView {
  #text;
  #markdown = null;
  #thinking = null;
  #calls = new Map();
  #tokens = null;
  #facts = el("span", { class: "facts" });
  #buttons = el("span", { class: "buttons" });

  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.#text = el("div", { class: "text" });
    this.body = el("div", { class: "body" }, this.#text);
    this.foot = el("footer", {}, this.#facts, this.#buttons);
    this.node = el("article", { class: `message ${message.role}`, "aria-label": NAMES[message.role] },
      el("h2", { class: "who" }, NAMES[message.role]), el("div", { class: "column" }, this.body, this.foot));
    if (message.role === "assistant") {
      this.#markdown = new Markdown(this.#text);
      this.#markdown.write(message.content);
      if (message.reasoning) this.think(message.reasoning);
      message.calls?.forEach((call, index) => this.call(index, call));
      if (message.logprobs) this.doubt(message.logprobs);
    } else {
      appendText(this.#text, message.content);
    }
  }

  /** More text of an answer. */
  write(text) {
    this.#markdown.write(text);
  }

  /** More of the thinking that comes before an answer. */
  think(text) {
    if (!this.#thinking) {
      this.#thinking = el("div", { class: "thought" });
      this.body.prepend(el("details", { class: "thinking" }, el("summary", {}, "Thinking"), this.#thinking));
    }
    appendText(this.#thinking, text);
  }

  /** News of one tool call: a name, or more of its arguments. */
  call(index, { name, arguments: json = "" }) {
    if (!this.#calls.has(index)) {
      const code = el("code");
      const title = el("div", { class: "call-name" });
      this.body.append(el("div", { class: "call" }, title, el("pre", { tabindex: "0" }, code)));
      this.#calls.set(index, { code, title });
    }
    const { code, title } = this.#calls.get(index);
    if (name) appendText(title, name);
    if (json) appendText(code, json);
  }

  /** More tokens with their likelihoods. */
  doubt(entries) {
    if (!this.#tokens) {
      this.#tokens = el("div", { class: "tokens", hidden: true });
      this.tokenView = new TokenView(this.#tokens);
      this.body.append(this.#tokens);
      this.#sureButton();
    }
    this.tokenView.add(entries);
  }

  /** The answer is complete, or as complete as it gets. */
  finish() {
    this.#markdown?.end();
    for (const [index, { code }] of this.#calls) {
      try {
        code.textContent = JSON.stringify(JSON.parse(this.message.calls[index].arguments), null, 2);
      } catch {
        // arguments that are no JSON stay as they are
      }
    }
    this.#showFacts();
    this.#showButtons();
    if (this.message.error) this.fail(this.message.error);
  }

  fail(error) {
    this.body.append(el("p", { class: "error", role: "alert" }, error));
  }

  set busy(busy) {
    this.node.classList.toggle("busy", busy);
    this.node.setAttribute("aria-busy", busy);
  }

  /** Replace the text by a field to change it in. */
  edit() {
    const field = el("textarea", { class: "edit", "aria-label": "Your message", rows: 3 });
    field.value = this.message.content;
    const done = (text) => {
      form.remove();
      this.#text.hidden = this.foot.hidden = false;
      if (text !== null && text.trim()) this.actions.resend(text);
    };
    const form = el("form", { class: "editing", onsubmit: (event) => (event.preventDefault(), done(field.value)) }, field,
      el("div", {}, el("button", { class: "primary" }, "Send again"),
        el("button", { type: "button", class: "quiet", onclick: () => done(null) }, "Cancel")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") done(null);
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) form.requestSubmit(event.preventDefault());
    });
    this.#text.hidden = this.foot.hidden = true;
    this.body.append(form);
    field.focus();
  }

  #sureButton() {
    const button = el("button", { type: "button", class: "quiet sure", "aria-pressed": "false" }, "How sure");
    button.addEventListener("click", () => {
      const shown = this.#tokens.hidden;
      this.#tokens.hidden = !shown;
      this.#text.hidden = shown;
      button.setAttribute("aria-pressed", shown);
    });
    this.#buttons.prepend(button);
    if (this.actions.showDoubt) button.click();
  }

  #showButtons() {
    const add = (label, action) => action &&
      this.#buttons.append(el("button", { type: "button", class: "quiet", onclick: () => action() }, label));
    this.#buttons.append(copyButton(() => this.message.content));
    add("Again", this.actions.regenerate);
    add("Edit", this.actions.resend && (() => this.edit()));
  }

  #showFacts() {
    const { facts } = this.message;
    if (!facts) return;
    const parts = [];
    if (facts.tokens != null) parts.push(`${facts.tokens} tokens`);
    if (facts.tokens_per_second) parts.push(`${facts.tokens_per_second.toFixed(1)}/s`);
    if (facts.first_ms != null) parts.push(`first after ${seconds(facts.first_ms)}`);
    if (facts.prompt_tokens != null) parts.push(`prompt ${facts.prompt_tokens}${cached(facts)}`);
    if (facts.reason && facts.reason !== "stop") parts.push(REASONS[facts.reason] ?? facts.reason);
    setText(this.#facts, parts.join(" · "));
  }
}

const REASONS = { length: "cut at the limit", abort: "stopped", tool_calls: "calls a tool" };

const cached = ({ cached_tokens: count }) => (count ? ` (${count} cached)` : "");

export const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
