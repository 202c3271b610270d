// Draws a recording: every part of the page is drawn again from the frame that is shown.

const PEOPLE = ["Ann", "Ben", "Cy"]; // the lessons' three: each has a color in every scene
const KINDS = [ // of events, in the order of their buttons: kind, name, key
  ["admission", "admission", "a"], ["waiting", "waiting", "q"], ["hit", "prefix hit", "h"], ["chunk", "chunk", "c"], ["preemption", "preemption", "p"],
  ["drafts", "drafts verified", "d"], ["grammar", "forced or cut", "m"], ["split", "node split", "s"], ["eviction", "eviction", "v"],
  ["fetch", "fetched from the host", "u"], ["lost", "left the host", "l"],
  ["padding", "padding", "g"], ["vain", "row in vain", "w"], ["ending", "ending", "e"],
  ["failure", "failure", "f"],
];
const ENDED = { length: "has all its tokens", stop: "ended by the model", cancelled: "cancelled", error: "failed" };
const SHOWN_TOKENS = 14; // of one span in the plan

// -- small helpers ----------------------------------------------------------------------------------------------------

const initial = (id) => id.replace(/^([A-Z])[a-z]+ ?/, "$1"); // Ann 2: A2
const tokensOf = (frame) => sum(frame.spans.map((span) => span.tokens.length));

// -- one recording ----------------------------------------------------------------------------------------------------

class Run {
  constructor(recording) {
    this.recording = recording;
    this.frames = recording.frames;
    this.color = Object.fromEntries(recording.sequences.map(({ id }, i) => [id, COLORS[(PEOPLE.includes(id) ? PEOPLE.indexOf(id) : i) % COLORS.length]]));
    this.lit = new Set();
    this.follow();
    this.bySlot = recordings.every(({ frames, settings }) => !frames[0].pages && settings.max_sequences > 1);
    this.build();
  }

  // What each frame adds to what came before it: lengths, states, stored positions.
  follow() {
    const known = Object.fromEntries(this.recording.sequences.map(({ id, prompt }) => [id, [...prompt]]));
    const ended = {}, stored = {}, started = new Set();
    this.slotCount = this.recording.settings.max_sequences || 0;
    this.states = this.frames.map((frame) => {
      for (const span of frame.spans) {
        stored[span.id] = span.start + span.tokens.length;
        started.add(span.id);
        this.slotCount = Math.max(this.slotCount, span.slot + 1);
      }
      for (const [id, tokens] of Object.entries(frame.outputs)) known[id] = [...known[id], ...tokens];
      Object.assign(ended, frame.ended);
      return { known: { ...known }, ended: { ...ended }, stored: { ...stored }, started: new Set(started) };
    });
    this.padded = this.frames.some((frame) => frame.rows > tokensOf(frame));
    this.ahead = this.frames.some((frame) => frame.in_flight.length);
    this.paged = this.frames.some((frame) => frame.pages);
    this.indexed = this.frames.some((frame) => frame.tree);
    this.tiered = this.frames.some((frame) => frame.host);
    this.masks = Math.max(...this.frames.map((frame) => frame.masks.length)); // the most of a step
    this.experts = this.frames.map((frame) => frame.experts).find(Boolean); // their number, and the layer
    this.kernels = Math.max(...this.frames.map((frame) => frame.kernels.length)); // the most of a step
    this.forgets = this.frames.some((frame) => frame.spans.some((span) => span.kind === "recompute")); // no cache
  }

