// What every page begins with: its recordings, where it is, and how an event is written. Then comes the script of the
// recordings' form, which has their KINDS of events and a class Run (run.js or lanes.js), and page.js, which steps.

const recordings = JSON.parse(document.getElementById("recordings").textContent);
const { COLORS, make, draw, plural, sum, entry, card } = xray; // of shared.js
const LONGEST = Math.max(...recordings.map((recording) => recording.frames.length));
const CODE = document.getElementById("recordings").dataset.code; // the way to a line of the repository
const COMPACT = new URLSearchParams(location.search).has("compact"); // in the book: beside a lesson's text
let now = 0, predicting = false;

const over = (frame) => frame.plan === null && frame.committed === null && !frame.failed; // what is left after the last step

function happened({ kind, text, why, pages }, places) { // with the reason, and the way to the code
  const [, name] = KINDS.find(([each]) => each === kind);
  return make("li", { "data-pages": pages.join(" ") }, make("span", { class: "kind" }, name),
    make("span", { class: "said" }, text, why ? make("span", { class: "why" }, `: ${why}`) : null, codeOf(places[kind])));
}
function codeOf(place) {
  if (!place) return null;
  if (!place.path) return make("span", { class: "code" }, place.name);
  const href = CODE.replace("{path}", place.path).replace("{line}", place.line);
  return make("a", { class: "code", href, target: "_blank", rel: "noopener", title: `${place.path}, line ${place.line}` }, place.name);
}
