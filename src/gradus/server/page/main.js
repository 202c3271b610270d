// -- the page's parts, joined -------------------------------------------------------------------------------------------

const SAVED_EACH = 5000; // milliseconds, while an answer arrives

const chat = {
  store: new Store(),
  conversation: null,
  running: new Map(), // answers by their conversation's id
  views: [],

  start() {
    const [latest] = this.store.list;
    this.show(latest ?? this.fresh());
  },

  fresh() {
    return { id: newId(), title: "", updated: Date.now(), settings: this.conversation?.settings ?? readSettings({}), messages: [] };
  },

  // -- showing ----

  show(conversation) {
    this.running.get(this.conversation?.id)?.view?.flush();
    for (const answer of this.running.values()) answer.view = null;
    this.conversation = conversation;
    form.show(conversation.settings);
    byId("messages").replaceChildren();
    this.views = [];
    this.following = true;
    for (const message of conversation.messages) this.add(message);
    if (conversation.messages.length === 0) byId("messages").append(this.welcome());
    const answer = this.running.get(conversation.id);
    if (answer) this.watch(answer, this.views.at(-1));
    this.drawList();
    this.busy();
  },

  welcome() {
    const { model } = server;
    if (model === null) return make("p", { class: "welcome quiet" }, "Write a message below.");
    const does = isRaw() ? `${model.id} has no chat template: it continues what you write.` : `Chat with ${model.id}.`;
    const room = model.max_model_len ? ` Its context has room for ${count(model.max_model_len, "token")}.` : "";
    return make("p", { class: "welcome quiet" }, does + room);
  },

  add(message) {
    byId("messages").querySelector(".welcome")?.remove();
    const view = new MessageView(this, message, isRaw());
    this.views.push(view);
    byId("messages").append(view.element);
    if (message !== this.running.get(this.conversation.id)?.message) view.ended();
    return view;
  },

  watch(answer, view) {
    view.element.setAttribute("aria-busy", "true");
    answer.view = view;
  },

  // Keeps the newest text in sight, unless the person has scrolled up.
  follow() {
    const place = byId("messages");
    if (this.following) place.scrollTop = place.scrollHeight;
  },

  drawList() {
    byId("conversations").replaceChildren(...this.store.list.map((one) => {
      const chosen = one.id === this.conversation.id;
      const open = button(one.title || "Untitled", () => {
        this.show(one);
        view.show("chat");
      }, { class: "open", "aria-current": chosen ? "true" : undefined });
      return make("li", {}, open, button("×", () => this.remove(one), { class: "small", "aria-label": `Delete ${one.title || "Untitled"}`, title: "Delete" }));
    }));
  },

  busy() {
    const running = this.running.has(this.conversation.id);
    byId("send").hidden = running;
    byId("stop").hidden = !running;
  },

  // -- changing ----

  save(conversation) {
    if (conversation.messages.length === 0) return;
    const saved = this.store.save(conversation);
    byId("unsaved").textContent = saved ? "" : "This conversation is too large for the browser's storage: export it, or begin another.";
  },

  remove(conversation) {
    this.running.get(conversation.id)?.stop();
    this.store.remove(conversation.id);
    if (conversation === this.conversation) this.show(this.store.list[0] ?? this.fresh());
    else this.drawList();
  },

  clear() {
    for (const answer of this.running.values()) answer.stop();
    this.store.clear();
    this.show(this.fresh());
  },

  send(content) {
    if (this.running.has(this.conversation.id) || (content === "" && !isRaw())) return false;
    return this.generate([{ role: "user", content }]);
  },

  edit(message, content) {
    this.generate([{ role: "user", content }], this.conversation.messages.indexOf(message));
  },

  regenerate(message) {
    this.generate([], this.conversation.messages.indexOf(message));
  },

  awaitsCalls(message) {
    return message.calls?.length > 0 && message === this.conversation.messages.at(-1) && message.finish === "tool_calls";
  },

  answerCalls(message, results) {
    this.generate(message.calls.map(({ id }, at) => ({ role: "tool", call: id, content: results[at] })));
    this.views[this.conversation.messages.indexOf(message)].drawCalls();
  },

  // Appends messages, and the model's answer to all. kept: the number of messages that stay; the others are dropped.
  // Returns false for settings that no request can have.
  generate(added, kept = this.conversation.messages.length) {
    const { conversation } = this;
    let request;
    try {
      request = requestOf({ ...conversation, messages: [...conversation.messages.slice(0, kept), ...added] }, server.model);
    } catch (error) {
      byId("settings").open = true;
      announce(error.message);
      return false;
    }
    this.stop();
    conversation.messages.length = kept;
    for (const gone of this.views.splice(kept)) gone.element.remove();
    for (const message of added) {
      conversation.messages.push(message);
      this.add(message);
    }
    conversation.title ||= (conversation.messages[0]?.content ?? "").trim().slice(0, 60);
    conversation.updated = Date.now();
    this.answer(conversation, request);
    return true;
  },

  async answer(conversation, request) {
    const several = server.models.length > 1 && server.model ? { model: server.model.id } : {};
    const message = { role: "assistant", content: "", ...several };
    const answer = new Answer(request, message);
    conversation.messages.push(message);
    this.running.set(conversation.id, answer);
    this.following = true;
    this.watch(answer, this.add(message));
    this.save(conversation);
    this.drawList();
    this.busy();
    this.follow();
    const saving = setInterval(() => this.save(conversation), SAVED_EACH);
    await answer.run();
    clearInterval(saving);
    if (this.running.get(conversation.id) === answer) this.running.delete(conversation.id);
    if (this.store.all.has(conversation.id)) this.save(conversation);
    if (server.models.length > 1) server.readModels(); // the request may have loaded one
    if (answer.view) announce(message.error ? "The answer failed" : message.finish === "stopped" ? "Stopped" : "Answered", false);
    this.busy();
  },

  stop() {
    const answer = this.running.get(this.conversation.id);
    answer?.stop();
    this.running.delete(this.conversation.id);
    this.busy();
  },

  // Ends all answers, also where the browser keeps the page to come back to.
  leave() {
    for (const [id, answer] of this.running) {
      answer.stop();
      answer.message.finish = "stopped";
      this.save(this.store.all.get(id));
    }
  },

  curl() {
    const content = byId("text").value;
    const next = content ? [{ role: "user", content }] : [];
    const said = this.conversation.messages.at(-1)?.role === "assistant" && !next.length ? this.conversation.messages.slice(0, -1) : this.conversation.messages;
    try {
      byId("command").textContent = curlOf(requestOf({ ...this.conversation, messages: [...said, ...next] }, server.model));
      byId("curl-dialog").showModal();
    } catch (error) {
      announce(error.message);
    }
  },
};