  build() {
    const panel = (title, part, said) => card(title, part, this.parts[part], said);
    const part = (tag, attributes) => make(tag, attributes);
    this.parts = {
      events: part("div", { "aria-live": "polite" }), sequences: part("div"), plan: part("div", { class: "scroll" }), batch: part("div", { class: "scroll" }),
      slots: part("div", { class: this.paged || this.forgets ? "slots" : "slots metered" }), pool: part("div"), tables: part("div", { class: "scroll" }), tree: part("div", { class: "scroll" }), host: part("div"),
      timeline: part("div", { class: "scroll" }), masks: part("div", { class: "scroll" }), experts: part("div", { class: "scroll" }), kernels: part("div", { class: "scroll" }),
    };
    const { parts } = this;
    const toggle = make("button", { type: "button", "aria-pressed": String(this.bySlot), onclick: () => this.turn(toggle) }, "by slot");
    const settings = Object.entries(this.recording.settings).map(([name, value]) => make("span", {}, `${name} ${value}`));
    this.element = make("article", { class: "run" },
      make("div", {},
        make("h2", {}, this.recording.title),
        make("div", { class: "facts" }, make("span", {}, `model ${this.recording.model}`), ...settings,
          this.recording.cut ? make("span", {}, `the first ${plural(this.frames.length, "step")}; the run went on`) : null)),
      make("section", { class: "card", "data-part": "timeline" },
        make("div", { class: "row heading" }, make("h3", {}, "Timeline"), toggle), parts.timeline, this.legend()),
      make("div", { class: "panels" },
        make("div", {}, panel("In this step", "events"), panel("Sequences", "sequences"), panel("Plan", "plan", "its spans")),
        make("div", {}, panel("Rows of the batch", "batch", "each with its position"), panel("Slots", "slots"),
          this.paged ? panel("Page pool", "pool") : null, this.paged ? panel("Block tables", "tables", "entry i: the page of positions i · page size and on") : null,
          this.masks ? panel("Masks", "masks", "what each draw may choose from") : null,
          this.experts ? panel("Experts", "experts", `of layer ${this.experts.layer}, and the tokens that each takes`) : null,
          this.kernels ? panel("Kernels", "kernels", "in all layers of this step") : null,
          this.indexed ? panel("Radix tree", "tree", "pages, and the tokens on them") : null,
          this.tiered ? panel("Host memory", "host", "the tokens of evicted pages, the next to leave first") : null)));
    if (COMPACT) for (const each of this.element.querySelectorAll("[data-part]"))
      each.hidden = !["timeline", "events", ...this.recording.panels].includes(each.dataset.part);
    this.drawTimeline();
  }

  get most() { return Math.max(...this.frames.map((frame) => frame.spans.length)); }

  word(token) {
    if (token < 0) return "?";
    const text = this.recording.words[token];
    return text === undefined ? `#${token}` : text;
  }
  text(tokens) {
    return tokens.map((token) => this.word(token)).join(this.hasWords ? "" : " ").replaceAll("\n", "⏎");
  }
  get hasWords() { return Object.keys(this.recording.words).length > 0; }
  chip(id) { return make("span", { class: "chip", of: this.color[id] || "#ccc" }, id); }

