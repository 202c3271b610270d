// Finds words in the book's pages (book/search.py) and shows the pages in the order of the navigation: lessons,
// documentation, design, the rest. A page whose title has all words comes before the part that precedes its own.
"use strict";

const LIFT = 1.5; // parts that such a page climbs
const HEADING = 10; // how many times in a text a word in a heading counts
const BEFORE = 80;
const EXCERPT = 260; // characters, of which BEFORE stand before the word

// Every page that has all words of the query, each with the section that has most of them.
function find(pages, query) {
  const words = query.split(/\s+/).map(pattern).filter(Boolean);
  if (!words.length) return [];
  return pages
    .map((page) => weighed(page, words))
    .filter((result) => words.every((word) => result.counts.get(word)))
    .sort((a, b) => a.place - b.place || b.weight - a.weight);
}

// A word's beginning, however it is inflected: "preempted" finds "preemption". null where no letter is in it.
function pattern(word) {
  const letters = word.replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, "");
  const stem = letters.replace(/(?<=.{3})(ions?|ings?|ed|es|s|e)$/i, "");
  return stem && new RegExp(`(?<![\\p{L}\\p{N}])${stem.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}[\\p{L}\\p{N}]*`, "giu");
}

function weighed(page, words) {
  const counts = new Map();
  let best = null;
  for (const section of page.sections) {
    let weight = 0;
    let distinct = 0;
    for (const word of words) {
      const times = HEADING * occurrences(section.heading, word) + occurrences(section.text, word);
      counts.set(word, (counts.get(word) ?? 0) + times);
      weight += times;
      distinct += times > 0;
    }
    if (!best || distinct > best.distinct || (distinct === best.distinct && weight > best.weight))
      best = { section, distinct, weight };
  }
  const [{ heading: title }] = page.sections;
  const named = words.every((word) => occurrences(title, word));
  const weight = words.reduce((sum, word) => sum + counts.get(word), 0);
  return { page, title, counts, weight, place: page.shelf - (named ? LIFT : 0), section: best.section, words };
}

function occurrences(text, word) {
  return text.match(word)?.length ?? 0;
}

// [before, word, after, …] with every second piece a word that was found.
function excerpt(text, words) {
  const any = new RegExp(`(${words.map((word) => word.source).join("|")})`, "giu");
  const first = Math.max(text.search(any), 0);
  const from = first > BEFORE ? text.indexOf(" ", first - BEFORE) + 1 : 0;
  const to = text.length > from + EXCERPT ? text.lastIndexOf(" ", from + EXCERPT) : text.length;
  return `${from ? "… " : ""}${text.slice(from, to)}${to < text.length ? " …" : ""}`.split(any);
}

function show(place, results) {
  const count = results.length === 1 ? "1 page" : `${results.length || "No"} pages`;
  const list = element("ol", { className: "found" }, results.map(shown));
  place.replaceChildren(element("p", {}, [`${count} with all of these words.`]), list);
}

function shown({ page, title, section, words }) {
  const pieces = excerpt(section.text, words).map((piece, i) => (i % 2 ? element("mark", {}, [piece]) : piece));
  const inside = section === page.sections[0] ? [] : [" › ", link(`${page.link}#${section.anchor}`, section.heading)];
  return element("li", {}, [
    element("p", {}, [link(page.link, title), ...inside, element("small", {}, [page.part])]),
    element("p", { className: "excerpt" }, pieces),
  ]);
}

function link(href, text) {
  return element("a", { href }, [text]);
}

function element(name, properties, children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
