// Steps through the recordings, plays them, asks before it shows, and lights up what is pointed at.

const SPEEDS = [["slow", 0.6], ["normal", 1], ["fast", 2.5]];
const GLANCE = 900, PER_LETTER = 35; // milliseconds that a step is shown, and for each letter of what it says
const runs = recordings.map((recording) => new Run(recording));
const last = LONGEST - 1, STEPS = Math.max(...runs.map((run) => run.frames.filter((frame) => !over(frame)).length));
const byId = (id) => document.getElementById(id);

// -- stepping ---------------------------------------------------------------------------------------------------------

function go(step) {
  now = Math.max(0, Math.min(last, step));
  runs.forEach((run) => run.show(now));
  byId("slider").value = now;
  byId("where").textContent = now < STEPS ? `step ${now + 1} of ${STEPS}` : "the end";
  for (const [id, off] of [["first", now === 0], ["previous", now === 0], ["next", now === last], ["last", now === last]]) byId(id).disabled = off;
  for (const [kind, , key] of KINDS) if (byId(`jump-${key}`)) byId(`jump-${key}`).disabled = found(kind, 1) === null;
  history.replaceState(null, "", `#${now + 1}`);
}
function leave(step) { // by hand: nothing plays on, no question stays open
  pause();
  dismiss();
  go(step);
}
function next() { // one step on; by way of a question, if there is one
  const question = predicting && asking === null && questionOf(now + 1);
  if (question) return ask(question);
  dismiss();
  go(now + 1);
}

function found(kind, direction) { // the nearest step with such an event, in any of the runs
  for (let step = now + direction; step >= 0 && step <= last; step += direction)
    if (runs.some((run) => run.frames[step] && run.frames[step].events.some((event) => event.kind === kind))) return step;
  return null;
}
function jump(kind, direction) {
  const step = found(kind, direction);
  if (step !== null) leave(step);
}

// -- playing ----------------------------------------------------------------------------------------------------------

let timer = null;

function play() {
  if (now === last) go(0);
  byId("play").textContent = "❚❚ Pause";
  byId("play").setAttribute("aria-pressed", "true");
  tick();
}
function tick() { // a step stays as long as its sentences take to read
  timer = setTimeout(() => {
    next();
    if (asking !== null || now === last) pause();
    else tick();
  }, (GLANCE + PER_LETTER * letters()) / Number(byId("speed").value));
}
function letters() {
  const events = runs.flatMap((run) => (run.frames[now] ? run.frames[now].events : []));
  return sum(events.map(({ text, why }) => text.length + why.length));
}
function pause() {
  clearTimeout(timer);
  timer = null;
  byId("play").textContent = "▶ Play";
  byId("play").setAttribute("aria-pressed", "false");
}
const toggle = () => (timer === null ? play() : pause());

// -- predicting -------------------------------------------------------------------------------------------------------

let asking = null; // the question that waits for an answer, about the step after the one shown
const score = { right: 0, asked: 0 };

function questionOf(step) { // the first run's
  const frame = runs[0].frames[step];
  return frame ? frame.question : null;
}
function predict() {
  predicting = !predicting;
  byId("predict").setAttribute("aria-pressed", String(predicting));
  pause();
  say(predicting ? "What comes next is hidden. Press Next: before a step that decides something, there is a question." : "");
  asking = null;
  go(now);
}
function ask(question) {
  asking = question;
  const answers = question.answers.map((text, i) => make("button", { type: "button", class: "answer", onclick: () => answer(i) }, make("kbd", {}, i + 1), ` ${text}`));
  say(make("span", {}, make("strong", {}, `Step ${now + 2}: `), question.ask), ...answers);
}
function answer(chosen) {
  const { answers, right, why } = asking;
  score.asked += 1;
  score.right += chosen === right;
  asking = null;
  go(now + 1);
  const verdict = chosen === right ? `Right: ${answers[right]}` : `Not ${answers[chosen]}, but ${answers[right]}`;
  say(make("span", {}, make("strong", { class: chosen === right ? "right" : "not" }, verdict), why ? `. ${why[0].toUpperCase()}${why.slice(1)}.` : ""),
    make("span", { class: "quiet" }, `${score.right} of ${score.asked} right so far`));
}
function dismiss() {
  asking = null;
  say();
}
function say(...parts) { // in predict mode the line keeps its place
  byId("question").hidden = !predicting;
  byId("question").replaceChildren(...parts);
}

