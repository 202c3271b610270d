"""The text of every page, cut at its headings, as a script for the search: it works from a disk as from a server.

static/search.js finds words in it, on the page of templates/search.html. Sphinx's own index is left out: its order is
mostly the alphabet's, and its excerpts come from pages that a browser does not fetch from a disk.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from book import contents

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HEADING = re.compile(r"#+ (.+)")
MARKUP = (
    (r"<!--.*?-->|</?(?:details|summary)>", ""),
    (r"!?\[([^]]*)\]\([^)]*\)", r"\1"),  # a link is its text, a figure its description
    (r"^\|[-:| ]+\|$|^```[^\n]*$", ""),  # lines that rule a table or fence code
    (r"^\| ?([^\n]*?) ?\|$", lambda row: row[1].replace(" | ", " · ") + "."),
    (r"^[>*-] |\*\*|`", ""),
    (r"(?<!\w)\*(?=\w)|(?<=[\w.?!)])\*(?!\w)", ""),  # what is in italics
    (r"\s+", " "),
)
"""Patterns, each with its replacement in plain text."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the text under it. anchor: its id in the page, the same in the book as on GitHub."""

    anchor: str
    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """shelf: which part of the navigation it belongs to, by number; its sections begin with the page's title."""

    link: str
    shelf: int
    part: str
    sections: list[Section]


def setup(app: "Sphinx") -> None:
    app.connect("builder-inited", leave_out_index)
    app.connect("html-collect-pages", search_page)
    app.connect("build-finished", write_texts)


def pages(root: Path = contents.ROOT) -> list[Page]:
    """List the book's pages in the order of the navigation. A report's tables are left out: they are numbers."""
    found = []
    for shelf, part in enumerate(contents.parts(root)):
        for page in contents.pages_of(part, root):
            markdown = (root / f"{page}.md").read_text(encoding="utf-8")
            if page.startswith("reports/"):
                markdown = re.sub(r"^\|.*\n", "", markdown, flags=re.MULTILINE)
            found.append(Page(f"{page}.html", shelf, part.caption, sections(markdown)))
    return found


def sections(markdown: str) -> list[Section]:
    """A page cut at its headings. A line of code that begins with # is none."""
    cut: list[tuple[str, list[str]]] = []
    coded = False
    for line in markdown.splitlines():
        coded ^= line.startswith("```")
        if not coded and (heading := HEADING.fullmatch(line)):
            cut.append((heading[1], []))
        elif cut:
            cut[-1][1].append(line)
    anchors = anchors_of([heading for heading, _ in cut])
    return [
        Section(anchor, plain(heading), plain("\n".join(lines)))
        for anchor, (heading, lines) in zip(anchors, cut, strict=True)
    ]


def anchors_of(headings: list[str]) -> list[str]:
    """As GitHub and the book name them, a repeated one with a number."""
    seen: Counter[str] = Counter()
    anchors = []
    for heading in headings:
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        anchors.append(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return anchors


def plain(markdown: str) -> str:
    for pattern, text in MARKUP:
        markdown = re.sub(pattern, text, markdown, flags=re.MULTILINE | re.DOTALL)
    return markdown.strip()


def script(known: list[Page]) -> str:
    """A script, since a page on a disk may load one, but no JSON."""
    return f"const PAGES = {json.dumps([asdict(page) for page in known], ensure_ascii=False)};\n"


# -- in a build --------------------------------------------------------------------------------------------------------


def leave_out_index(app: "Sphinx") -> None:
    app.builder.search = False


def search_page(app: "Sphinx") -> Iterator[tuple[str, dict[str, Any], str]]:
    yield "search", {"title": "Search", "furo_hide_toc": True}, "search.html"


def write_texts(app: "Sphinx", error: Exception | None) -> None:
    if error is None:
        Path(app.outdir, "_static", "pages.js").write_text(script(pages()), encoding="utf-8")