  token(token, extra, page) {
    const shown = this.word(token).replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ /, "␣").replace(/ $/, "␣");
    const title = token < 0 ? "only the device knows it yet" : `token ${token}`;
    return make("span", { class: `token ${token < 0 ? "unknown" : ""} ${extra}`, title, ...page }, shown || "∅");
  }

  // -- showing a frame

  show(step) {
    const focused = this.parts.pool.contains(document.activeElement);
    const index = Math.min(step, this.frames.length - 1);
    const frame = this.frames[index], state = this.states[index], before = this.frames[index - 1];
    this.element.classList.toggle("over", step > index);
    this.showEvents(frame);
    this.showSequences(frame, state);
    this.showPlan(frame);
    this.showBatch(frame);
    this.showSlots(frame, state);
    if (this.paged) this.showPages(frame, before);
    if (this.indexed) this.showTree(frame);
    if (this.tiered) this.showHost(frame, before);
    if (this.masks) this.showMasks(frame);
    if (this.experts) this.showExperts(frame);
    if (this.kernels) this.showKernels(frame);
    this.mark(index);
    this.light(this.lit);
    if (focused) this.stop.focus({ preventScroll: true });
  }

  showEvents(frame) {
    this.parts.events.replaceChildren(make("p", { class: "quiet" }, this.doing(frame)),
      make("ul", { class: "events" }, ...frame.events.map((event) => happened(event, this.recording.code))));
  }
  settle() { // room for the step with the most to say, so that what is below stays in its place
    this.parts.events.style.minHeight = "";
    const heights = this.frames.map((frame) => { this.showEvents(frame); return this.parts.events.offsetHeight; });
    this.parts.events.style.minHeight = `${Math.max(...heights)}px`;
  }

  doing(frame) {
    if (frame.failed) return frame.plan === null ? "The engine broke before it had a plan. Its state is that of the step before." : `The engine broke in step ${frame.plan}.`;
    if (over(frame)) return "All sequences have ended. This is what is left.";
    if (!this.ahead) return COMPACT && frame.events.length ? "" : `Step ${frame.plan}: planned, run, and recorded.`;
    const made = frame.plan === null ? "There is nothing left to plan." : `Plan ${frame.plan} is made and launched.`;
    const got = frame.committed === null ? "No result is recorded yet." : `Only then is the result of plan ${frame.committed} recorded.`;
    const flying = frame.in_flight.length ? `Still in flight: plan ${frame.in_flight.join(", ")}.` : "Nothing is in flight.";
    return `${made} ${got} ${flying}`;
  }

  showSequences(frame, state) {
    const lines = this.recording.sequences.map(({ id, prompt, at }) => {
      const fresh = (frame.outputs[id] || []).length, tokens = state.known[id];
      const arrived = frame.running.includes(id) || frame.waiting.includes(id) || id in state.ended || state.started.has(id);
      return make("div", { class: `sequence ${arrived ? "" : "later"}` }, this.chip(id),
        make("span", { class: "badge", title: frame.waits[id] || "" }, this.stateOf(id, frame, state, arrived, at)),
        make("span", { class: "text" }, make("span", { class: "prompt" }, this.text(prompt)),
          this.text(tokens.slice(prompt.length, tokens.length - fresh)),
          fresh ? make("span", { class: "new" }, this.text(tokens.slice(-fresh))) : null));
    });
    this.parts.sequences.replaceChildren(...lines);
  }

  stateOf(id, frame, state, arrived, at) {
    if (id in state.ended) return ENDED[state.ended[id]] || state.ended[id];
    if (frame.running.includes(id)) return "running";
    if (frame.preempted.includes(id)) return "preempted";
    if (frame.waiting.includes(id)) return state.started.has(id) ? "waiting again" : "waiting";
    return arrived ? "running" : `arrives at step ${at}`;
  }

  showPlan(frame) {
    const head = ["sequence", "slot", "kind", "start", "tokens", "", "logits"];
    const numeric = new Set([1, 3, 4, 6]);
    const row = (cells, tag = "td", extra = "") => make("tr", {}, ...cells.map((cell, i) =>
      make(tag, { class: `${numeric.has(i) ? "number" : ""} ${extra}` }, cell)));
    const rows = frame.spans.map((span) => row([
      this.chip(span.id), String(span.slot), span.kind, String(span.start), String(span.tokens.length), this.spanTokens(frame, span), String(span.logits)]));
    while (rows.length < this.most) rows.push(row(Array(7).fill("\u00a0"), "td", "blank"));
    this.parts.plan.replaceChildren(make("table", {}, make("thead", {}, row(head, "th")), make("tbody", {}, ...rows)),
      make("p", { class: "quiet note" }, "start: the position of the first token. logits: the rows that a token is sampled from; 0 where more of the prompt follows."));
  }

  spanTokens(frame, span) {
    const shown = span.tokens.slice(0, SHOWN_TOKENS).map((token, i) => this.token(token, this.fate(span, i), this.pageAt(frame, span, i)));
    const left = span.tokens.length - shown.length;
    return make("span", {}, ...shown, left > 0 ? make("span", { class: "quiet" }, ` and ${left} more`) : null);
  }
  fate(span, i) {
    if (span.kind !== "verify" || i === 0 || span.accepted === undefined) return "";
    return i <= span.accepted ? "kept" : "wrong";
  }

  showMasks(frame) {
    const row = (cells, tag = "td", extra = "") => make("tr", {}, ...cells.map((cell, i) => make(tag, { class: `${i === 1 || i === 2 ? "number" : ""} ${extra}` }, cell)));
    const share = (p) => p > 0.9995 ? "100%" : p < 0.00001 ? "< 0.001%" : `${(100 * p).toPrecision(p < 0.1 ? 2 : 3)}%`;
    const gone = (removed) => make("span", {}, ...removed.map(([token, p]) => this.token(token, "wrong", { title: `${share(p)} without the mask` })));
    const left = (legal, likeliest) => make("span", { title: `the likeliest: ${likeliest.map((token) => this.word(token)).join("  ")}` }, legal.toLocaleString("en"));
    const rows = frame.masks.map(({ id, legal, probability, likeliest, drawn, freely, removed }) =>
      row([this.chip(id), left(legal, likeliest), share(probability), this.token(drawn, "", {}), this.token(freely, "", {}), gone(removed)]));
    while (rows.length < this.masks) rows.push(row(Array(6).fill("\u00a0"), "td", "blank"));
    this.parts.masks.replaceChildren(make("table", {}, make("thead", {}, row(["sequence", "may come", "probability", "drawn", "freely", "removed"], "th")), make("tbody", {}, ...rows)),
      make("p", { class: "quiet note" }, "may come: how many tokens. probability: what the model gives all of them together. freely: the token that it would choose without the mask. removed: the likeliest tokens that may not come."));
  }

  showExperts(frame) {
    const rows = frame.experts ? frame.experts.rows : [];
    const places = frame.spans.flatMap((span) => span.tokens.map((_, i) => [span, i])); // of the batch's rows
    const lines = Array.from({ length: this.experts.count }, (_, expert) => {
      const cells = places.filter((_, row) => (rows[row] || []).includes(expert)).map(([span, i]) => this.cell(frame, span, i));
      return make("tr", {}, make("td", { class: "number" }, String(expert)), make("td", {}, make("div", { class: "cells" }, ...cells)));
    });
    const read = new Set(rows.flat()).size;
    this.parts.experts.replaceChildren(make("table", {}, make("tbody", {}, ...lines)),
      make("p", { class: "quiet note" }, rows.length ? `${plural(rows.length, "row")}: ${read} of ${plural(this.experts.count, "expert")} are read. The others' weights stay where they are.` : "Nothing runs."));
  }

  showKernels(frame) {
    const row = (cells, tag = "td", extra = "") => make("tr", {}, ...cells.map((cell, i) => make(tag, { class: `${i ? "number" : ""} ${extra}` }, cell)));
    const counted = [["launches", "launches"], ["programs", "programs"], ...(COMPACT ? [] : [["read", "bytes read"], ["most", "most"]])];
    const rows = frame.kernels.map((kernel) => row([kernel.name.replace(/_kernel$/, ""), ...counted.map(([count]) => kernel[count].toLocaleString("en"))]));
    while (rows.length < this.kernels) rows.push(row(["\u00a0", ...counted.map(() => "\u00a0")], "td", "blank"));
    this.parts.kernels.replaceChildren(make("table", {}, make("thead", {}, row(["kernel", ...counted.map(([, title]) => title)], "th")), make("tbody", {}, ...rows)),
      make("p", { class: "quiet note" }, "programs: of all launches together. most: the bytes that the longest program reads."));
  }

  showBatch(frame) {
    const tokens = tokensOf(frame), padding = Math.max(0, (frame.rows || 0) - tokens);
    const said = frame.rows === null ? (tokens ? `${plural(tokens, "token")}, without a result.` : "Nothing runs.") : `${plural(frame.rows, "row")}: ${plural(tokens, "token")}` +
      (this.padded ? ` and ${padding} of padding` : "");
    const lines = this.padded ? this.slotCount : Math.ceil(Math.max(...this.frames.map((one) => one.rows || 0)) / 20);
    this.parts.batch.style.minHeight = `${lines * 23 + 30}px`; // so that what is below stays in its place
    this.parts.batch.replaceChildren(...(this.padded ? this.rectangle(frame) : [this.strip(frame, padding)]),
      make("p", { class: "quiet" }, said));
  }
  pageAt(frame, span, i) { // of the span's i-th token
    const table = (frame.tables[span.id] || [])[0], size = this.recording.settings.page_size;
    const page = table && size ? table[Math.floor((span.start + i) / size)] : 0;
    return page ? { "data-page": page } : {};
  }
  cell(frame, span, i) {
    const position = span.start + i;
    return make("span", { class: "cell", of: this.color[span.id], ...this.pageAt(frame, span, i), title: `${span.id}, position ${position}: ${this.word(span.tokens[i])}` }, String(position));
  }
  pad() { return make("span", { class: "cell padding", title: "padding" }); }
  strip(frame, padding) {
    const cells = frame.spans.flatMap((span) => span.tokens.map((_, i) => this.cell(frame, span, i)));
    return make("div", { class: "cells" }, ...cells, ...Array.from({ length: padding }, () => this.pad()));
  }
  rectangle(frame) { // one line per slot, each as wide as the widest span
    const width = Math.max(0, ...frame.spans.map((span) => span.tokens.length));
    const lines = width ? frame.rows / width : 0;
    if (!Number.isInteger(lines)) return [this.strip(frame, frame.rows - tokensOf(frame))];
    return Array.from({ length: lines }, (_, slot) => {
      const span = frame.spans.find((one) => one.slot === slot);
      const cells = Array.from({ length: width }, (_, i) => (span && i < span.tokens.length ? this.cell(frame, span, i) : this.pad()));
      return make("div", { class: "line" }, make("span", { class: "name" }, `slot ${slot}`), ...cells);
    });
  }

  showSlots(frame, state) {
    const bySlot = this.slotsAt(frame), room = this.recording.context;
    this.parts.slots.replaceChildren(...Array.from({ length: this.slotCount }, (_, slot) => {
      const id = bySlot[slot], stored = id ? state.stored[id] : 0;
      const share = this.paged || this.forgets ? null : make("i", { of: id ? this.color[id] : "none", wide: `${(100 * stored) / room}%` });
      const meter = this.paged || this.forgets ? null : make("span", { class: "meter", title: `${stored} of ${room} positions` }, share);
      const said = id ? (this.forgets ? "keeps nothing" : plural(stored, "position")) : "";
      return make("div", { class: "slot" }, make("span", { class: "quiet" }, `slot ${slot}`),
        id ? this.chip(id) : make("span", { class: "chip plain" }, "–"), meter, make("span", { class: "quiet" }, id ? said : "free"));
    }));
  }
  slotsAt(frame) { // the latest slot of each running sequence, also of one that has no span in this step
    const found = {};
    for (const one of this.frames.slice(0, frame.number))
      for (const span of one.spans) if (frame.running.includes(span.id)) {
        for (const slot of Object.keys(found)) if (found[slot] === span.id) delete found[slot];
        found[span.slot] = span.id;
      }
    return found;
  }

  // -- pages

  holders(frame) {
    const held = {};
    for (const [id, tables] of Object.entries(frame.tables))
      for (const page of new Set(tables.flat())) if (page) (held[page] ||= []).push(id);
    return held;
  }
  indexedPages(frame) {
    const pages = new Set();
    const walk = (nodes) => nodes.forEach((node) => { node.pages.forEach((page) => pages.add(page)); walk(node.children); });
    walk(frame.tree || []);
    return pages;
  }
  pageBox(page, held, indexed, taken, small = false) {
    const owners = held[page] || [];
    const kind = owners.length ? "held" : indexed.has(page) ? "idle" : "free";
    const said = owners.length ? `held by ${owners.join(" and ")}` : kind === "idle" ? "idle: only the tree keeps it" : "free";
    const stripes = owners.map((id, i) => `${this.color[id]} ${(100 * i) / owners.length}% ${(100 * (i + 1)) / owners.length}%`);
    const of = owners.length ? `linear-gradient(90deg, ${stripes.join(", ")})` : "none";
    return make("span", { class: `page ${kind} ${taken ? "taken" : ""}`, of, "data-page": page, title: `page ${page}: ${said}` },
      String(page), small || !owners.length ? null : make("small", {}, owners.length > 1 ? owners.map(initial).join(" ") : owners[0]));
  }
  showPages(frame, before) {
    const held = this.holders(frame), indexed = this.indexedPages(frame), earlier = before ? this.holders(before) : {};
    const { total, held: count, idle, free } = frame.pages;
    const boxes = Array.from({ length: total }, (_, i) =>
      this.pageBox(i + 1, held, indexed, (held[i + 1] || []).some((id) => !(earlier[i + 1] || []).includes(id))));
    this.stop = boxes[Math.max(0, [...this.lit].map(Number)[0] - 1)] || boxes[0];
    for (const box of boxes) { box.setAttribute("role", "option"); box.tabIndex = box === this.stop ? 0 : -1; }
    this.parts.pool.replaceChildren(make("div", { class: "pool", role: "listbox", "aria-label": "Pages: up and down arrows point at one" }, ...boxes), make("div", { class: "legend" },
      make("span", {}, `${plural(total, "page")}: ${count} held`), this.indexed ? entry("idle", `${idle} idle`) : null,
      entry("free", `${free} free`), entry("taken", "new to a sequence in this step")));
    const lines = frame.running.map((id) => make("div", { class: "line" }, this.chip(id),
      ...(frame.tables[id] || []).flatMap((table) => table.map((page) => this.pageBox(page, held, indexed, false, true)))
        .map((box) => { box.classList.add("number"); return box; })));
    this.parts.tables.replaceChildren(...(lines.length ? lines : [make("p", { class: "quiet" }, "No sequence runs.")]));
  }
  light(pages) { // wherever one of them is drawn
    this.lit = pages;
    for (const each of this.element.querySelectorAll("[data-page]")) each.classList.toggle("lit", pages.has(each.dataset.page));
  }
  point(by) { // to the next page of the pool, by keyboard
    const boxes = [...this.parts.pool.querySelectorAll(".page")];
    const box = boxes[(boxes.indexOf(this.stop) + by + boxes.length) % boxes.length];
    this.stop.tabIndex = -1;
    this.stop = box;
    box.tabIndex = 0;
    box.focus();
  }
  showTree(frame) {
    const held = this.holders(frame), indexed = this.indexedPages(frame);
    const list = (nodes, top) => make("ul", top ? { class: "tree" } : {}, ...nodes.map((node) => make("li", {},
      make("span", { class: "node" }, ...this.leaves(node, held, indexed)), node.children.length ? list(node.children) : null)));
    const tree = frame.tree || [];
    this.parts.tree.replaceChildren(tree.length ? list(tree, true) : make("p", { class: "quiet" }, "The tree is empty."));
  }
  showHost(frame, before) {
    const earlier = new Set((before && before.host ? before.host : []).map(({ name }) => name));
    const page = ({ name, tokens }) => make("li", { class: earlier.has(name) ? "leaf" : "leaf taken" }, this.text(tokens));
    this.parts.host.replaceChildren(frame.host.length ? make("ol", { class: "host" }, ...frame.host.map(page))
      : make("p", { class: "quiet" }, "Nothing has moved down."), make("div", { class: "legend" }, entry("taken", "moved down in this step")));
  }
  leaves(node, held, indexed) { // each page of the node, with the text of its tokens
    const size = node.tokens.length / node.pages.length;
    return node.pages.map((page, i) => make("span", { class: "leaf" }, this.pageBox(page, held, indexed, false, true),
      this.text(node.tokens.slice(i * size, (i + 1) * size))));
  }

  // -- the timeline

  turn(button) {
    this.bySlot = !this.bySlot;
    button.setAttribute("aria-pressed", String(this.bySlot));
    this.drawTimeline();
    this.mark(Math.min(now, this.frames.length - 1));
  }

  drawTimeline() {
    const H = COMPACT ? 20 : 24, LEFT = 46, TOP = 18, BARS = COMPACT ? 36 : 46;
    const room = COMPACT ? window.innerWidth - 110 : recordings.length > 1 ? 540 : 1180;
    const W = Math.max(COMPACT ? 17 : 22, Math.min(44, Math.floor(room / LONGEST))); // the same in both
    const names = this.bySlot ? Array.from({ length: this.slotCount }, (_, i) => `slot ${i}`) : this.recording.sequences.map(({ id }) => id);
    const low = TOP + names.length * H, height = low + 8 + BARS + 4, width = LEFT + this.frames.length * W + 4;
    const x = (step) => LEFT + step * W;
    this.nowBox = draw("rect", { class: "now", y: 1, width: W, height: height - 2, rx: 4 });
    const shapes = [draw("defs", {}, draw("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, draw("path", { d: "M0,0 V5" }))), this.nowBox];
    names.forEach((name, i) => shapes.push(draw("text", { x: 0, y: TOP + i * H + H / 2 + 4 }, name),
      draw("line", { class: "grid", x1: LEFT, x2: width - 4, y1: TOP + (i + 1) * H, y2: TOP + (i + 1) * H })));
    const most = Math.max(1, ...this.frames.map((frame) => frame.rows || 0));
    shapes.push(draw("text", { x: 0, y: low + 20 }, "rows"));
    this.frames.forEach((frame, step) => {
      if (!over(frame) && (step === 0 || frame.number % 5 === 0)) shapes.push(draw("text", { class: "tick", x: x(step) + W / 2, y: 13 }, String(frame.number)));
      shapes.push(...this.column(frame, x(step), TOP, W, H), ...this.bars(frame, x(step), low + 8, W, BARS, most));
      shapes.push(draw("rect", { class: "hit", x: x(step), y: 0, width: W, height, onclick: () => go(step) }, draw("title", {}, this.summary(frame))));
    });
    this.cover = draw("rect", { class: "cover", y: 0, height });
    shapes.push(this.cover);
    const label = `Timeline of ${plural(this.frames.length, "step")}: which sequences ran in which step, and the rows of each step`;
    this.parts.timeline.replaceChildren(draw("svg", { width, height, role: "img", "aria-label": label }, ...shapes));
    this.place = (step) => ({ left: x(step), width: W, rest: width - x(step) - W });
  }

  column(frame, x, top, W, H) {
    const row = (id, slot) => top + H * (this.bySlot ? slot : this.recording.sequences.findIndex((one) => one.id === id));
    const shapes = [];
    const end = (y) => draw("rect", { class: "end", x: x + W - 5, y: y + 2, width: 4, height: H - 4 });
    if (!this.bySlot) for (const id of Object.keys(frame.ended))
      if (!frame.spans.some((span) => span.id === id)) shapes.push(end(row(id)));
    if (!this.bySlot) for (const id of frame.waiting) {
      const y = row(id) + H / 2;
      shapes.push(draw("line", { class: "wait", x1: x + 2, x2: x + W - 2, y1: y, y2: y }));
      if (frame.preempted.includes(id)) shapes.push(draw("path", { class: "out", d: `M${x + 7},${y - 5} l10,10 m0,-10 l-10,10` }));
    }
    if (this.bySlot && this.padded) for (const slot of this.idle(frame))
      shapes.push(draw("rect", { class: "pad", x: x + 2, y: row("", slot) + 7, width: W - 4, height: H - 14, rx: 3 }));
    for (const span of frame.spans) {
      const y = row(span.id, span.slot), small = span.kind === "decode", inset = !small ? 3 : this.bySlot ? H / 2 - 5.5 : H / 3 - 1; // by slot it has a name on it
      shapes.push(draw("rect", { class: `span ${span.kind}`, x: x + 2, y: y + inset, width: W - 4, height: H - 2 * inset, rx: 3, fill: this.color[span.id] }));
      const said = this.bySlot ? span.id : small ? "" : String(span.tokens.length);
      if (said) shapes.push(draw("text", { class: "inside", x: x + W / 2, y: y + H / 2 + 4 }, said));
      if (span.id in frame.ended) shapes.push(end(y));
    }
    return shapes;
  }

  idle(frame) { // slots whose rows are padding alone
    const width = Math.max(1, ...frame.spans.map((span) => span.tokens.length)), lines = (frame.rows || 0) / width;
    return Array.from({ length: Number.isInteger(lines) ? lines : 0 }, (_, slot) => slot).filter((slot) => !frame.spans.some((span) => span.slot === slot));
  }

  bars(frame, x, top, W, height, most) {
    if (!frame.rows) return [];
    const tokens = Math.min(tokensOf(frame), frame.rows), scale = (height - 12) / most;
    const real = Math.max(1, tokens * scale), pad = (frame.rows - tokens) * scale;
    const bottom = top + height;
    return [draw("rect", { class: "real", x: x + 4, y: bottom - real, width: W - 8, height: real }),
      pad ? draw("rect", { class: "pad", x: x + 4, y: bottom - real - pad, width: W - 8, height: pad }) : null,
      draw("text", { class: "tick", x: x + W / 2, y: bottom - real - pad - 2 }, String(frame.rows))].filter(Boolean);
  }

  summary(frame) {
    const spans = frame.spans.map((span) => `${span.id}: ${span.kind}, ${plural(span.tokens.length, "token")} from position ${span.start}`);
    return [over(frame) ? "the end" : `step ${frame.number}`, ...spans, ...frame.waiting.map((id) => `${id} waits${frame.waits[id] ? `: ${frame.waits[id]}` : ""}`)].join("\n");
  }

  legend() {
    const used = new Set(this.frames.flatMap((frame) => frame.spans.map((span) => span.kind)));
    const some = (test) => this.frames.some(test);
    const mark = (name, text) => entry(`key ${name}`, text);
    const tall = ["prefill", "recompute", "verify"].filter((kind) => used.has(kind));
    return make("div", { class: "legend" },
      tall.length ? mark("tall", `${tall.join(", ")}: tokens of the span`) : null, used.has("chunk") ? mark("tall chunk", "chunk of a prompt: tokens") : null,
      used.has("decode") ? mark("low", "decode: 1 token") : null, !(COMPACT && this.bySlot) && some((frame) => frame.waiting.length) ? mark("dots", "waiting") : null,
      some((frame) => frame.preempted.length) ? mark("cross", "preempted") : null,
      mark("end", this.ahead ? "ended: its last result is recorded, one step after its last span" : "ended"),
      this.padded ? mark("padding", "padding") : null, mark("bar", "rows of the step"));
  }

  mark(step) {
    const { left, width, rest } = this.place(step);
    this.cover.setAttribute("x", left + width + 1);
    this.cover.setAttribute("width", predicting ? rest : 0);
    this.nowBox.setAttribute("x", left);
    const box = this.parts.timeline;
    if (left < box.scrollLeft + 50 || left + width > box.scrollLeft + box.clientWidth) box.scrollLeft = left - box.clientWidth / 2;
  }
}