// -- pointing at pages ------------------------------------------------------------------------------------------------

function pointed(target) { // lights the pages that the target, or else what has the focus, is about
  const about = [target, document.activeElement].map((each) => each && each.closest && each.closest("[data-page], [data-pages]")).find(Boolean);
  const pages = about ? (about.dataset.page || about.dataset.pages).split(" ").filter(Boolean) : [];
  for (const run of runs) run.light(new Set(about && run.element.contains(about) ? pages : []));
}
document.addEventListener("pointerover", (event) => pointed(event.target));
document.addEventListener("focusin", (event) => pointed(event.target));
document.addEventListener("focusout", () => pointed(null));

// -- the page ---------------------------------------------------------------------------------------------------------

document.body.classList.toggle("compact", COMPACT);
byId("about").textContent = recordings[0].about;
byId("runs").append(...runs.map((run) => run.element));
byId("runs").classList.toggle("pair", runs.length > 1);
byId("runs").style.setProperty("--rows", 1 + Math.max(...runs.map((run) => run.element.querySelectorAll("[data-part]").length)));
byId("slider").max = last;
const kinds = new Set(runs.flatMap((run) => run.frames.flatMap((frame) => frame.events.map((event) => event.kind))));
byId("jumps").append(make("span", { class: "quiet" }, "Jump to the next:"), ...KINDS.filter(([kind]) => kinds.has(kind)).map(([kind, name, key]) =>
  make("button", { type: "button", id: `jump-${key}`, "data-kind": kind, title: `Next ${name} (${key.toUpperCase()}); with Shift the one before`,
    onclick: (event) => jump(kind, event.shiftKey ? -1 : 1) }, `${name} `, make("kbd", {}, key.toUpperCase()))));
byId("speed").append(...SPEEDS.map(([name, speed]) => make("option", { value: speed }, name)));
byId("speed").value = "1";

byId("first").addEventListener("click", () => leave(0));
byId("previous").addEventListener("click", () => leave(now - 1));
byId("next").addEventListener("click", () => { pause(); next(); });
byId("last").addEventListener("click", () => leave(last));
byId("play").addEventListener("click", toggle);
byId("predict").addEventListener("click", predict);
byId("slider").addEventListener("input", (event) => leave(Number(event.target.value)));

const MOVES = {
  ArrowLeft: () => leave(now - 1), ArrowRight: () => { pause(); next(); }, Home: () => leave(0), End: () => leave(last), "?": predict,
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { key, target } = event, owner = target.closest("button, input, select, a"); // it has keys of its own
  const run = runs.find((one) => one.parts.pool.contains(target));
  if (run && (key === "ArrowUp" || key === "ArrowDown")) { event.preventDefault(); run.point(key === "ArrowUp" ? -1 : 1); return; }
  if (key === " " && !owner) { event.preventDefault(); toggle(); return; }
  if (key in MOVES && target !== byId("slider") && target !== byId("speed")) { event.preventDefault(); MOVES[key](); return; }
  if (asking !== null && asking.answers[Number(key) - 1] !== undefined) { answer(Number(key) - 1); return; }
  const kind = KINDS.find(([, , letter]) => letter === key.toLowerCase());
  if (kind && key.length === 1 && target !== byId("speed")) jump(kind[0], event.shiftKey ? -1 : 1);
});
const settle = () => { runs.forEach((run) => run.settle()); go(now); };
let settling = null;
window.addEventListener("resize", () => { clearTimeout(settling); settling = setTimeout(settle, 100); });
now = Math.max(0, Math.min(last, (Number.parseInt(location.hash.slice(1), 10) || 1) - 1));
settle();
