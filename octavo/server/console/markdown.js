/**
 * Writes Markdown into the page while it arrives. What has been written is not touched again, except where a mark that
 * was opened is never closed: then it becomes the characters it was. Any split into pieces gives the same page.
 *
 * It knows headings, lists, quotes, fenced code, tables, rules, bold, italic, struck and code. Links and images stay as
 * they were written: one sees where they lead, and nothing is fetched. No text is ever read as HTML.
 */

import { appendText, copyButton, el } from "./dom.js";

/** Beginnings of a line that do not tell yet what it is. */
const UNDECIDED = [
  /^ *$/,
  /^ *#{1,6} *$/,
  /^ *(?:[-*+]|\d{1,9}[.)]?) *$/,
  /^ *(?:[-*_] *)+$/,
  /^ *> ?$/,
  /^ *`{1,2}$/, /^ *`{3,}[^`]*$/,
  /^ *~{1,2}$/, /^ *~{3,}.*$/,
  /^ *\|.*$/,
];
const RULE = /^ *([-*_])(?: *\1){2,} *$/;
const FENCE = /^( *)(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ *(#{1,6}) +/;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)])(?: +|$)/;
const QUOTE = /^ *> ?/;
const ROW = /^ *\|/;
const SEPARATOR = /^ *\|(?: *:?-+:? *\|)+ *$/;

export class Markdown {
  #root;
  #head = ""; // of the line, while it is not known what it is
  #begun = false;
  #inline = null; // where the text of the line goes
  #kind = ""; // of the open block: paragraph, quote, item, heading
  #lists = []; // open lists, outermost first: { indent, list, item }
  #blank = false; // the line before was empty
  #fence = null; // open code: { mark, indent, code }
  #row = null; // a line that may turn out to be the head of a table
  #table = null;

  constructor(root) {
    this.#root = root;
  }

  write(text) {
    for (const piece of text.split(/(\n)/)) {
      if (piece === "\n") this.#endLine();
      else if (piece) this.#add(piece);
    }
  }

  /** Nothing more will come. */
  end() {
    if (this.#head) this.#endLine(true);
    this.#flushRow();
    this.#closeText();
  }

  #add(piece) {
    if (this.#begun) return this.#text(piece);
    this.#head += piece;
    const known = this.#fence ? !this.#mayCloseFence(this.#head) : !UNDECIDED.some((start) => start.test(this.#head));
    if (known) this.#begin(false);
  }

  #text(piece) {
    if (this.#fence) appendText(this.#fence.code, piece);
    else this.#inline.write(piece);
  }

  #mayCloseFence(line) {
    const { mark } = this.#fence;
    return /^ *$/.test(line) || new RegExp(`^ *\\${mark[0]}+ *$`).test(line);
  }

  /** The line is known for what it is: open its block and write what there is of it. */
  #begin(whole) {
    const line = this.#head;
    this.#head = "";
    this.#begun = true;
    if (this.#fence) return this.#beginCodeLine(line, whole);
    if (this.#row !== null && whole && SEPARATOR.test(line)) return this.#openTable();
    if (whole && ROW.test(line)) return this.#tableLine(line);
    this.#flushRow();
    this.#table = null;
    let match;
    if (whole && !line.trim()) return this.#blankLine();
    if (whole && RULE.test(line)) return this.#block("hr");
    if (whole && (match = FENCE.exec(line))) return this.#openFence(match);
    if ((match = HEADING.exec(line))) return this.#openText("heading", `h${Math.min(6, match[1].length + 1)}`, line, match);
    if ((match = ITEM.exec(line))) return this.#openItem(line, match);
    if ((match = QUOTE.exec(line))) return this.#openText("quote", "blockquote", line, match);
    this.#openText("paragraph", "p", line, /^ */.exec(line));
  }

  #endLine(last = false) {
    if (!this.#begun) this.#begin(true);
    else if (this.#fence && !last) appendText(this.#fence.code, "\n");
    this.#begun = false;
    if (this.#kind === "heading") this.#closeText();
  }

  // ---------------------------------------------------------------- text

  #openText(kind, tag, line, match) {
    const rest = line.slice(match[0].length);
    const inside = this.#lists.length > 0 && (/^ {2}/.test(line) || (kind === "paragraph" && !this.#blank));
    if (!inside) this.#lists = [];
    const goesOn = this.#inline && !this.#blank && (this.#kind === kind || (inside && this.#kind === "item"));
    this.#blank = false;
    if (goesOn && kind !== "heading") {
      this.#inline.write("\n");
    } else {
      this.#closeText();
      this.#kind = kind;
      this.#inline = new Inline(this.#place().appendChild(el(tag)));
    }
    this.#inline.write(rest);
  }

  #place() {
    return this.#lists.at(-1)?.item ?? this.#root;
  }

  #closeText() {
    this.#inline?.end();
    this.#inline = null;
    this.#kind = "";
  }

  #block(tag) {
    this.#closeText();
    this.#lists = [];
    this.#blank = false;
    this.#root.append(el(tag));
  }

  #blankLine() {
    this.#closeText();
    this.#blank = true;
  }

  // ---------------------------------------------------------------- lists

  #openItem(line, match) {
    const indent = match[1].length;
    const tag = match[2] === undefined ? "ul" : "ol";
    this.#closeText();
    while (this.#lists.length > 1 && this.#lists.at(-1).indent > indent) this.#lists.pop();
    const top = this.#lists.at(-1);
    if (!top || indent >= top.indent + 2 || top.list.localName !== tag) {
      if (top && indent < top.indent + 2) this.#lists.pop();
      const list = this.#place().appendChild(el(tag));
      if (tag === "ol" && match[2] !== "1") list.start = Number(match[2]);
      this.#lists.push({ indent, list, item: null });
    }
    const open = this.#lists.at(-1);
    open.item = open.list.appendChild(el("li"));
    this.#kind = "item";
    this.#blank = false;
    this.#inline = new Inline(open.item.appendChild(el("p")));
    this.#inline.write(line.slice(match[0].length));
  }

  // ---------------------------------------------------------------- code

  #openFence([, indent, mark, info]) {
    this.#closeText();
    if (indent.length < 2) this.#lists = [];
    this.#blank = false;
    const code = el("code");
    const bar = el("div", { class: "code-bar" }, el("span", {}, info.trim()), copyButton(() => code.textContent));
    this.#place().append(el("div", { class: "code" }, bar, el("pre", { tabindex: "0" }, code)));
    this.#fence = { mark, indent: indent.length, code };
  }

  #beginCodeLine(line, whole) {
    const { mark, indent, code } = this.#fence;
    const closes = /^ *([`~]+) *$/.exec(line);
    if (whole && closes && closes[1][0] === mark[0] && closes[1].length >= mark.length) {
      this.#fence = null;
      return;
    }
    appendText(code, line.replace(new RegExp(`^ {0,${indent}}`), ""));
    if (whole) appendText(code, "\n");
  }

  // ---------------------------------------------------------------- tables

  #tableLine(line) {
    if (this.#table) return this.#addRow(line, "td");
    this.#flushRow();
    this.#row = line;
  }

  #openTable() {
    this.#closeText();
    this.#lists = [];
    this.#blank = false;
    const table = el("table");
    this.#root.append(el("div", { class: "table", tabindex: "0" }, table));
    this.#table = table;
    this.#addRow(this.#row, "th");
    this.#row = null;
  }

  #addRow(line, tag) {
    const row = this.#table.appendChild(el("tr"));
    for (const cell of line.trim().replace(/^\||\|$/g, "").split("|")) {
      const inline = new Inline(row.appendChild(el(tag)));
      inline.write(cell.trim());
      inline.end();
    }
  }

  #flushRow() {
    if (this.#row === null) return;
    const line = this.#row;
    this.#row = null;
    this.#openText("paragraph", "p", line, /^ */.exec(line));
  }
}

