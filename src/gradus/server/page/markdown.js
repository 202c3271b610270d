// -- an answer's blocks, as its text arrives ----------------------------------------------------------------------------
//
// The text comes in pieces, and each character is read once: a line's kind is decided at its beginning, and the rest of
// the line goes to where it belongs. Only the last few thousand characters of a paragraph are drawn again, for emphasis
// may end there. So a long answer takes time in proportion to its length, and however the text is cut into pieces, the
// same nodes come of it. Nodes are made one by one: nothing is ever parsed as HTML.

const DEEPEST = 8; // lists and quotes within each other; deeper ones are text
const LONGEST_RUN = 4000; // characters of a paragraph that are drawn together
const LONGEST_HELD = 2000; // characters that decide a line's kind; one that needs its end for that is no longer

const BLANK = /^[ \t]*$/;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])([ \t]*\1){2,}[ \t]*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITER = /^[ \t]*(\|[ \t]*:?-+:?[ \t]*)+\|?[ \t]*$/;
// The beginning of a line that may still become any of these, or a table's row.
const UNDECIDED = /^[ \t]*([-*+]|\d{1,9}[.)]?|#{1,6}|>|`{1,2}|~{1,2}|(`{3,}|~{3,})[^`\n]*|\|.*|[-*_][-*_ \t]*)?[ \t]*$/;

class Markdown {
  constructor(element) {
    this.dirty = new Set();
    this.blocks = new Blocks(element, 0, this.dirty);
  }
  feed(text) {
    this.blocks.feed(text.replaceAll("\r", ""));
    this.flush();
  }
  end() {
    this.blocks.end();
    this.flush();
  }
  flush() {
    for (const leaf of this.dirty) leaf.flush();
    this.dirty.clear();
  }
}

// Text of a paragraph, heading or cell, with its emphasis.
class Line {
  constructor(element, dirty) {
    this.element = element;
    this.dirty = dirty;
    this.text = "";
    this.drawn = [];
  }
  feed(text) {
    this.text += text.endsWith("\n") ? text.slice(0, -1) : text;
    this.dirty.add(this);
  }
  nextLine() {
    this.text += "\n";
  }
  flush() {
    for (const node of this.drawn) node.remove();
    this.drawn = [];
    for (let end = cutOf(this.text); end > 0; end = cutOf(this.text)) {
      this.element.append(...inline(this.text.slice(0, end)));
      this.text = this.text.slice(end);
    }
    for (const node of inline(this.text)) {
      this.drawn.push(typeof node === "string" ? document.createTextNode(node) : node);
    }
    this.element.append(...this.drawn);
  }
}

// Where a long text is cut: at a space behind LONGEST_RUN characters, or in a text without one, somewhat later. 0: not yet.
function cutOf(text) {
  if (text.length < 2 * LONGEST_RUN) return 0;
  const space = text.slice(LONGEST_RUN, 2 * LONGEST_RUN).search(/\s/);
  return space < 0 ? 2 * LONGEST_RUN : LONGEST_RUN + space;
}

// Lines of a fence, as they are.
class Code {
  constructor(element, fence, indent, language) {
    this.fence = fence;
    this.indent = indent;
    this.text = document.createTextNode("");
    const name = language.trim().split(/\s/)[0].slice(0, 40);
    const bar = make("div", { class: "bar" }, make("span", {}, name || "code"), copyButton(() => this.text.data, "Copy code"));
    element.append(make("div", { class: "code" }, bar, make("pre", { tabindex: "0" }, make("code", {}, this.text))));
  }
  feed(text) {
    this.text.appendData(text);
  }
  closedBy(line) {
    const found = FENCE.exec(line);
    return found !== null && found[2] === "" && found[1][0] === this.fence[0] && found[1].length >= this.fence.length;
  }
}

class Blocks {
  constructor(element, depth, dirty) {
    this.element = element;
    this.depth = depth;
    this.dirty = dirty;
    this.held = ""; // the beginning of a line of unknown kind
    this.sink = null; // takes the rest of the line
    this.open = null; // the block that the next line may continue: {kind, …}
    this.row = null; // a line that is the head of a table if the next one says so
  }

  feed(text) {
    text = this.held + text;
    this.held = "";
    while (text !== "") {
      const end = text.indexOf("\n");
      if (this.sink === null) {
        if (end < 0 && text.length < LONGEST_HELD && UNDECIDED.test(text)) {
          this.held = text;
          return;
        }
        text = this.begin(text, end);
      } else if (end < 0) {
        this.sink.feed(text);
        return;
      } else {
        this.sink.feed(text.slice(0, end + 1));
        this.sink = null;
        text = text.slice(end + 1);
      }
    }
  }

  end() {
    if (this.held !== "") {
      const { held } = this;
      this.held = "";
      const rest = this.begin(held + "\n", held.length);
      if (rest !== "" && this.sink !== null) this.sink.feed(rest);
      this.sink = null;
    }
    this.flushRow();
    this.open?.child?.end();
    this.open = null;
  }

  // Decides a line's kind. end: where it ends, or -1. Returns the text that is left to read: the rest of the line, or
  // what follows it.
  begin(text, end) {
    const whole = end >= 0 && end < LONGEST_HELD;
    const line = text.slice(0, whole ? end : LONGEST_HELD);
    const after = text.slice(line.length + 1);
    if (this.open?.kind === "code") return this.inCode(text, line, whole, after);
    if (this.row !== null) {
      if (whole && DELIMITER.test(line) && cells(line).length === cells(this.row).length) return this.table(line, after);
      this.flushRow();
    }
    if (this.open?.kind === "table") {
      if (whole && line.trimStart().startsWith("|")) return this.tableRow(line, after);
      this.open = null;
    }
    if (whole && BLANK.test(line)) return this.blank(after);
    if (this.open?.kind === "list") {
      const rest = this.inList(text, line);
      if (rest !== null) return rest;
    }
    if (this.depth < DEEPEST) {
      const rest = this.container(text, line);
      if (rest !== null) return rest;
    }
    const rest = this.block(text, line, whole, after);
    return rest ?? this.paragraph(text);
  }

