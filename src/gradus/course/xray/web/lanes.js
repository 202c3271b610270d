// Draws a run of several workers on one axis of time: lanes, what happens, and a table.

const KINDS = [ // of events, in the order of their buttons: kind, name, key
  ["way", "next cut", "n"], ["computes", "reads weights", "w"], ["exchanges", "exchange", "x"], ["stage", "stage", "g"], ["rows", "rows arrive", "r"], ["waits", "wait", "q"],
  ["asks", "request sent", "a"], ["enters", "request entered", "e"], ["taken", "request taken", "t"], ["step", "step", "s"], ["text", "text", "m"], ["reads", "frame read", "f"],
];
const LEFT = 84, TOP = 8, LANE = 38, AXIS = 24, LEAST = 480; // of the drawing, in pixels
const TICKS = 8;

class Run {
  constructor(recording) {
    this.recording = recording;
    this.frames = recording.frames;
    this.parts = { timeline: make("div", { class: "scroll" }), name: make("p", { class: "act" }), events: make("div", { "aria-live": "polite" }),
      table: make("div", { class: "scroll log" }), pool: make("div") };
    this.build();
  }

  build() {
    const { recording, parts } = this;
    const settings = Object.entries(recording.settings).map(([name, value]) => make("span", {}, `${name}: ${value}`));
    this.element = make("article", { class: "run" },
      make("div", {}, make("h2", {}, recording.title), make("div", { class: "facts" }, make("span", {}, `model ${recording.model}`), ...settings)),
      make("section", { class: "card", "data-part": "timeline" }, make("h3", {}, "Timeline", make("span", { class: "quiet" }, ` in ${recording.unit}`)),
        parts.name, parts.timeline, this.legend()),
      make("div", { class: "panels" },
        make("div", {}, card("In this step", "events", parts.events)),
        make("div", {}, card(recording.table, "table", parts.table))));
  }
  legend() {
    return make("div", { class: "legend" }, ...this.recording.legend.map(([kind, of, text]) =>
      make("span", {}, make("i", { class: `key lane ${kind}`, of: COLORS[of] }), text)));
  }

  show(step) {
    const frame = this.frames[Math.min(step, this.frames.length - 1)];
    if (this.drawn !== frame.act) this.draw(frame.act);
    this.showEvents(frame);
    this.showTable(frame);
    this.mark(frame);
  }
  showEvents(frame) {
    this.parts.events.replaceChildren(make("ul", { class: "events" }, ...frame.events.map((event) => happened(event, this.recording.code))));
  }
  showTable(frame) {
    const { head, numbers, grows } = this.recording;
    const shown = grows ? this.frames.slice(0, frame.number).flatMap(({ rows }) => rows) : frame.rows;
    const row = (cells, tag, last) => make("tr", last ? { class: "newest" } : {}, ...cells.map((cell, i) => make(tag, { class: numbers.includes(i) ? "number" : "" }, cell)));
    const lines = shown.map((cells, i) => row(cells, "td", grows && i === shown.length - 1));
    this.parts.table.replaceChildren(make("table", {}, make("thead", {}, row(head, "th")), make("tbody", {}, ...lines)));
    this.parts.table.scrollTop = this.parts.table.scrollHeight;
  }

  // -- the drawing ----------------------------------------------------------------------------------------------------

  draw(number) {
    const { lanes, acts } = this.recording, act = acts[number];
    const width = Math.max(LEAST, this.parts.timeline.clientWidth || LEAST), low = TOP + LANE * lanes.length;
    this.x = (time) => LEFT + (width - LEFT - 12) * time / act.length;
    this.nowBox = draw("rect", { class: "now", y: 1, height: low + 2, rx: 4 });
    this.cover = draw("rect", { class: "cover", y: 0, height: low + AXIS });
    const shapes = [this.nowBox];
    lanes.forEach((name, i) => shapes.push(draw("text", { x: 0, y: TOP + i * LANE + 23 }, name),
      draw("line", { class: "grid", x1: LEFT, x2: width - 12, y1: TOP + i * LANE + 19, y2: TOP + i * LANE + 19 })));
    shapes.push(...act.pieces.map((piece) => this.piece(piece)), ...act.arrows.map((arrow) => this.arrow(arrow)), ...this.axis(act.length, low));
    this.frames.filter((frame) => frame.act === number).forEach((frame) => shapes.push(draw("rect",
      { class: "hit", x: this.x(frame.at), width: Math.max(1, this.x(frame.until) - this.x(frame.at)), y: 0, height: low, onclick: () => go(frame.number - 1) },
      draw("title", {}, [...frame.events.map(({ text }) => text), ...this.under(act, frame)].join("\n")))));
    const label = `${act.name}: what each of ${lanes.join(", ")} does, on one axis of time`;
    this.parts.timeline.replaceChildren(draw("svg", { width, height: low + AXIS, role: "img", "aria-label": label }, ...shapes, this.cover));
    this.parts.name.textContent = act.name[0].toUpperCase() + act.name.slice(1);
    this.drawn = number;
  }
  under(act, frame) { // what a pointer at this step is over
    return act.pieces.filter(({ at, until }) => at < frame.until && until > frame.at).map(({ text }) => text);
  }
  piece({ lane, kind, at, until, of }) {
    const x = this.x(at), y = TOP + lane * LANE + 6, width = Math.max(2, this.x(until) - x);
    if (kind === "waits") return draw("line", { class: "wait", x1: x + 1, x2: x + width - 1, y1: y + 13, y2: y + 13 });
    return draw("rect", { class: `piece ${kind}`, x, y, width, height: 26, ...(kind === "exchanges" ? {} : { fill: COLORS[of] }) });
  }
  arrow({ from, to, at }) {
    const x = this.x(at), down = to > from;
    const begin = TOP + from * LANE + (down ? 33 : 5), end = TOP + to * LANE + (down ? 5 : 33), tip = down ? -5 : 5;
    return draw("path", { class: "way", d: `M${x},${begin} V${end} m-3,${tip} l3,${-tip} l3,${tip}` });
  }
  axis(length, low) {
    const rough = length / TICKS, power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough);
    const shapes = [];
    for (let time = 0; time <= length; time += size)
      shapes.push(draw("line", { class: "grid", x1: this.x(time), x2: this.x(time), y1: low, y2: low + 6 }),
        draw("text", { class: "tick", x: Math.max(this.x(time), LEFT), y: low + 19 }, time.toLocaleString("en", { maximumFractionDigits: 2 })));
    return shapes;
  }

  mark(frame) {
    const left = this.x(frame.at), right = Math.max(this.x(frame.ends), left + 5);
    this.nowBox.setAttribute("x", left);
    this.nowBox.setAttribute("width", right - left);
    this.cover.setAttribute("x", this.x(frame.until) + 1);
    this.cover.setAttribute("width", predicting ? 4000 : 0);
    const box = this.parts.timeline;
    if (left < box.scrollLeft + LEFT || right > box.scrollLeft + box.clientWidth) box.scrollLeft = left - LEFT - 20;
  }

  settle() { // at the page's width; with room for the step that has most to say
    this.drawn = null;
    this.parts.events.style.minHeight = "";
    const heights = this.frames.map((frame) => { this.showEvents(frame); return this.parts.events.offsetHeight; });
    this.parts.events.style.minHeight = `${Math.max(...heights)}px`;
  }
  light() {} // no pages here
}
