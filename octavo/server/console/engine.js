/** The live view of the engine. Asks only while it is seen, and never twice at once. */

import { ApiError, call } from "./api.js";
import { el, setText } from "./dom.js";
import { seconds } from "./message.js";
import { PageMap } from "./pagemap.js";

const POLL_MS = 300;
const RATE_S = 2; // a rate is over this long
const KEPT_S = 60; // of the curves
const MAX_ROWS = 24;

const $ = (id) => document.getElementById(id);
const whole = (value) => Math.round(value).toLocaleString("en");

export class EngineView {
  #timer = 0;
  #shown = false;
  #asking = false;
  #history = []; // { at, generated, computed, queries, hits }
  #rates = []; // { at, generated, computed }
  #maps = [];
  #rows = [];
  #curves = { generated: new Curve($("curve-generated")), computed: new Curve($("curve-computed")) };

  constructor() {
    document.addEventListener("visibilitychange", () => this.#schedule());
  }

  set shown(shown) {
    this.#shown = shown;
    this.#schedule();
  }

  #schedule() {
    clearTimeout(this.#timer);
    if (this.#shown && !document.hidden && !this.#asking) this.#poll();
  }

  async #poll() {
    const begin = performance.now();
    this.#asking = true;
    try {
      this.#show(await (await call("console/state")).json());
      $("engine-trouble").hidden = true;
    } catch (err) {
      if (!(err instanceof ApiError)) throw err;
      setText($("engine-trouble"), err.message);
      $("engine-trouble").hidden = false;
      if (err.status === 401 || err.status === 403) return; // asking again helps nobody
    } finally {
      this.#asking = false;
    }
    this.#timer = setTimeout(() => this.#schedule(), Math.max(50, POLL_MS - (performance.now() - begin)));
  }

  #show(state) {
    const { stats } = state;
    this.#note(state);
    const { generated, computed } = this.#rates.at(-1);
    setText($("rate-generated"), generated < 10 && generated > 0 ? generated.toFixed(1) : whole(generated));
    setText($("rate-computed"), whole(computed));
    this.#curves.generated.draw(this.#rates, (rate) => rate.generated);
    this.#curves.computed.draw(this.#rates, (rate) => rate.computed);
    setText($("waiting"), whole(stats.num_waiting));
    setText($("running"), `${stats.num_running} of ${state.seats}`);
    seats($("seats"), stats.num_running, state.seats);
    this.#showHits(stats);
    this.#showPages(state);
    this.#showRequests(state.requests);
    const facts = [state.model, state.dtype, `${state.device} (${state.numerics})`,
      `${whole(state.max_model_len)} tokens of context`, `${size(state.kv_bytes)} of pages`];
    setText($("engine-facts"), facts.join(" · "));
  }

  #note({ now_s: at, stats }) {
    const generated = stats.generation_tokens;
    const before = this.#history.at(-1);
    if (before && (stats.steps < before.steps || at < before.at)) this.#history = this.#rates = [];
    this.#history.push({ at, generated, steps: stats.steps, computed: Math.max(0, stats.step_tokens - generated),
      queries: stats.prefix_cache_queries, hits: stats.prefix_cache_hits });
    this.#history = this.#history.filter((past) => at - past.at <= KEPT_S);
    const then = this.#history.find((past) => at - past.at <= RATE_S);
    const span = Math.max(at - then.at, 0.001);
    this.#rates.push({ at, generated: (generated - then.generated) / span,
      computed: Math.max(0, this.#history.at(-1).computed - then.computed) / span });
    this.#rates = this.#rates.filter((past) => at - past.at <= KEPT_S);
  }

  #showHits(stats) {
    const then = this.#history[0];
    const queries = stats.prefix_cache_queries - then.queries;
    const hits = stats.prefix_cache_hits - then.hits;
    const rate = (part, of) => (of ? `${Math.round((100 * part) / of)}%` : "–");
    setText($("hits"), rate(stats.prefix_cache_hits, stats.prefix_cache_queries));
    setText($("hits-now"), queries ? `${rate(hits, queries)} in the last minute` : "nothing asked in the last minute");
  }

  #showPages(state) {
    while (this.#maps.length < state.groups.length) {
      this.#maps.push(new PageMap());
      $("maps").append(this.#maps.at(-1).node);
    }
    state.groups.forEach((group, index) => this.#maps[index].update(group, state.block_size));
    setText($("used"), `${(100 * state.stats.kv_usage).toFixed(state.stats.kv_usage < 0.1 ? 1 : 0)}%`);
    const late = state.now_s - state.pages_s > 2 && state.groups.length > 0;
    setText($("pages-age"), late ? `as of ${Math.round(state.now_s - state.pages_s)} s ago: a long step is running` : "");
  }

  /** Rows stay where they are and only their texts change. */
  #showRequests(requests) {
    const shown = requests.slice(0, MAX_ROWS);
    $("no-requests").hidden = shown.length > 0;
    while (this.#rows.length < shown.length) {
      const row = el("tr", {}, ...Array.from({ length: 7 }, () => el("td")));
      $("requests").append(row);
      this.#rows.push(row);
    }
    shown.forEach((request, index) => fill(this.#rows[index], request));
  }
}

function fill(row, request) {
  const decode_s = request.total_ms === null ? request.age_s - (request.ttft_ms ?? 0) / 1000
    : (request.total_ms - (request.ttft_ms ?? 0)) / 1000;
  const running = request.ttft_ms === null ? "waits" : "runs";
  const texts = [
    request.age_s < 1 ? "now" : request.age_s < 90 ? `${Math.round(request.age_s)} s ago` : `${Math.round(request.age_s / 60)} min ago`,
    request.finish_reason ?? running,
    whole(request.prompt_tokens) + (request.cached_tokens ? ` (${whole(request.cached_tokens)})` : ""),
    whole(request.tokens),
    request.ttft_ms === null ? "–" : seconds(request.ttft_ms),
    request.total_ms === null ? "–" : seconds(request.total_ms),
    request.tokens > 1 && decode_s > 0 ? ((request.tokens - request.samples) / decode_s).toFixed(1) : "–",
  ];
  texts.forEach((text, index) => setText(row.cells[index], text));
  row.className = request.finish_reason ?? running;
}

/** A mark per seat while there is room for that, else a bar. */
function seats(node, running, count) {
  const shown = Math.min(count, 64);
  while (node.children.length < shown) node.append(el("span"));
  while (node.children.length > shown) node.lastChild.remove();
  const taken = Math.ceil((running / count) * shown);
  [...node.children].forEach((seat, index) => seat.classList.toggle("taken", index < taken));
}

/** A line of the last minute. */
class Curve {
  constructor(svg) {
    this.line = svg.querySelector(".line");
    this.area = svg.querySelector(".area");
  }

  draw(points, read) {
    const end = points.at(-1).at;
    const top = Math.max(1, ...points.map(read));
    const place = (point) => `${(100 - ((end - point.at) / KEPT_S) * 100).toFixed(2)},${(29 - (read(point) / top) * 27).toFixed(2)}`;
    const path = points.map(place).join(" ");
    this.line.setAttribute("points", path);
    this.area.setAttribute("points", `${path.split(",")[0]},30 ${path} 100,30`);
  }
}

function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const step = bytes ? Math.min(4, Math.floor(Math.log2(bytes) / 10)) : 0;
  return `${(bytes / 1024 ** step).toFixed(step > 2 ? 1 : 0)} ${units[step]}`;
}
