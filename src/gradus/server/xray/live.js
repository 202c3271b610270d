// The live X-ray: what the engine does now, drawn from the events of GET /xray.
//
// startXray(element, open) fills an empty section and returns {stop()}. open(signal, path) fetches "/xray" or
// "/xray/trace" with the page's key. Every text is set as text: nothing that arrives becomes markup.

function startXray(element, open) {
  const { make, plural, sum, entry, card } = xray;
  const STATES = ["free", "cached", "held", "shared"], MARKS = ["free", "idle", "held", "shared"];
  const [FIRST, LAST] = [500, 8000]; // milliseconds between two attempts to connect
  const KEPT = 512, SHOWN_QUEUE = 100, TALLEST = { pages: 440, batch: 512, tree: 320 };
  const CALM = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 0; // milliseconds between two drawings
  const stepOf = ([number, start, planned, launched, device, ready, end, rows, sequences, prefill, decode, drafted, accepted, preempted, admitted, ended, waiting]) =>
    ({ number, start, planned, launched, device, ready, end, rows, sequences, prefill, decode, drafted, accepted, preempted, admitted, ended, waiting });
  const rowOf = ([slot, stored, prompt, decodes, pages, accepted], name) => ({ slot, stored, prompt, decodes, pages, accepted, name });
  const nodeOf = ([parent, start, places, pages, held, holders, children]) => ({ parent, start, places, pages, held, holders, children });
  const milliseconds = (microseconds) => `${(microseconds / 1000).toFixed(microseconds < 99500 ? 2 : 0)} ms`;
  const seconds = (milli) => (milli < 999.5 ? `${Math.round(milli)} ms` : `${(milli / 1000).toFixed(1)} s`);
  const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`);
  const rate = (number) => (number < 99.5 ? number.toFixed(1) : Math.round(number).toLocaleString("en"));

  // -- a canvas as sharp as the screen, which says what is pointed at ----------------------------------------------------

  class Plot {
    constructor(label, paint, point) {
      this.paint = paint;
      this.point = point;
      this.canvas = make("canvas", { role: "img", "aria-label": label, tabindex: "0", onpointermove: (event) => this.look(event.offsetX, event.offsetY), onpointerleave: () => this.look(null), onkeydown: (event) => this.press(event) });
      this.said = make("p", { class: "pointed", "aria-live": "off" });
      this.at = null;
      this.element = make("div", {}, this.canvas, this.said);
    }
    size(height) { // CSS pixels; returns the context, scaled, and the width
      const width = Math.max(1, this.canvas.clientWidth), scale = window.devicePixelRatio || 1;
      if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
        this.canvas.width = Math.round(width * scale);
        this.canvas.height = Math.round(height * scale);
        this.canvas.style.height = `${height}px`;
      }
      this.width = width;
      this.height = height;
      const on = this.canvas.getContext("2d");
      on.setTransform(scale, 0, 0, scale, 0, 0);
      on.clearRect(0, 0, width, height);
      on.font = "11px system-ui, sans-serif";
      on.textBaseline = "middle";
      return [on, width];
    }
    draw() {
      this.paint(this);
      if (this.at) this.said.textContent = this.point(...this.at) || "";
    }
    look(x, y) {
      this.at = x === null ? null : [x, y];
      this.said.textContent = this.at ? this.point(x, y) || "" : "";
    }
    press(event) { // the arrows move a pointer of their own
      const steps = { ArrowLeft: [-8, 0], ArrowRight: [8, 0], ArrowUp: [0, -8], ArrowDown: [0, 8] }[event.key];
      if (!steps) return;
      event.preventDefault();
      const [x, y] = this.at || [this.width / 2, this.height / 2];
      this.look(Math.max(0, Math.min(this.width - 1, x + steps[0])), Math.max(0, Math.min(this.height - 1, y + steps[1])));
    }
  }

  const ink = {}; // the style sheet's colors, which a canvas needs by value
  function readColors() {
    const style = getComputedStyle(element);
    for (const name of ["ink", "quiet", "line", "faint", "card", "hatch", "page-free", "page-idle", "page-held", "page-shared", "prefill", "decode", "mixed", "host"])
      ink[name] = style.getPropertyValue(`--${name}`).trim();
    for (const kind of ["prefill", "mixed"]) hatches[kind] = null;
  }
  const hatches = {};
  function fillOf(on, kind) { // patterns as well as colors: steps with prompts can be told from others in grey
    if (!(kind in hatches)) return ink[kind];
    if (!hatches[kind]) {
      const tile = make("canvas", { width: 6, height: 6 }), on2 = tile.getContext("2d");
      on2.fillStyle = ink[kind];
      on2.fillRect(0, 0, 6, 6);
      on2.strokeStyle = ink.card;
      on2.lineWidth = 1.4;
      on2.beginPath();
      for (const x of kind === "prefill" ? [-6, 0, 6] : [3]) { on2.moveTo(x, 6); on2.lineTo(kind === "prefill" ? x + 6 : x, 0); }
      on2.stroke();
      hatches[kind] = on.createPattern(tile, "repeat");
    }
    return hatches[kind];
  }
  function clipped(on, text, x, y, room) { // text that is cut to its room
    let shown = text;
    while (shown.length > 1 && on.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
    if (shown.length > 1 || text.length <= 1) on.fillText(shown, x, y);
  }

  // -- the state ---------------------------------------------------------------------------------------------------------

  const now = {};
  function forget() {
    Object.assign(now, { time: 0, arrived: performance.now(), about: now.about || {}, numbers: {}, counts: [], rows: [], waiting: 0, queue: [], tree: null, steps: [], pages: null, pageSize: 0 });
  }
  function take(event) {
    if (event.whole) { forget(); now.about = event.about; }
    now.state = event.state;
    now.reason = event.reason;
    Object.assign(now.numbers, event.numbers);
    now.arrived = performance.now();
    if ("time" in event) now.time = event.time;
    if (event.rows) now.rows = event.rows.map((row, i) => rowOf(row, event.own.rows[i])).sort((a, b) => a.slot - b.slot);
    if (event.queue) now.queue = event.queue.slice(0, SHOWN_QUEUE).map(([waited, priority], i) => ({ waited, priority, name: event.own.queue[i] }));
    if ("waiting" in event) now.waiting = event.waiting;
    if (event.counts) now.counts = event.counts;
    if (event.tree) now.tree = event.tree.map(nodeOf);
    if (event.steps) now.steps = [...now.steps, ...event.steps.map(stepOf)].slice(-KEPT);
    if (event.pages) takePages(event.pages);
  }
  function takePages({ states, size, runs }) {
    if (states !== undefined) {
      now.pages = Uint8Array.from(atob(states), (letter) => letter.charCodeAt(0));
      now.pageSize = size;
    } else if (now.pages) for (let i = 0; i < runs.length; i += 3) now.pages.fill(runs[i + 2], runs[i], runs[i] + runs[i + 1]);
  }
  function rates() { // tokens per second, over the last second that the engine has shown
    const recent = now.steps.filter((step) => step.end > now.time - 1e6);
    const span = recent.length ? Math.max(now.time, recent.at(-1).end) - recent[0].start : 0;
    const per = (read) => (span > 0 ? (1e6 * sum(recent.map(read))) / span : 0);
    return { decode: per((step) => step.decode + step.accepted), prefill: per((step) => step.prefill), step: recent.length ? sum(recent.map((step) => step.ready - step.device)) / recent.length : 0 };
  }

  // -- pages: a square each, or one for several ---------------------------------------------------------------------------

  const cells = { side: 1, across: 1, each: 1 };
  const pagePlot = new Plot("Pages of the cache, by state", (plot) => {
    if (!now.pages) return;
    const room = Math.max(1, plot.canvas.clientWidth), count = now.pages.length;
    let side = 10, each = 1;
    while (side > 1 && Math.ceil(count / Math.floor(room / side)) * side > TALLEST.pages) side -= 1;
    while (Math.ceil(Math.ceil(count / each) / Math.floor(room / side)) * side > TALLEST.pages) each += 1;
    const across = Math.floor(room / side), squares = Math.ceil(count / each), down = Math.ceil(squares / across);
    Object.assign(cells, { side, across, each });
    const [on] = plot.size(down * side);
    const image = imageOf(across, down, squares, each);
    on.imageSmoothingEnabled = false;
    on.drawImage(image, 0, 0, across * side, down * side);
    if (side >= 4) { // lines between squares
      on.fillStyle = ink.card;
      for (let x = 1; x <= across; x += 1) on.fillRect(x * side - 1, 0, 1, down * side);
      for (let y = 1; y <= down; y += 1) on.fillRect(0, y * side - 1, across * side, 1);
    }
  }, (x, y) => {
    const square = Math.floor(y / cells.side) * cells.across + Math.min(cells.across - 1, Math.floor(x / cells.side));
    const first = square * cells.each;
    if (!now.pages || first >= now.pages.length) return "";
    const some = now.pages.subarray(first, first + cells.each), counts = STATES.map((_, state) => some.filter((each) => each === state).length);
    if (some.length === 1) return `page ${first + 1}: ${STATES[some[0]]}`;
    return `pages ${first + 1} to ${first + some.length}: ${STATES.map((state, i) => (counts[i] ? `${counts[i]} ${state}` : "")).filter(Boolean).join(", ")}`;
  });
  const stage = make("canvas");
  function imageOf(across, down, squares, each) {
    stage.width = across;
    stage.height = down;
    const on = stage.getContext("2d"), image = on.createImageData(across, down), out = image.data;
    const palette = MARKS.map((mark) => [1, 3, 5].map((at) => parseInt(ink[`page-${mark}`].slice(at, at + 2), 16)));
    for (let i = 0; i < squares; i += 1) {
      const end = Math.min(now.pages.length, (i + 1) * each), mixed = [0, 0, 0];
      for (let page = i * each; page < end; page += 1) for (let part = 0; part < 3; part += 1) mixed[part] += palette[now.pages[page]][part];
      for (let part = 0; part < 3; part += 1) out[4 * i + part] = mixed[part] / (end - i * each);
      out[4 * i + 3] = 255;
    }
    on.putImageData(image, 0, 0);
    return stage;
  }

  // -- the batch: a bar for each sequence ----------------------------------------------------------------------------------

  const bars = { tall: 1, top: 0 };
  const batchPlot = new Plot("Running sequences: the tokens that each has stored", (plot) => {
    const count = now.rows.length, tall = Math.max(2, Math.min(18, Math.floor(TALLEST.batch / Math.max(1, count))));
    const [on, width] = plot.size(Math.max(24, count * tall));
    Object.assign(bars, { tall });
    if (!count) { on.fillStyle = ink.quiet; on.fillText("Nothing runs.", 0, 12); return; }
    const longest = Math.max(1, ...now.rows.map((row) => Math.max(row.stored, row.prompt)));
    const left = 9, scale = (width - left - 1) / longest, gap = tall > 4 ? 2 : tall > 2 ? 1 : 0;
    now.rows.forEach((row, i) => {
      const y = i * tall, high = tall - gap, prompt = Math.min(row.stored, row.prompt) * scale, stored = row.stored * scale;
      on.fillStyle = ink.faint;
      on.fillRect(left, y, row.prompt * scale, high);
      on.fillStyle = tall > 4 ? fillOf(on, "prefill") : ink.prefill;
      on.globalAlpha = tall > 4 ? 1 : 0.45; // a pattern needs room; a paler color can be told apart in grey, too
      on.fillRect(left, y, prompt, high);
      on.globalAlpha = 1;
      on.fillStyle = ink.decode;
      if (stored > prompt) on.fillRect(left + prompt, y, Math.max(1, stored - prompt), high);
      if (row.name) { on.fillStyle = ink.ink; on.fillRect(0, y, 5, high); }
    });
  }, (x, y) => {
    const row = now.rows[Math.floor(y / bars.tall)];
    if (!row) return "";
    const doing = row.decodes ? `decodes, ${plural(Math.max(0, row.stored - row.prompt), "token")} after its prompt of ${row.prompt.toLocaleString("en")}` : `reads its prompt: ${row.stored.toLocaleString("en")} of ${plural(row.prompt, "token")}`;
    return `row ${row.slot}${row.name ? ` (yours: ${row.name})` : ""} ${doing}${row.pages ? `; ${plural(row.pages, "page")}` : ""}${row.accepted ? `; ${plural(row.accepted, "draft")} accepted` : ""}`;
  });

  // -- the queue: a bar for each wait ----------------------------------------------------------------------------------------

  const queuePlot = new Plot("Waiting samples: how long each has waited", (plot) => {
    const [on, width] = plot.size(64), count = now.queue.length;
    if (!now.waiting) { on.fillStyle = ink.quiet; on.fillText("Nothing waits.", 0, 12); return; }
    const wide = Math.min(16, width / Math.max(1, count)), longest = Math.max(1, ...now.queue.map((each) => each.waited));
    now.queue.forEach((each, i) => {
      const high = Math.max(2, (52 * each.waited) / longest);
      on.fillStyle = ink.host;
      on.fillRect(i * wide, 56 - high, Math.max(1, wide - 1), high);
      if (each.name) { on.fillStyle = ink.ink; on.fillRect(i * wide, 58, Math.max(1, wide - 1), 5); }
    });
    queuePlot.wide = wide;
  }, (x) => {
    const each = now.queue[Math.floor(x / (queuePlot.wide || 1))];
    return each ? `${each.name ? `yours (${each.name})` : "another"} has waited ${seconds(each.waited)}, priority ${each.priority}` : "";
  });

  // -- the prefix tree: depth to the right, as tall as what is below ----------------------------------------------------------

  let boxes = [];
  const treePlot = new Plot("Prefix tree: depth in pages to the right, the largest nodes", (plot) => {
    const nodes = now.tree || [];
    const [on, width] = plot.size(nodes.length ? TALLEST.tree : 24);
    boxes = [];
    if (!nodes.length) { on.fillStyle = ink.quiet; on.fillText("The tree is empty.", 0, 12); return; }
    const below = nodes.map(() => []), top = [], weight = nodes.map((node) => node.pages);
    nodes.forEach((node, i) => (node.parent < 0 ? top : below[node.parent]).push(i));
    for (let i = nodes.length - 1; i >= 0; i -= 1) if (nodes[i].parent >= 0) weight[nodes[i].parent] += weight[i];
    const deepest = Math.max(...nodes.map((node) => node.start + node.places)), scale = width / deepest;
    const place = (list, y, high) => {
      const all = sum(list.map((i) => weight[i])) || 1;
      for (const i of [...list].sort((a, b) => weight[b] - weight[a])) {
        const share = (high * weight[i]) / all, node = nodes[i];
        boxes.push({ node, x: node.start * scale, y, wide: Math.max(1, node.places * scale), high: share });
        place(below[i], y, share);
        y += share;
      }
    };
    place(top, 0, TALLEST.tree);
    for (const { node, x, y, wide, high } of boxes) {
      on.fillStyle = ink[`page-${node.holders > 1 ? "shared" : node.holders ? "held" : "idle"}`];
      on.fillRect(x, y, Math.max(1, wide - 1), Math.max(0.5, high - (high > 3 ? 1 : 0)));
      if (high > 13 && wide > 30) { on.fillStyle = node.holders ? ink.card : ink.ink; clipped(on, String(node.pages), x + 4, y + high / 2, wide - 8); }
    }
  }, (x, y) => {
    const box = boxes.findLast((each) => x >= each.x && x <= each.x + each.wide && y >= each.y && y <= each.y + each.high);
    if (!box) return "";
    const { node } = box, held = node.holders ? `held by ${plural(node.holders, "sequence")}` : "cached";
    return `after ${plural(node.start, "page")}: ${plural(node.places, "page")} (${plural(node.places * now.pageSize, "token")}), ${held}, ${plural(node.children, "child").replace("childs", "children")}`;
  });

  // -- the last steps: host and device, on one clock ----------------------------------------------------------------------------

  const line = { steps: [], scale: 1, begin: 0 };
  const LEFT = 46, HOST_Y = 6, DEVICE_Y = 30, LANE = 18, BARS_Y = 56, BARS = 44;
  const kindOf = (step) => (step.prefill && step.decode ? "mixed" : step.prefill ? "prefill" : "decode");
  const stepPlot = new Plot("The last steps: the host's and the device's time, and the tokens of each", (plot) => {
    const [on, width] = plot.size(BARS_Y + BARS + 18);
    on.fillStyle = ink.quiet;
    for (const [text, y] of [["host", HOST_Y], ["device", DEVICE_Y], ["tokens", BARS_Y + BARS / 2 - LANE / 2]]) on.fillText(text, 0, y + LANE / 2);
    line.steps = now.steps.slice(-Math.max(20, Math.floor((width - LEFT) / 9)));
    if (!line.steps.length) { on.fillText("No step yet.", LEFT, HOST_Y + LANE / 2); return; }
    line.begin = line.steps[0].start;
    const ends = line.steps.at(-1).end, most = Math.max(1, ...line.steps.map((step) => step.prefill + step.decode));
    line.scale = (width - LEFT - 1) / Math.max(1, ends - line.begin);
    const x = (time) => LEFT + (time - line.begin) * line.scale;
    const span = (from, to, y, fill) => { on.fillStyle = fill; on.fillRect(x(from), y, Math.max(0.7, x(to) - x(from) - 0.5), LANE); };
    for (const step of line.steps) {
      span(step.start, step.planned, HOST_Y, ink.host);
      span(step.planned, step.launched, HOST_Y, ink.hatch);
      span(step.ready, step.end, HOST_Y, ink.host);
      span(step.device, step.ready, DEVICE_Y, fillOf(on, kindOf(step)));
      const prompt = (BARS * step.prefill) / most, decode = (BARS * step.decode) / most, wide = Math.max(0.7, x(step.ready) - x(step.device) - 1);
      on.fillStyle = ink.decode;
      on.fillRect(x(step.device), BARS_Y + BARS - decode, wide, decode);
      on.fillStyle = fillOf(on, "prefill");
      on.fillRect(x(step.device), BARS_Y + BARS - decode - prompt, wide, prompt);
      if (step.preempted) { on.fillStyle = ink.ink; on.fillText("✕", x(step.start) - 3, HOST_Y + LANE / 2); }
    }
    on.fillStyle = ink.quiet;
    const all = `${seconds((ends - line.begin) / 1000)}: ${plural(line.steps.length, "step")}, at most ${plural(most, "token")}`;
    clipped(on, all, LEFT, BARS_Y + BARS + 10, width - LEFT);
  }, (x) => {
    const time = line.begin + (x - LEFT) / line.scale;
    const step = line.steps.find((each) => time < each.ready);
    if (!step || x < LEFT) return "";
    const parts = [`step ${step.number}: ${plural(step.sequences, "sequence")}`, `device ${milliseconds(step.ready - step.device)}`, `planned in ${milliseconds(step.planned - step.start)}, launched in ${milliseconds(step.launched - step.planned)}, committed in ${milliseconds(step.end - step.ready)}`,
      step.prefill ? `${plural(step.prefill, "prompt token")}` : "", step.decode ? plural(step.decode, "decode") : "", step.drafted ? `${step.accepted} of ${plural(step.drafted, "draft")} accepted` : "",
      step.rows > step.prefill + step.decode + step.drafted ? `${step.rows - step.prefill - step.decode - step.drafted} rows of padding` : "", step.admitted ? `${step.admitted} admitted` : "", step.ended ? `${step.ended} ended` : "", step.preempted ? `${step.preempted} preempted` : "", step.waiting ? `${step.waiting} waiting` : ""];
    return parts.filter(Boolean).join("; ");
  });

  // -- the section ---------------------------------------------------------------------------------------------------------------

  const said = make("span", { class: "said", role: "status" }, "Connecting…");
  const pauseButton = make("button", { type: "button", "aria-pressed": "false", onclick: () => pause() }, "Pause");
  const exportButton = make("button", { type: "button", title: "The last 512 steps, for ui.perfetto.dev", onclick: () => save() }, "Export trace");
  const values = {};
  const number = (name, title) => make("div", {}, make("dt", {}, title), values[name] = make("dd", {}, "–"));
  const numbers = make("dl", { class: "numbers" }, number("decode", "output tok / s"), number("prefill", "prompt tok / s"), number("running", "running"), number("waiting", "waiting"), number("step", "device, a step"), number("use", "cache in use"), number("hits", "prefix hits"));
  const counted = MARKS.map((mark, i) => make("span", {}, `${STATES[i]}`));
  const grouped = make("span");
  const pageLegend = make("div", { class: "legend" }, ...MARKS.map((mark, i) => entry(mark, counted[i])), grouped);
  const yours = () => entry("own", "yours");
  const parts = {
    steps: card("Steps", "steps", stepPlot.element), batch: card("Batch", "batch", batchPlot.element), queue: card("Queue", "queue", queuePlot.element),
    pages: card("Pages", "pages", pagePlot.element), tree: card("Prefix tree", "tree", treePlot.element, "its largest nodes"),
  };
  parts.steps.append(make("div", { class: "legend" }, entry("host", "host: plan, launch (paler), commit"), entry("decode", "decode"), entry("prefill", "prompts"), entry("mixed", "both")));
  parts.batch.append(make("div", { class: "legend" }, entry("prefill", "prompt"), entry("decode", "decoded"), yours()));
  parts.queue.append(make("div", { class: "legend" }, make("span", {}, "the first 100, longest bar: longest wait"), yours()));
  parts.pages.append(pageLegend);
  parts.tree.append(make("div", { class: "legend" }, entry("idle", "cached"), entry("held", "held by one"), entry("shared", "shared")));
  const inside = make("div", { class: "inside" }, make("div", { class: "bar" }, said, pauseButton, exportButton), numbers, parts.steps,
    make("div", { class: "pair" }, parts.batch, make("div", { class: "column" }, parts.pages, parts.queue)), parts.tree);
  element.classList.add("xray");
  element.replaceChildren(inside);
  const plots = [[parts.steps, stepPlot], [parts.batch, batchPlot], [parts.queue, queuePlot], [parts.pages, pagePlot], [parts.tree, treePlot]];

  let drawn = 0, scheduled = 0, paused = false, stopped = false;
  function redraw() { // at most once per frame, and calmly where that is preferred
    if (scheduled || stopped) return;
    const wait = CALM - (performance.now() - drawn);
    scheduled = wait > 0 ? setTimeout(frame, wait) : requestAnimationFrame(frame);
  }
  function frame() {
    scheduled = 0;
    drawn = performance.now();
    if (stopped) return;
    parts.pages.hidden = !now.pages;
    parts.tree.hidden = now.tree === null;
    const per = rates();
    const shown = { decode: rate(per.decode), prefill: rate(per.prefill), running: now.rows.length.toLocaleString("en"), waiting: Math.max(now.waiting, now.numbers.waiting || 0).toLocaleString("en"), step: per.step ? milliseconds(per.step) : "–", use: percent(now.numbers.cache_use), hits: percent(now.numbers.hit_rate) };
    for (const [name, text] of Object.entries(shown)) if (values[name].textContent !== text) values[name].textContent = text;
    STATES.forEach((state, i) => { counted[i].textContent = `${(now.counts[i] || 0).toLocaleString("en")} ${state}`; });
    for (const [part, plot] of plots) if (!part.hidden) plot.draw();
    grouped.textContent = cells.each > 1 ? `a dot: ${cells.each} pages, their colors mixed` : "";
  }
  function say(text, state) {
    if (said.textContent !== text) said.textContent = text;
    said.dataset.state = state;
  }
  const WORDS = { loading: "The model is loading", restarting: "The engine starts again", draining: "The server is shutting down", failed: "The engine has failed", stalled: "The engine is inside a long step", sleeping: "The server sleeps; a request wakes it", asleep: "The server sleeps; a request wakes it", waking: "The server wakes up" };
  function sayState() {
    if (paused) return say("Paused: this is a moment of the past", "paused");
    if (now.state === "ready") return say([now.about.model, now.about.engine && `${now.about.engine} engine`, now.about.device].filter(Boolean).join(" · ") || "ready", "ready");
    return say(WORDS[now.state] ? `${WORDS[now.state]}${now.state === "failed" || now.state === "restarting" ? `: ${now.reason}` : ""}` : now.reason || now.state, now.state === "failed" ? "wrong" : "other");
  }
  function pause() {
    paused = !paused;
    pauseButton.setAttribute("aria-pressed", String(paused));
    pauseButton.textContent = paused ? "Go on" : "Pause";
    sayState();
    if (paused) disconnect(); // an engine that nobody watches does no extra work
    else connect();
  }
  async function save() {
    exportButton.disabled = true;
    try {
      const answer = await open(new AbortController().signal, "/xray/trace");
      if (!answer.ok || !(answer.headers.get("content-type") || "").startsWith("application/json")) throw new Error(`status ${answer.status}`);
      const address = URL.createObjectURL(await answer.blob());
      make("a", { href: address, download: "gradus-trace.json" }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10000);
    } catch (error) {
      say(`The trace could not be saved: ${error.message}`, "wrong");
    } finally {
      exportButton.disabled = false;
    }
  }

  // -- the connection ----------------------------------------------------------------------------------------------------------------

  let abort = null, timer = 0, pauseBefore = FIRST;
  function disconnect() {
    clearTimeout(timer);
    if (abort) abort.abort();
    abort = null;
  }
  function connect() {
    disconnect();
    if (stopped || paused || document.hidden) return;
    const mine = abort = new AbortController();
    read(mine).catch((error) => (mine.signal.aborted ? null : error.message || String(error))).then((problem) => {
      if (abort !== mine) return;
      if (problem !== null) say(`${problem || "The connection has ended"}. Trying again…`, "wrong");
      timer = setTimeout(connect, pauseBefore * (0.75 + Math.random() / 2));
      pauseBefore = Math.min(LAST, 2 * pauseBefore);
    });
  }
  async function read(mine) { // returns why it ended
    const answer = await open(mine.signal, "/xray");
    if (answer.status === 401 || answer.status === 403) { pauseBefore = LAST; return "The X-ray needs an API key that may see it"; }
    if (!answer.ok) return refusalOf(await answer.json().catch(() => null), answer.status);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || mine.signal.aborted) return "";
      const events = (held + value).split("\n\n");
      held = events.pop();
      for (const event of events) if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
      if (!events.length) continue;
      pauseBefore = FIRST;
      sayState();
      redraw();
    }
  }
  const refusalOf = (body, status) => (body && body.error && body.error.message) || `The server answers with status ${status}`;

  const sized = new ResizeObserver(() => redraw());
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const recolor = () => { readColors(); redraw(); };
  const seen = () => (document.hidden ? disconnect() : connect());
  scheme.addEventListener("change", recolor);
  document.addEventListener("visibilitychange", seen);
  forget();
  readColors();
  sized.observe(element);
  redraw();
  connect();
  return {
    stop() {
      stopped = true;
      disconnect();
      sized.disconnect();
      scheme.removeEventListener("change", recolor);
      document.removeEventListener("visibilitychange", seen);
      element.replaceChildren();
      element.classList.remove("xray");
    },
  };
}
