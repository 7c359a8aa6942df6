/** Shows an answer token by token: how likely each was, and what else the model might have said. */

import { el } from "./dom.js";

const percent = (logprob) => {
  const value = 100 * Math.exp(logprob);
  return value >= 99.95 ? "100%" : value < 0.1 ? "<0.1%" : `${value.toFixed(value < 10 ? 1 : 0)}%`;
};

/** A token as one can see it alone. */
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "∅";

/** One stop for Tab; the arrow keys go from token to token. */
export class TokenView {
  #card = el("div", { class: "token-card", role: "status", hidden: true });
  #list = el("div", { class: "token-list", role: "group", "aria-label": "Tokens; arrow keys go through them" });
  #pending = []; // tokens that are a part of a character each
  #decoder = new TextDecoder();
  #tokens = [];
  #line = null; // a block of its own, so that a new token does not lay out the lines before it anew
  #shown = null;

  constructor(root) {
    root.append(legend(), this.#list, this.#card);
    this.#list.addEventListener("pointerover", (event) => this.#show(event.target));
    this.#list.addEventListener("pointerleave", () => this.#hide());
    this.#list.addEventListener("focusin", (event) => this.#show(event.target));
    this.#list.addEventListener("focusout", () => this.#hide());
    this.#list.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Add entries of `logprobs.content`. */
  add(entries) {
    for (const entry of entries) {
      this.#pending.push(entry);
      const text = this.#decoder.decode(new Uint8Array(entry.bytes ?? []), { stream: true });
      if (text || entry.bytes?.length === 0) this.#place(text);
    }
  }

  #place(text) {
    const entries = this.#pending.splice(0);
    const logprob = entries.reduce((sum, entry) => sum + entry.logprob, 0);
    const token = el("span", {
      class: "token", role: "button", tabindex: this.#tokens.length ? "-1" : "0",
      "aria-label": `${visible(text)}, ${percent(logprob)}`,
    }, text);
    token.entries = entries;
    token.style.setProperty("--doubt", (1 - Math.exp(logprob)).toFixed(3));
    this.#line ??= this.#list.appendChild(el("div"));
    this.#line.append(token);
    this.#tokens.push(token);
    if (text.endsWith("\n")) this.#line = null;
  }

  #move(event) {
    if (event.key === "Escape") return this.#hide();
    const at = this.#tokens.indexOf(document.activeElement);
    const next = this.#tokens[{ ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.#tokens.length - 1 }[event.key]];
    if (!next) return;
    event.preventDefault();
    document.activeElement.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #show(token) {
    if (!token.entries || token === this.#shown) return;
    this.#shown = token;
    this.#card.replaceChildren(...token.entries.map(alternatives));
    this.#card.hidden = false;
    const box = this.#list.getBoundingClientRect();
    const at = token.getClientRects()[0] ?? token.getBoundingClientRect();
    const left = Math.max(0, Math.min(at.left - box.left, box.width - this.#card.offsetWidth));
    this.#card.style.left = `${this.#list.offsetLeft + left}px`;
    this.#card.style.top = `${this.#list.offsetTop + at.bottom - box.top + 6}px`;
  }

  #hide() {
    this.#shown = null;
    this.#card.hidden = true;
  }
}

function alternatives(entry) {
  const listed = entry.top_logprobs ?? [];
  const said = listed.some((other) => other.token === entry.token) ? listed : [...listed, entry];
  return el("ol", {}, ...said.map((other) => {
    const bar = el("span", { class: "bar" });
    bar.style.setProperty("--share", Math.exp(other.logprob).toFixed(4));
    const mark = other.token === entry.token ? { class: "said" } : {};
    return el("li", mark, el("code", {}, visible(other.token)), bar, el("span", { class: "figure" }, percent(other.logprob)));
  }));
}

function legend() {
  const steps = [0, 0.25, 0.5, 0.75, 1].map((doubt) => {
    const step = el("span", { class: "token" }, " ");
    step.style.setProperty("--doubt", doubt);
    return step;
  });
  return el("p", { class: "token-legend", "aria-hidden": "true" }, "sure ", ...steps, " in doubt");
}
