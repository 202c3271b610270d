// -- conversations in the browser's storage, within bounds ---------------------------------------------------------------
//
// Each conversation is an entry of its own, so that two tabs can hold different ones. What is read, from the storage or
// from a file, is built anew from the fields known here.

const PREFIX = "gradus.conversation.";
const MOST_CONVERSATIONS = 200;
const MOST_CHARACTERS = 2_000_000; // of all conversations; browsers keep about five million
const LONGEST_FILE = 8_000_000;
const FORMAT = "gradus-conversations";

const textOf = (value, most = MOST_CHARACTERS) => (typeof value === "string" ? value.slice(0, most) : "");
const numberOf = (value) => (Number.isFinite(value) ? value : null);

function readMessage(from) {
  if (!["user", "assistant", "tool"].includes(from?.role)) return null;
  const message = { role: from.role, content: textOf(from.content) };
  for (const name of ["reasoning", "error", "finish", "call", "model"]) if (from[name]) message[name] = textOf(from[name]);
  if (Array.isArray(from.calls)) message.calls = from.calls.map((call) => ({ id: textOf(call?.id), name: textOf(call?.name), arguments: textOf(call?.arguments) }));
  if (from.stats) {
    message.stats = Object.fromEntries(["prompt", "cached", "tokens", "reasoning", "total"].map((name) => [name, numberOf(from.stats[name]) ?? 0]));
    message.stats.first = numberOf(from.stats.first);
  }
  return message;
}

// Returns a conversation; null if it is none.
function readConversation(from) {
  if (typeof from !== "object" || from === null || !Array.isArray(from.messages)) return null;
  return {
    id: textOf(from.id, 40) || newId(),
    title: textOf(from.title, 80),
    updated: numberOf(from.updated) ?? Date.now(),
    settings: readSettings(from.settings),
    messages: from.messages.map(readMessage).filter((message) => message !== null),
  };
}

const newId = () => [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

class Store {
  constructor() {
    this.all = new Map();
    for (const name of Object.keys(localStorage).filter((name) => name.startsWith(PREFIX))) this.load(name);
  }

  load(name) {
    let found = null;
    try {
      found = readConversation(JSON.parse(localStorage.getItem(name)));
    } catch { /* not ours */ }
    if (found !== null) this.all.set(found.id, found);
  }

  // The newest first.
  get list() {
    return [...this.all.values()].sort((a, b) => b.updated - a.updated);
  }

  // Keeps a conversation, and gives up the oldest others for it. Returns whether it is stored.
  save(conversation) {
    this.all.set(conversation.id, conversation);
    const written = JSON.stringify(conversation);
    if (written.length > MOST_CHARACTERS) return false;
    let room = MOST_CHARACTERS - written.length;
    const others = this.list.filter((other) => other !== conversation);
    for (const [at, { id }] of others.entries()) {
      room -= localStorage.getItem(PREFIX + id)?.length ?? 0;
      if (room < 0 || at >= MOST_CONVERSATIONS - 1) this.remove(id);
    }
    try {
      localStorage.setItem(PREFIX + conversation.id, written);
      return true;
    } catch {
      return false;
    }
  }

  remove(id) {
    this.all.delete(id);
    localStorage.removeItem(PREFIX + id);
  }

  clear() {
    for (const id of [...this.all.keys()]) this.remove(id);
  }

  export() {
    return JSON.stringify({ format: FORMAT, version: 1, conversations: this.list }, null, 1);
  }

  // Adds the conversations of a file. Returns their number; raises an Error that says what is wrong with it.
  import(written) {
    if (written.length > LONGEST_FILE) throw new Error(`the file has more than ${LONGEST_FILE.toLocaleString("en")} characters`);
    let found = null;
    try {
      found = JSON.parse(written);
    } catch { /* below */ }
    if (found?.format !== FORMAT || !Array.isArray(found.conversations)) throw new Error("the file is no export of this page");
    const read = found.conversations.map(readConversation).filter((one) => one !== null).slice(0, MOST_CONVERSATIONS);
    for (const one of read.reverse()) this.save({ ...one, id: this.all.has(one.id) ? newId() : one.id });
    return read.length;
  }
}
