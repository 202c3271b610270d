// -- the server's state, and the models that it serves ------------------------------------------------------------------

const SOON = 2000, LATER = 15000; // milliseconds between questions: while something changes, and otherwise

const server = {
  models: [],
  ready: false,

  // changed: called when the models, or the chosen one, have changed.
  start(changed) {
    this.changed = changed;
    byId("model").addEventListener("change", changed);
    document.addEventListener("visibilitychange", () => document.hidden || this.look());
    this.look();
  },

  get model() {
    return this.models.find(({ id }) => id === byId("model").value) ?? null;
  },

  // Asks for the state, and asks again.
  async look() {
    clearTimeout(this.timer);
    let health = { status: "unreachable", reason: "the server does not answer" };
    try {
      health = await (await fetch("health", { cache: "no-store", credentials: "omit" })).json();
    } catch { /* as above */ }
    const wasReady = this.ready;
    this.ready = ["ready", "asleep"].includes(health.status);
    this.say(health);
    if (this.ready && (!wasReady || this.models.length !== 1)) await this.readModels(); // states of several change
    if (!document.hidden) this.timer = setTimeout(() => this.look(), this.ready ? LATER : SOON);
  },

  say({ status, reason, progress }) {
    const place = byId("state");
    place.dataset.state = status;
    place.textContent = [status, status !== reason && reason, progress && progressed(progress)].filter(Boolean).join(" · ");
  },

  async readModels() {
    try {
      this.list((await askJson("v1/models", { quietly: true })).data);
    } catch (error) {
      byId("state").textContent = wordsOf(error);
    }
  },

  list(models) {
    const select = byId("model"), chosen = select.value, before = this.known;
    this.models = models;
    this.known = JSON.stringify(models.map(({ id, chat }) => [id, chat]));
    select.replaceChildren(...models.map(({ id, state }) => make("option", { value: id }, state && state !== "ready" ? `${id} (${state})` : id)));
    if (models.some(({ id }) => id === chosen)) select.value = chosen;
    select.disabled = models.length === 0;
    if (this.known !== before) this.changed();
  },
};

// "weights 40 % (12 s)", from what a load reports of itself.
function progressed({ stage, done, total, seconds: took }) {
  const share = total ? `${Math.floor((100 * done) / total)} %` : "";
  return [stage, share, took ? `(${Math.round(took)} s)` : ""].filter(Boolean).join(" ");
}