const MARKS = { "**": "strong", "*": "em", __: "strong", _: "em", "~~": "s" };
const WORD = /[\p{L}\p{N}]/u;

/** The text of one block. A run of marks is held back until the character after it is known. */
class Inline {
  #open = []; // { mark, node }, innermost last; code is always innermost
  #run = "";
  #before = " ";
  #escaped = false;
  #plain = "";

  constructor(node) {
    this.root = node;
  }

  write(text) {
    for (const character of text) this.#take(character);
    this.#flush();
  }

  end() {
    if (this.#escaped) this.#plain += "\\";
    this.#endRun(" ");
    this.#flush();
    while (this.#open.length) this.#undo(this.#open.pop());
  }

  get #node() {
    return this.#open.at(-1)?.node ?? this.root;
  }

  get #code() {
    const last = this.#open.at(-1);
    return last?.mark[0] === "`" ? last : null;
  }

  #take(character) {
    if (this.#escaped) {
      this.#escaped = false;
      return this.#say("\\*_`~|".includes(character) ? character : "\\" + character);
    }
    if (character === this.#run[0]) {
      this.#run += character;
      return;
    }
    this.#endRun(character);
    if (character === "`" || (!this.#code && "*_~".includes(character))) this.#run = character;
    else if (character === "\\" && !this.#code) this.#escaped = true;
    else this.#say(character);
  }

  #say(text) {
    this.#plain += text;
    this.#before = text.at(-1);
  }

  #flush() {
    if (this.#plain) appendText(this.#node, this.#plain);
    this.#plain = "";
  }

  #endRun(after) {
    const run = this.#run;
    if (!run) return;
    this.#run = "";
    if (run[0] === "`") return this.#codeMark(run);
    const marks = run === "***" ? ["**", "*"] : run === "___" ? ["__", "_"] : [run];
    if (!marks.every((mark) => mark in MARKS)) return this.#say(run);
    const inWord = run[0] === "_";
    const closes = !/\s/.test(this.#before) && !(inWord && WORD.test(after));
    const opens = !/\s/.test(after) && !(inWord && WORD.test(this.#before));
    const innermost = this.#open.at(-1)?.mark;
    if (closes && marks.length === 2 && innermost === marks[1]) marks.reverse();
    for (const mark of marks) {
      if (closes && this.#open.some((open) => open.mark === mark)) this.#close(mark);
      else if (opens) this.#start(mark, MARKS[mark]);
      else this.#say(mark);
    }
    this.#before = run[0];
  }

  #codeMark(run) {
    if (!this.#code) this.#start(run, "code");
    else if (this.#code.mark === run) this.#close(run);
    else this.#say(run);
    this.#before = "`";
  }

  #start(mark, tag) {
    this.#flush();
    const node = this.#node.appendChild(el(tag));
    this.#open.push({ mark, node });
  }

  #close(mark) {
    this.#flush();
    while (this.#open.at(-1).mark !== mark) this.#undo(this.#open.pop());
    this.#open.pop();
  }

  /** A mark that nothing closed is text. */
  #undo({ mark, node }) {
    node.replaceWith(mark, ...node.childNodes);
  }
}
