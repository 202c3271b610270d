"""The repository's files as pages of the book, and the way to them: from links, and from names such as `cache.py`.

A lesson links to a file by its path, and GitHub shows that file. In the book the same link opens a page with the file,
every line numbered, so the book needs neither the repository nor a network.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from book.contents import ROOT, answers

SHOWN = {".py", ".toml", ".yaml", ".yml", ".txt", ".json", ".service", ".sh", ""}
DOWNLOADED = {"results.json"}  # samples are for programs
FOLDERS = ("", "src/gradus", "phases")
"""Where a name in a page's text may begin, beside the page's own folder."""


def setup(app: Sphinx) -> None:
    app.add_post_transform(LinkSources)
    app.connect("html-collect-pages", source_pages)


linked: set[str] = set()
"""The files that some page leads to. Every build reads all pages again (`make book`), so none is missing."""


class LinkSources(SphinxPostTransform):
    """Links to files, and file names in the text, lead to the file's own page."""

    default_priority = 5
    formats = ("html",)

    def run(self, **_: Any) -> None:
        page = self.env.current_document.docname
        for link in list(self.document.findall(addnodes.download_reference)):
            path = _inside((ROOT / page).parent / link["reftarget"])
            if path and Path(path).name not in DOWNLOADED:
                link.replace_self(self._reference(page, path, link.children))
        for name in list(self.document.findall(nodes.literal)):
            if isinstance(name.parent, nodes.reference) or not (path := file_named(name.astext(), page)):
                continue
            if path not in answers(page) or not _to_be_written(name):
                name.replace_self(self._reference(page, path, [name.deepcopy()]))

    def _reference(self, page: str, path: str, children: list[nodes.Node]) -> nodes.reference:
        linked.add(path)
        uri = self.app.builder.get_relative_uri(page, f"source/{path}")
        return nodes.reference("", "", *children, internal=True, refuri=uri)


def _to_be_written(name: nodes.Node) -> bool:
    """Whether it is in the section in which the reader writes the phase's files."""
    while not isinstance(name, nodes.document):
        if isinstance(name, nodes.section) and name[0].astext() == "Build it":
            return True
        name = name.parent
    return False


@cache
def file_named(name: str, page: str) -> str | None:
    """The file that a word of the text means: by its path from the page, the repository, or a room of the engine."""
    if not name.endswith((".py", ".toml", ".yaml")) or " " in name:
        return None
    nearby = [(ROOT / page).parent / name, *(ROOT / folder / name for folder in FOLDERS)]
    return next((path for place in nearby if (path := _inside(place))), None)


def _inside(path: Path) -> str | None:
    """A readable file's path in the repository."""
    found = path.resolve()
    readable = found.is_file() and found.suffix in SHOWN and found.is_relative_to(ROOT)
    return found.relative_to(ROOT).as_posix() if readable else None


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that some page leads to."""
    for path in sorted(linked):
        code = listing((ROOT / path).read_text(encoding="utf-8"), path)
        yield f"source/{path}", {"title": path, "body": f"<h1>{path}</h1>\n{code}"}, "page.html"


def listing(text: str, name: str) -> str:
    """Code in colors, every line with a number that can be linked to. name: of the file, which says the language."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, wrapcode=True)
    return str(highlight(text, _lexer(name), formatter))


def _lexer(path: str) -> Any:
    try:
        return get_lexer_for_filename(path)
    except ClassNotFound:
        return TextLexer()
