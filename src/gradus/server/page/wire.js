// -- requests with the page's key, and errors in the server's words -----------------------------------------------------

const KEY = "gradus.key"; // in sessionStorage: each tab's own, and gone with it

// An answer that is an error. retryAfter: seconds after which the same request may succeed; null: no such promise.
class Problem extends Error {
  constructor(message, status, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

// Sends a request and returns the response: GET, or POST with a body. A 401 asks the person for a key, unless `quietly`
// and they have declined once. Raises what fetch raises.
async function ask(path, { body, signal, quietly = false } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key === null ? {} : { authorization: `Bearer ${key}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    const method = body === undefined ? "GET" : "POST";
    const response = await fetch(path, { method, headers, body, signal, cache: "no-store", credentials: "omit" });
    if (response.status !== 401) return response;
    const { message } = await problemOf(response.clone());
    if (quietly && keyDialog.declined) return response;
    if (sessionStorage.getItem(KEY) === key && !(await keyDialog.ask(message))) return response;
    signal?.throwIfAborted();
  }
}

async function askJson(path, options = {}) {
  const response = await ask(path, options);
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

// Reads an error's own words, whatever sent it: this server, or a proxy before it.
async function problemOf(response) {
  const after = response.headers.get("retry-after");
  const retryAfter = /^\d+$/.test(after ?? "") ? Number(after) : null;
  let message = `the server answers with status ${response.status}`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch { /* no JSON of ours */ }
  return new Problem(String(message), response.status, retryAfter);
}

// Yields what each read brings of a stream of events: their data, and comments.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
    const comments = lines.filter((line) => line.startsWith(":")).map((line) => line.slice(1).trim());
    yield { data, comments };
  }
}

// -- the key ------------------------------------------------------------------------------------------------------------

const keyDialog = {
  declined: false,
  asking: null, // all requests that were refused wait for one answer

  // Resolves to whether there is another key now.
  ask(why) {
    this.asking ??= new Promise((done) => {
      byId("key-why").textContent = why;
      byId("key").value = "";
      byId("key-dialog").showModal();
      this.done = done;
    }).finally(() => (this.asking = null));
    return this.asking;
  },

  start(changed) {
    const dialog = byId("key-dialog");
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      const key = byId("key").value.trim();
      if (key) sessionStorage.setItem(KEY, key);
      else sessionStorage.removeItem(KEY);
      this.declined = false;
      this.done?.(true);
      dialog.close();
      changed();
    });
    dialog.addEventListener("close", () => {
      byId("key").value = "";
      if (this.asking !== null) this.declined = true;
      this.done?.(false);
    });
    byId("keys").addEventListener("click", () => {
      const known = sessionStorage.getItem(KEY) !== null;
      this.ask(known ? "This tab has a key. Enter another one, or nothing to forget it." : "Enter a key of this server.");
    });
  },
};
