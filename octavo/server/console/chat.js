/** The chat: a conversation, its composer, and the answer that streams in. */

import { ApiError, call, events } from "./api.js";
import * as conversations from "./conversations.js";
import { el, setText } from "./dom.js";
import { MessageView } from "./message.js";
import { SettingError, Settings } from "./settings.js";

const IDEAS = [
  "Explain virtual memory with an example from a library.",
  "Write four lines about a book that was never opened.",
  "List three ways to measure the height of a tower.",
];

const $ = (id) => document.getElementById(id);

export class Chat {
  #settings = new Settings($("settings-form"));
  #conversation = conversations.create();
  #stopping = null; // of the answer that streams in
  #follows = true; // the end of the conversation is in view, or will be in the next frame
  #top = 0; // where the view was when it was last looked at

  constructor() {
    const input = $("input");
    $("composer").addEventListener("submit", (event) => (event.preventDefault(), this.#submit()));
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.#stopping) this.#submit();
    });
    input.addEventListener("input", () => fit(input));
    $("stop").addEventListener("click", () => this.#stop());
    $("sure").addEventListener("click", () => this.#toggleSure());
    $("new").addEventListener("click", () => this.open(conversations.create()));
    $("clear").addEventListener("click", () => $("clear-dialog").showModal());
    $("clear-dialog").addEventListener("close", () => $("clear-dialog").returnValue === "clear" && this.#clear());
    $("scroll").addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    $("latest").addEventListener("click", () => this.#scrollToEnd());
    const sizes = new ResizeObserver(() => this.#noteSize());
    for (const id of ["scroll", "messages"]) sizes.observe($(id));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.#stop());
    addEventListener("pagehide", () => conversations.keep(this.#conversation));
    $("sure").setAttribute("aria-pressed", localStorage.getItem("octavo.sure") === "true");
    this.open(this.#conversation);
  }

  /** Show a conversation. */
  open(conversation) {
    this.#stop();
    this.#conversation = conversation;
    $("messages").replaceChildren();
    conversation.messages.forEach((message, index) => this.#append(message, index).finish());
    if (!conversation.messages.length) $("messages").append(this.#welcome());
    this.#listConversations();
    this.#scrollToEnd();
    $("input").focus({ preventScroll: true });
  }

  get #sure() {
    return $("sure").getAttribute("aria-pressed") === "true";
  }

  // ---------------------------------------------------------------- asking

  #submit() {
    const text = $("input").value;
    if (!text.trim() || this.#stopping) return;
    $("input").value = "";
    fit($("input"));
    this.#say({ role: "user", content: text });
  }

  #say(...messages) {
    if (!this.#conversation.messages.length) $("messages").replaceChildren();
    for (const message of messages) {
      this.#conversation.messages.push(message);
      this.#append(message).finish();
    }
    this.#scrollToEnd();
    this.#answer();
  }

  /** Forget the messages from `index` on. */
  #cut(index) {
    this.#stop();
    this.#conversation.messages.length = index;
    [...$("messages").children].slice(index).forEach((node) => node.remove());
  }

  #append(message, index = this.#conversation.messages.indexOf(message)) {
    const actions = { showDoubt: this.#sure };
    if (message.role === "assistant") actions.regenerate = () => (this.#cut(index), this.#answer());
    if (message.role === "user") actions.resend = (text) => (this.#cut(index), this.#say({ role: "user", content: text }));
    const view = new MessageView(message, actions);
    $("messages").append(view.node);
    return view;
  }

  #body() {
    const messages = this.#conversation.messages.filter((message) => !message.error).map(sent);
    if (this.#settings.system) messages.unshift({ role: "system", content: this.#settings.system });
    const sure = this.#sure ? { logprobs: true, top_logprobs: 5 } : {};
    return { messages, ...this.#settings.fields(), ...sure, stream: true, stream_options: { include_usage: true },
      return_metrics: true };
  }

  async #answer() {
    const message = { role: "assistant", content: "", reasoning: "", calls: [] };
    const conversation = this.#conversation;
    let body;
    try {
      body = this.#body();
    } catch (err) {
      if (!(err instanceof SettingError)) throw err;
      message.error = err.message;
    }
    conversation.messages.push(message);
    const view = this.#append(message);
    if (body) await this.#stream(body, message, view);
    view.finish();
    if (message.calls.length && !message.error) view.body.append(this.#results(message));
    conversations.keep(conversation);
    this.#listConversations();
  }

  async #stream(body, message, view) {
    const stopping = (this.#stopping = new AbortController());
    this.#showBusy(true);
    view.busy = true;
    const writer = new Writer(view);
    try {
      const response = await call("v1/chat/completions", { body, signal: stopping.signal });
      for await (const event of events(response)) take(event, message, writer);
    } catch (err) {
      if (stopping.signal.aborted) message.facts = { ...message.facts, reason: "abort" };
      else if (err instanceof ApiError) message.error = err.message;
      else throw err;
    } finally {
      writer.flush();
      view.busy = false;
      if (this.#stopping === stopping) {
        this.#stopping = null;
        this.#showBusy(false);
      }
    }
  }

  #stop() {
    this.#stopping?.abort();
  }

  #showBusy(busy) {
    const held = document.activeElement === $(busy ? "send" : "stop");
    $("send").hidden = busy;
    $("stop").hidden = !busy;
    setText($("news"), busy ? "Answering" : "The answer is complete");
    if (held) (busy ? $("stop") : $("input")).focus();
  }

  /** Fields for what the called tools gave back. */
  #results(message) {
    const fields = message.calls.map((call, index) => {
      const id = `result-${call.id}-${index}`;
      return el("div", { class: "field" }, el("label", { for: id }, `Result of ${call.name}`),
        el("textarea", { id, rows: 2, spellcheck: "false" }));
    });
    const form = el("form", { class: "results" }, ...fields, el("button", { class: "primary" }, "Send results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const texts = [...form.querySelectorAll("textarea")].map((field) => field.value);
      form.remove();
      this.#say(...message.calls.map((call, i) => ({ role: "tool", call_id: call.id, content: texts[i] })));
    });
    return form;
  }

  // ---------------------------------------------------------------- around it

  #toggleSure() {
    const sure = !this.#sure;
    $("sure").setAttribute("aria-pressed", sure);
    localStorage.setItem("octavo.sure", sure);
  }

  #welcome() {
    const ideas = IDEAS.map((idea) => el("button", { type: "button", class: "idea", onclick: () => this.#say({ role: "user", content: idea }) }, idea));
    return el("div", { class: "welcome" }, el("p", { class: "motto" },
      "A sheet folded three times makes eight leaves. The book that is bound from them is called an octavo."),
      el("div", { class: "ideas" }, ...ideas));
  }

  #listConversations() {
    const items = conversations.list().map((conversation) => {
      const open = el("button", { type: "button", class: "title", onclick: () => this.open(conversation),
        "aria-current": conversation.id === this.#conversation.id ? "true" : null }, conversation.title);
      const remove = el("button", { type: "button", class: "quiet remove", "aria-label": `Delete “${conversation.title}”`,
        onclick: () => this.#remove(conversation) }, "×");
      return el("li", {}, open, remove);
    });
    $("conversations").replaceChildren(...items);
    $("clear").hidden = !items.length;
  }

  #remove(conversation) {
    conversations.remove(conversation.id);
    if (conversation.id === this.#conversation.id) this.open(conversations.create());
    else this.#listConversations();
  }

  #clear() {
    conversations.clear();
    this.open(conversations.create());
  }

  // ---------------------------------------------------------------- scrolling

  #noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = $("scroll");
    if (!clientHeight) return;
    const atEnd = scrollHeight - scrollTop - clientHeight < 48;
    // What has grown below since the last look is followed; only going up is a wish to stay.
    if (atEnd || scrollTop < this.#top) this.#follows = atEnd;
    this.#top = scrollTop;
    $("latest").hidden = this.#follows;
  }

  /** What is shown, or the room for it, has another size: it grew, was exchanged or folded, or the window changed. */
  #noteSize() {
    if (!$("scroll").clientHeight) return; // another view is shown
    if (this.#follows) this.#scrollToEnd();
    else this.#noteScroll();
  }

  #scrollToEnd() {
    $("scroll").scrollTop = $("scroll").scrollHeight;
    this.#top = $("scroll").scrollTop;
  }
}

/** Collects news and writes them once per frame, however fast they come. */
class Writer {
  #news = [];
  #frame = 0;

  constructor(view) {
    this.view = view;
  }

  add(kind, ...values) {
    this.#news.push([kind, values]);
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    for (const [kind, values] of this.#news.splice(0)) this.view[kind](...values);
  }
}

/** Take one event of a stream into the message, and pass on what is new. */
function take(event, message, writer) {
  const [choice] = event.choices;
  const { content, reasoning, tool_calls: calls } = choice?.delta ?? {};
  if (reasoning) {
    message.reasoning += reasoning;
    writer.add("think", reasoning);
  }
  if (content) {
    message.content += content;
    writer.add("write", content);
  }
  for (const { index, id, function: { name, arguments: json } } of calls ?? []) {
    const known = (message.calls[index] ??= { id, name: "", arguments: "" });
    known.name += name ?? "";
    known.arguments += json ?? "";
    writer.add("call", index, { name, arguments: json ?? "" });
  }
  if (choice?.logprobs?.content?.length) {
    (message.logprobs ??= []).push(...choice.logprobs.content);
    writer.add("doubt", choice.logprobs.content);
  }
  if (choice?.finish_reason) message.facts = { ...message.facts, reason: choice.finish_reason };
  const { usage, metrics } = event;
  if (usage) {
    Object.assign((message.facts ??= {}), { tokens: usage.completion_tokens, prompt_tokens: usage.prompt_tokens,
      cached_tokens: usage.prompt_tokens_details?.cached_tokens });
  }
  if (metrics) {
    Object.assign((message.facts ??= {}), { first_ms: metrics.time_to_first_token_ms,
      tokens_per_second: metrics.tokens_per_second });
  }
}

/** A message as the API takes it. */
function sent({ role, content, calls, call_id }) {
  if (role === "tool") return { role, content, tool_call_id: call_id };
  if (!calls?.length) return { role, content };
  const tool_calls = calls.map(({ id, name, arguments: json }) => (
    { id, type: "function", function: { name, arguments: json } }));
  return { role, content: content || null, tool_calls };
}

/** As high as its text, where the browser does not see to that itself. */
function fit(input) {
  if (CSS.supports("field-sizing", "content")) return;
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}
