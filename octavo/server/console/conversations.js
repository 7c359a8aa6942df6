/** Conversations, kept in this browser. Knows nothing of how they are shown. */

const PLACE = "octavo.conversations";
const MAX_KEPT = 100;

/**
 * Newest first: { id, title, messages }. A message has a role and content; an answer also reasoning, calls, facts and
 * error, and a tool's result the call_id it is for.
 */
let all = read();

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

export function list() {
  return all;
}

export function create() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join(""), title: "", messages: [] };
}

/** Keep a conversation; the oldest make room if the browser has no more. Tokens' likelihoods are too large to keep. */
export function keep(conversation) {
  const said = conversation.messages.find((message) => message.role === "user");
  if (!said) return;
  conversation.title = said.content.trim().split("\n")[0].slice(0, 60) || "Untitled";
  all = [conversation, ...all.filter((other) => other.id !== conversation.id)].slice(0, MAX_KEPT);
  for (let count = all.length; count > 0; count = Math.floor(count / 2)) {
    try {
      const text = JSON.stringify(all.slice(0, count), (name, value) => (name === "logprobs" ? undefined : value));
      localStorage.setItem(PLACE, text);
      return;
    } catch {
      // full: with half as many
    }
  }
}

export function remove(id) {
  all = all.filter((conversation) => conversation.id !== id);
  localStorage.setItem(PLACE, JSON.stringify(all));
}

export function clear() {
  all = [];
  localStorage.removeItem(PLACE);
}
