// -- a line of text with emphasis, code and links -----------------------------------------------------------------------

const DEEPEST_INLINE = 6; // emphasis within emphasis; deeper marks are text
const MARKS = [["***", "strong"], ["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const SPECIAL = /[\\`*_~[!]|https?:\/\//g;
const ESCAPED = /^\\[!-/:-@[-`{-~]/;
const BARE = /https?:\/\/[^\s<>"`]+/y; // an address without marks

// Only absolute addresses of the web become links: no scripts, no data, and no path of this server.
function webAddress(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const { protocol, href } = new URL(text);
    return protocol === "https:" || protocol === "http:" ? href : null;
  } catch {
    return null;
  }
}

function link(address, ...children) {
  return make("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

// Returns nodes and texts. linked: the text is a link's, so it has no other links.
// `places` remembers where marks come next, or that they come no more, so that the work grows with the text's length.
function inline(text, depth = 0, linked = false) {
  const nodes = [], places = new Map();
  let at = 0, plain = "";
  const put = (node) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (next === null) break;
    plain += text.slice(at, next.index);
    at = next.index;
    const found = ESCAPED.test(text.slice(at, at + 2)) ? { node: text[at + 1], end: at + 2 } : special(text, at, depth, linked, places);
    if (found === null) {
      const run = /^(.)\1*/s.exec(text.slice(at, at + 100))[0]; // a run of marks that open nothing
      plain += run;
      at += run.length;
    } else {
      if (typeof found.node === "string") plain += found.node;
      else put(found.node);
      at = found.end;
    }
  }
  plain += text.slice(at);
  if (plain) nodes.push(plain);
  return nodes;
}

function special(text, at, depth, linked, places) {
  const first = text[at];
  if (first === "`") return code(text, at, places);
  if (first === "h") return linked ? null : bare(text, at);
  if (first === "[") return linked ? null : bracketed(text, at, depth, places);
  if (first === "!") return linked || text[at + 1] !== "[" ? null : bracketed(text, at + 1, depth, places); // an image: its link
  return emphasis(text, at, depth, linked, places);
}

// The next place of a mark, from an ever greater one on; -1: none.
function following(text, mark, from, places) {
  const known = places.get(mark);
  if (known !== undefined && (known < 0 || known >= from)) return known;
  places.set(mark, text.indexOf(mark, from));
  return places.get(mark);
}

function code(text, at, places) {
  const fence = /^`+/.exec(text.slice(at, at + 100))[0];
  if (places.get(fence) < 0) return null;
  let end = text.indexOf(fence, at + fence.length);
  while (end >= 0 && text[end + fence.length] === "`") {
    while (text[end] === "`") end += 1;
    end = text.indexOf(fence, end);
  }
  if (end < 0) {
    places.set(fence, -1);
    return null;
  }
  const inner = text.slice(at + fence.length, end);
  const trimmed = /^ .*[^ ].* $/s.test(inner) ? inner.slice(1, -1) : inner;
  return { node: make("code", {}, trimmed), end: end + fence.length };
}

function bare(text, at) {
  BARE.lastIndex = at;
  const found = BARE.exec(text)?.[0].replace(/[.,;:!?'*_~)\]]+$/, "");
  const address = found ? webAddress(found) : null;
  return address === null ? null : { node: link(address, found), end: at + found.length };
}

function bracketed(text, at, depth, places) {
  const middle = following(text, "](", at, places);
  const end = middle < 0 ? -1 : following(text, ")", middle, places);
  if (end < 0) return null;
  const words = text.slice(at + 1, middle);
  if (words.includes("[") || depth > DEEPEST_INLINE) return null;
  const address = webAddress(text.slice(middle + 2, end).trim().split(/\s/)[0].replace(/^<|>$/g, ""));
  if (address === null) return null;
  return { node: link(address, ...(words ? inline(words, depth + 1, true) : [address])), end: end + 1 };
}

const WORD = /[\p{L}\p{N}]/u;

function emphasis(text, at, depth, linked, places) {
  if (depth > DEEPEST_INLINE) return null;
  for (const [mark, tag] of MARKS) {
    if (!text.startsWith(mark, at) || places.get(mark) < 0) continue;
    const start = at + mark.length;
    if (!/\S/.test(text[start] ?? " ") || text[start] === mark[0]) continue;
    if (mark[0] === "_" && WORD.test(text[at - 1] ?? " ")) continue; // snake_case
    const end = closing(text, start, mark);
    if (end < 0) {
      places.set(mark, -1);
      continue;
    }
    const inner = inline(text.slice(start, end), depth + 1, linked);
    const node = mark === "***" ? make(tag, {}, make("em", {}, ...inner)) : make(tag, {}, ...inner);
    return { node, end: end + mark.length };
  }
  return null;
}

// Finds the end of emphasis: a mark behind a letter, not part of a longer one.
function closing(text, start, mark) {
  for (let end = text.indexOf(mark, start + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    if (/\s/.test(text[end - 1]) || text[end - 1] === "\\") continue;
    if (mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark)) continue;
    if (mark[0] === "_" && WORD.test(text[end + mark.length] ?? " ")) continue;
    return end;
  }
  return -1;
}
