/** Talks to this server, and to no other. Asks for a key when the server wants one. */

const KEY = "octavo.key";

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get value() {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
  },
  set(value, remember) {
    this.forget();
    (remember ? localStorage : sessionStorage).setItem(KEY, value);
  },
  forget() {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  },
};

let askForKey = async () => false;

/** `ask` shows what it is told and resolves to whether there is a new key. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** The response to a GET, or to a POST if there is a body. Throws ApiError with the server's own words. */
export async function call(path, { body, signal } = {}) {
  for (;;) {
    const used = key.value;
    const headers = used ? { Authorization: `Bearer ${used}` } : {};
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(new URL(path, document.baseURI), {
        method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, credentials: "same-origin",
      });
    } catch (err) {
      if (signal?.aborted) throw err;
      throw new ApiError("The server cannot be reached.");
    }
    if (response.ok) return response;
    if (response.status === 401 && (await askForKey(used ? "This key is not valid." : ""))) continue;
    throw new ApiError(await wordsOf(response), response.status);
  }
}

async function wordsOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** The JSON objects of a streamed answer. Throws ApiError if the stream ends early. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError("The connection ended before the answer did.");
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        const data = line.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
