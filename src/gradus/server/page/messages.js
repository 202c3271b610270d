// -- messages on the screen ---------------------------------------------------------------------------------------------

const SPEAKERS = { user: "You", assistant: "Model", tool: "Tool" };

// One message. `chat` is the page's: it edits, regenerates and answers calls.
class MessageView {
  constructor(chat, message, raw) {
    this.chat = chat;
    this.message = message;
    this.pieces = { content: [], reasoning: [] };
    this.body = make("div", { class: raw ? "body raw" : "body" });
    this.thought = make("div", { class: "body" });
    this.thoughts = make("details", { class: "thoughts", hidden: true }, make("summary", {}, "Reasoning"), this.thought);
    this.callList = make("div", { class: "called" });
    this.waiting = make("p", { class: "waits quiet", role: "status" });
    this.wrong = make("p", { class: "wrong", role: "alert" });
    this.foot = make("p", { class: "stats quiet note" });
    this.element = make("article", { class: `message ${message.role}`, "aria-label": SPEAKERS[message.role] },
      this.head(), this.thoughts, this.body, this.callList, this.waiting, this.wrong, this.foot);
    this.writers = { content: this.writer(this.body, raw), reasoning: this.writer(this.thought, raw) };
    for (const kind of ["reasoning", "content"]) if (message[kind]) this.added(kind, message[kind]);
    this.drawCalls();
  }

  // Answers are Markdown; what people and tools write is shown as it is.
  writer(element, raw) {
    if (this.message.role === "assistant" && !raw) return new Markdown(element);
    const plain = document.createTextNode("");
    element.append(plain);
    element.classList.add("raw");
    return { feed: (piece) => plain.appendData(piece), end: () => {} };
  }

  head() {
    const { message, chat } = this;
    const buttons = make("span", { class: "tools" }, copyButton(() => message.content));
    if (message.role === "user") buttons.append(button("Edit", () => this.edit(), { class: "small" }));
    if (message.role === "assistant") buttons.append(button("Regenerate", () => chat.regenerate(message), { class: "small" }));
    return make("div", { class: "head" }, make("strong", {}, SPEAKERS[message.role]), buttons);
  }

  edit() {
    const area = make("textarea", { "aria-label": "Edit your message", rows: Math.min(this.message.content.split("\n").length + 1, 12) });
    area.value = this.message.content;
    const close = () => editing.replaceWith(this.body);
    const send = () => this.chat.edit(this.message, area.value);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (sends(event)) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const editing = make("div", { class: "editing" }, area, make("div", { class: "row" }, button("Send", send, { class: "strong" }), button("Cancel", close)));
    this.body.replaceWith(editing);
    area.focus();
  }

  // -- an answer as it arrives ----

  added(kind, piece) {
    this.pieces[kind].push(piece);
    this.later();
  }
  calls() {
    this.callsChanged = true;
    this.later();
  }
  waits(words) {
    this.waiting.textContent = words;
  }
  later() {
    this.frame ??= requestAnimationFrame(() => this.flush());
  }

  // Draws what has come since the last frame.
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    for (const [kind, pieces] of Object.entries(this.pieces)) {
      if (pieces.length === 0) continue;
      this.writers[kind].feed(pieces.join(""));
      this.pieces[kind] = [];
      if (kind === "reasoning") this.thoughts.hidden = false;
    }
    if (this.callsChanged) this.drawCalls();
    this.callsChanged = false;
    this.chat.follow();
  }

  ended() {
    this.flush();
    for (const writer of Object.values(this.writers)) writer.end();
    this.element.removeAttribute("aria-busy");
    this.waits("");
    this.wrong.textContent = this.message.error ?? "";
    this.foot.textContent = this.message.role === "assistant" ? statsOf(this.message) : "";
    this.drawCalls(this.chat.awaitsCalls(this.message));
    this.chat.follow();
  }

  // -- calls of tools ----

  drawCalls(open = false) {
    const calls = this.message.calls ?? [];
    const areas = [];
    const drawn = calls.map(({ name, arguments: written }) => {
      const area = make("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: "What the tool answers" });
      areas.push(area);
      const call = [make("div", { class: "bar" }, make("span", {}, "calls ", make("strong", {}, name))), make("pre", { tabindex: "0" }, make("code", {}, pretty(written)))];
      return make("div", { class: "code" }, ...call, open ? area : null);
    });
    const send = () => this.chat.answerCalls(this.message, areas.map((area) => area.value));
    this.callList.replaceChildren(...drawn, ...(open && drawn.length ? [button(drawn.length > 1 ? "Send results" : "Send result", send, { class: "strong" })] : []));
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

// Enter sends, but not while a word is being composed.
const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;
