/** Puts the page together: its two views, the theme, and the key. */

import { ApiError, call, key, onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { setText } from "./dom.js";
import { EngineView } from "./engine.js";

const $ = (id) => document.getElementById(id);
const VIEWS = ["chat", "engine"];
const RETRY_MS = 1500;

const engine = new EngineView();

function show() {
  const wanted = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat";
  for (const view of VIEWS) {
    $(view).hidden = view !== wanted;
    const link = $(`to-${view}`);
    if (view === wanted) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = wanted === "chat" ? "Octavo" : "Octavo: engine";
  closePanels();
  engine.shown = wanted === "engine";
}

// ---------------------------------------------------------------- panels beside the chat

const PANELS = ["library", "settings"];
const narrow = matchMedia("(max-width: 60rem)");

function toggle(panel) {
  const open = !isOpen(panel);
  if (open && narrow.matches) closePanels();
  setPanel(panel, open);
  if (open) $(panel).querySelector("input, textarea, button")?.focus({ preventScroll: true });
}

function isOpen(panel) {
  return $(panel).classList.contains("open");
}

/** Over the chat where the screen is narrow: then what lies below can not be reached. */
function setPanel(panel, open) {
  const held = $(panel).contains(document.activeElement);
  $(panel).classList.toggle("open", open);
  $(`show-${panel}`).setAttribute("aria-expanded", open);
  $("desk").inert = narrow.matches && PANELS.some(isOpen);
  if (!open && held) $(`show-${panel}`).focus();
}

function closePanels() {
  if (narrow.matches) PANELS.forEach((panel) => setPanel(panel, false));
}

for (const panel of PANELS) {
  $(`show-${panel}`).addEventListener("click", () => toggle(panel));
  $(panel).querySelector(".close").addEventListener("click", () => setPanel(panel, false));
}
$("shade").addEventListener("click", closePanels);
$("library").addEventListener("click", (event) => event.target.closest(".title, #new") && closePanels());
narrow.addEventListener("change", () => PANELS.forEach((panel) => setPanel(panel, isOpen(panel) && !narrow.matches)));
document.addEventListener("keydown", (event) => event.key === "Escape" && closePanels());
setPanel("library", !narrow.matches);

// ---------------------------------------------------------------- theme

const dark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : dark.matches;
}

$("theme").addEventListener("click", () => {
  const wanted = isDark() ? "light" : "dark";
  if ((wanted === "dark") === dark.matches) {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("octavo.theme");
  } else {
    document.documentElement.dataset.theme = wanted;
    localStorage.setItem("octavo.theme", wanted);
  }
  showTheme();
});

function showTheme() {
  $("theme").setAttribute("aria-pressed", isDark());
}

dark.addEventListener("change", showTheme);
showTheme();

// ---------------------------------------------------------------- key

let asking = null;

/** Resolves to whether a key was given; one dialog for all who ask. */
function askForKey(trouble) {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    setText($("key-trouble"), trouble);
    dialog.returnValue = "";
    dialog.showModal();
    dialog.addEventListener("close", () => {
      asking = null;
      const given = $("key-input").value.trim();
      $("key-input").value = "";
      const used = dialog.returnValue === "use" && given !== "";
      if (used) key.set(given, $("key-keep").checked);
      $("forget-key").hidden = !key.value;
      resolve(used);
    }, { once: true });
  });
  return asking;
}

onKeyNeeded(askForKey);

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  $("key-dialog").close("use");
});
$("key-cancel").addEventListener("click", () => $("key-dialog").close(""));
$("forget-key").addEventListener("click", () => {
  key.forget();
  $("forget-key").hidden = true;
  greet();
});

// ---------------------------------------------------------------- the server

/** Find out what is served; waits for a model that is still being loaded. */
async function greet() {
  try {
    const about = await (await call("console/about")).json();
    if (about.status !== "ready") return later(about.status === "loading" ? "The model is being loaded." : `The server is ${about.status}.`);
    if (about.needs_key && !key.value && !(await askForKey(""))) return later("A key is needed.", false);
    setText($("version"), (await (await call("version")).json()).version);
    const [model] = (await (await call("v1/models")).json()).data;
    setText($("model"), model.id);
    $("forget-key").hidden = !key.value;
    $("notice").hidden = true;
  } catch (err) {
    if (!(err instanceof ApiError)) throw err;
    later(err.message, err.status !== 401 && err.status !== 403);
  }
}

function later(notice, again = true) {
  setText($("notice-text"), notice);
  $("notice").hidden = false;
  $("notice-key").hidden = again;
  if (again) setTimeout(greet, RETRY_MS);
}

$("notice-key").addEventListener("click", greet);

new Chat();
addEventListener("hashchange", show);
show();
greet();
