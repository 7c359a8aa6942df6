/** Draws the pages of the KV cache as leaves of a book, eight to a sheet. Knows no server. */

import { el, setText } from "./dom.js";

const STATES = ["free", "cached", "used", "shared"];
const LABELS = { free: "free", cached: "free, content kept", used: "in use", shared: "shared by prefix" };
const FADE_MS = 900;
const ASPECT = 1.35; // a leaf's height over its width
const GAP = 0.22; // between leaves, in widths of one
const SHEET_GAP = 0.7; // between sheets

/** The map of one KV group. */
export class PageMap {
  #states = new Uint8Array();
  #changed = new Float64Array(); // when each page changed, for a glow that fades
  #canvas = el("canvas", { role: "img" });
  #counts = {};
  #swatches = {};
  #title = el("h3");
  #note = el("p", { class: "note" });
  #frame = 0;
  #grid = null;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");

  constructor() {
    const legend = STATES.map((state) => {
      this.#counts[state] = el("b");
      this.#swatches[state] = el("span", { class: `swatch ${state}` });
      return el("li", {}, this.#swatches[state], ` ${LABELS[state]} `, this.#counts[state]);
    });
    this.node = el("div", { class: "pagemap" }, el("div", { class: "pagemap-head" }, this.#title, el("ul", {}, ...legend)),
      this.#canvas, this.#note);
    new ResizeObserver(() => ((this.#grid = null), this.#draw())).observe(this.node);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** Show a group of /console/state. */
  update(group, blockSize) {
    const states = Uint8Array.from(atob(group.states), (character) => character.charCodeAt(0));
    const now = performance.now();
    if (states.length !== this.#states.length) {
      this.#grid = null;
      this.#changed = new Float64Array(states.length).fill(-FADE_MS);
    } else {
      states.forEach((state, page) => state !== this.#states[page] && (this.#changed[page] = now));
    }
    this.#states = states;
    this.#tell(group, blockSize);
    this.#draw();
  }

  #tell(group, blockSize) {
    const shared = this.#states.reduce((sum, state) => sum + (state === 3), 0) * group.stride;
    const counts = { free: group.num_blocks - group.num_used - group.num_reusable, cached: group.num_reusable,
      used: Math.max(0, group.num_used - shared), shared };
    for (const state of STATES) setText(this.#counts[state], counts[state].toLocaleString("en"));
    setText(this.#title, `${group.num_blocks.toLocaleString("en")} pages of ${blockSize} tokens`);
    setText(this.#note, group.stride > 1 ? `One in ${group.stride} pages is shown; “shared” is counted from those.` : "");
    this.#canvas.setAttribute("aria-label",
      `Map of the pages: ${STATES.map((state) => `${counts[state]} ${LABELS[state]}`).join(", ")}`);
  }

  /** The largest leaves with which all pages fit. */
  #layout() {
    const width = this.node.clientWidth;
    const limit = Math.max(180, Math.min(380, innerHeight * 0.45));
    const count = this.#states.length;
    let best = null;
    for (let sheets = 1; sheets <= 64; sheets++) {
      const columns = sheets * 8;
      const leaf = Math.min(26, width / (columns + (columns - sheets) * GAP + (sheets - 1) * SHEET_GAP));
      const rows = Math.ceil(count / columns);
      const height = rows * leaf * ASPECT + (rows - 1) * leaf * GAP * 1.6;
      if (!best || best.height > limit) best = { columns, leaf, rows, height, sheets };
      if (height <= limit) break;
    }
    return best;
  }

  #draw() {
    if (!this.node.isConnected || !this.node.clientWidth || !this.#states.length) return;
    if (!this.#grid) {
      this.#grid = this.#layout();
      const ratio = devicePixelRatio || 1;
      const { columns, leaf, height, sheets } = this.#grid;
      const width = columns * leaf * (1 + GAP) - sheets * leaf * GAP + (sheets - 1) * leaf * SHEET_GAP;
      this.#canvas.width = Math.ceil(width * ratio);
      this.#canvas.height = Math.ceil(height * ratio);
      this.#canvas.style.width = `${width}px`;
      this.#canvas.style.height = `${height}px`;
      this.#grid.ratio = ratio;
    }
    this.#frame ||= requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    this.#frame = 0;
    const { columns, leaf, ratio } = this.#grid ?? {};
    if (!columns) return this.#draw();
    const context = this.#canvas.getContext("2d");
    const colours = STATES.map((state) => getComputedStyle(this.#swatches[state]).backgroundColor);
    const glow = getComputedStyle(this.node).color;
    const now = performance.now();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    const snap = (length) => Math.round(length * ratio) / ratio; // to whole pixels
    const [width, height] = [snap(leaf), snap(leaf * ASPECT)];
    let moving = false;
    this.#states.forEach((state, page) => {
      const column = page % columns;
      const x = snap(column * leaf * (1 + GAP) + Math.floor(column / 8) * leaf * (SHEET_GAP - GAP));
      const y = snap(Math.floor(page / columns) * leaf * (ASPECT + GAP * 1.6));
      context.fillStyle = colours[state];
      context.fillRect(x, y, width, height);
      if (state === 3) notch(context, x + width, y, snap(leaf * 0.4));
      const age = now - this.#changed[page];
      if (age < FADE_MS && !this.#calm.matches) {
        moving = true;
        context.globalAlpha = 0.55 * (1 - age / FADE_MS) ** 2;
        context.fillStyle = glow;
        context.fillRect(x, y, width, height);
        context.globalAlpha = 1;
      }
    });
    if (moving && this.node.isConnected && this.node.clientWidth) {
      this.#frame = requestAnimationFrame(() => this.#paint());
    }
  }
}

/** A turned-down corner: shared pages are told by more than their colour. */
function notch(context, right, top, side) {
  context.clearRect(right - side, top, side, side);
  context.beginPath();
  context.moveTo(right - side, top);
  context.lineTo(right, top + side);
  context.lineTo(right - side, top + side);
  context.fill();
}