// Whether the model continues texts, because it was given no form of conversations.
const isRaw = () => server.model?.chat === false;

// Which parts show: on narrow screens one at a time, on wide ones the X-ray beside the chat, unless it is closed. The
// engine looks at itself only while somebody watches, so the X-ray runs only where it can be seen.
const view = {
  BESIDE: "gradus.beside",

  start() {
    document.body.dataset.beside = localStorage.getItem(this.BESIDE) ?? "yes";
    this.show("chat");
    for (const width of [760, 1199]) matchMedia(`(max-width: ${width}px)`).addEventListener("change", () => this.watch());
  },

  show(name) {
    document.body.dataset.view = name;
    for (const each of document.querySelectorAll("[data-show]")) each.setAttribute("aria-pressed", String(each.dataset.show === name));
    this.watch();
  },

  toggle() {
    const beside = document.body.dataset.beside === "yes" ? "no" : "yes";
    document.body.dataset.beside = beside;
    localStorage.setItem(this.BESIDE, beside);
    this.watch();
  },

  watch() {
    const place = byId("xray"), seen = getComputedStyle(place).display !== "none";
    byId("beside").setAttribute("aria-pressed", String(seen));
    if (seen) this.xray ??= startXray(place, (signal, path) => ask(path.slice(1), { signal, quietly: true }));
    else this.stop();
  },

  stop() {
    this.xray?.stop();
    this.xray = null;
  },

  // With another key, it may see other things.
  watchAgain() {
    this.stop();
    this.watch();
  },
};

// -- keys and buttons ---------------------------------------------------------------------------------------------------

function composer() {
  const area = byId("text");
  const grow = () => {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight / 3)}px`;
  };
  const send = () => {
    if (!chat.send(area.value)) return;
    area.value = "";
    grow();
  };
  area.addEventListener("input", grow);
  area.addEventListener("keydown", (event) => {
    if (!sends(event)) return;
    event.preventDefault();
    send();
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("stop").addEventListener("click", () => chat.stop());
  byId("curl").addEventListener("click", () => chat.curl());
  byId("curl-row").prepend(copyButton(() => byId("command").textContent));
}

function list() {
  const file = byId("file");
  byId("new").addEventListener("click", () => {
    chat.show(chat.fresh());
    view.show("chat");
    byId("text").focus();
  });
  byId("export").addEventListener("click", () => saveFile("gradus-conversations.json", chat.store.export()));
  byId("import").addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    try {
      announce(`${count(chat.store.import(await file.files[0].text()), "conversation")} imported`);
      chat.drawList();
    } catch (error) {
      announce(`Not imported: ${error.message}`);
    }
    file.value = "";
  });
  byId("clear").addEventListener("click", () => confirm("Delete all conversations from this browser?") && chat.clear());
}

function everywhere() {
  const messages = byId("messages");
  messages.addEventListener("scroll", () => (chat.following = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 40));
  for (const each of document.querySelectorAll("[data-show]")) each.addEventListener("click", () => view.show(each.dataset.show));
  byId("beside").addEventListener("click", () => view.toggle());
  for (const each of document.querySelectorAll("[data-close]")) each.addEventListener("click", () => each.closest("dialog").close());
  addEventListener("keydown", (event) => event.key === "Escape" && !document.querySelector("dialog[open]") && chat.stop());
  addEventListener("pagehide", () => chat.leave());
  addEventListener("storage", (event) => {
    if (!event.key?.startsWith(PREFIX) || event.key === PREFIX + chat.conversation.id) return;
    chat.store.all.delete(event.key.slice(PREFIX.length));
    if (event.newValue !== null) chat.store.load(event.key);
    chat.drawList();
  });
}

composer();
list();
everywhere();
form.start((settings) => (chat.conversation.settings = settings), () => chat.save(chat.conversation));
keyDialog.start(() => {
  server.readModels();
  view.watchAgain();
});
chat.start();
view.start();
if (matchMedia("(hover: hover)").matches) byId("text").focus(); // elsewhere a keyboard would cover the page
server.start(() => {
  form.suit(server.model);
  byId("text").placeholder = isRaw() ? "Text to continue" : "Message";
  if (chat.running.size === 0) chat.show(chat.conversation);
});