  blank(after) {
    if (this.open?.kind === "list") {
      this.open.child.feed("\n");
      this.open.blank = true;
    } else {
      this.close();
    }
    return after;
  }

  close() {
    this.open?.child?.end();
    this.open = null;
  }

  inCode(text, line, whole, after) {
    if (whole && this.open.code.closedBy(line)) {
      this.open = null;
      return after;
    }
    const indent = Math.min(this.open.code.indent, line.length - line.trimStart().length);
    this.sink = this.open.code;
    return text.slice(indent);
  }

  // A line in an open list: it belongs to the item, or begins another one, or ends the list (null).
  inList(text, line) {
    const list = this.open;
    const indent = line.length - line.trimStart().length;
    const item = ITEM.exec(line);
    if (indent >= list.indent + 2) {
      this.sink = list.child;
      list.blank = false;
      return text.slice(Math.min(indent, list.inner));
    }
    if (item !== null && !RULE.test(line) && kindOf(item[2]) === list.marker) {
      list.child.end();
      return this.item(list, item, text);
    }
    const lazy = !list.blank && item === null && list.child.open?.kind === "paragraph" && !startsBlock(line);
    if (!lazy) {
      this.close();
      return null;
    }
    this.sink = list.child;
    return text;
  }

  item(list, [marker, before, sign, space], text) {
    list.indent = before.length;
    list.inner = before.length + sign.length + Math.min(Math.max(space.length, 1), 4);
    list.blank = false;
    const element = make("li");
    list.element.append(element);
    list.child = new Blocks(element, this.depth + 1, this.dirty);
    this.sink = list.child;
    return text.slice(marker.length);
  }

  // Lists and quotes, whose lines are blocks of their own.
  container(text, line) {
    const item = RULE.test(line) ? null : ITEM.exec(line);
    if (item !== null) {
      this.close();
      const number = parseInt(item[2], 10);
      const element = Number.isNaN(number) ? make("ul") : make("ol", { start: number === 1 ? undefined : number });
      this.element.append(element);
      this.open = { kind: "list", element, marker: kindOf(item[2]) };
      return this.item(this.open, item, text);
    }
    const quote = QUOTE.exec(line);
    if (quote === null) return null;
    if (this.open?.kind !== "quote") {
      this.close();
      const element = make("blockquote");
      this.element.append(element);
      this.open = { kind: "quote", child: new Blocks(element, this.depth + 1, this.dirty) };
    }
    this.sink = this.open.child;
    return text.slice(quote[0].length);
  }

  // The other blocks, except paragraphs (null).
  block(text, line, whole, after) {
    const heading = HEADING.exec(line);
    if (heading !== null) {
      this.close();
      const element = make(`h${Math.min(heading[1].length + 2, 6)}`);
      this.element.append(element);
      this.sink = new Line(element, this.dirty);
      return text.slice(heading[0].length);
    }
    if (!whole) return null;
    const fence = FENCE.exec(line);
    if (fence !== null) {
      this.close();
      const indent = line.length - line.trimStart().length;
      this.open = { kind: "code", code: new Code(this.element, fence[1], indent, fence[2]) };
      return after;
    }
    if (RULE.test(line)) {
      this.close();
      this.element.append(make("hr"));
      return after;
    }
    if (line.trimStart().startsWith("|")) {
      this.close();
      this.row = line;
      return after;
    }
    return null;
  }

  paragraph(text) {
    if (this.open?.kind === "paragraph") {
      this.open.line.nextLine();
    } else {
      this.close();
      const element = make("p");
      this.element.append(element);
      this.open = { kind: "paragraph", line: new Line(element, this.dirty) };
    }
    this.sink = this.open.line;
    return text.replace(/^[ \t]+/, "");
  }

  // -- tables ----

  flushRow() {
    if (this.row === null) return;
    const { row } = this;
    this.row = null;
    const text = this.paragraph(row);
    this.sink.feed(text);
    this.sink = null;
  }

  table(line, after) {
    const sides = cells(line).map((cell) => (/^:-+:$/.test(cell) ? "middle" : cell.endsWith(":") ? "end" : undefined));
    const body = make("tbody");
    this.open = { kind: "table", sides, body };
    const head = make("thead", {}, this.cellsOf(this.row, "th"));
    this.element.append(make("div", { class: "scroll", tabindex: "0" }, make("table", {}, head, body)));
    this.row = null;
    return after;
  }

  tableRow(line, after) {
    this.open.body.append(this.cellsOf(line, "td"));
    return after;
  }

  cellsOf(line, tag) {
    const texts = cells(line);
    return make("tr", {}, ...this.open.sides.map((side, at) => make(tag, { class: side }, ...inline(texts[at] ?? ""))));
  }
}

const kindOf = (sign) => sign.replace(/\d+/, "1"); // a list's signs are all the same, or all numbers

function startsBlock(line) {
  return HEADING.test(line) || FENCE.test(line) || RULE.test(line) || QUOTE.test(line) || line.trimStart().startsWith("|");
}

// A row's cells; "\|" is no border.
function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.replaceAll("\\|", "|").trim());
}
