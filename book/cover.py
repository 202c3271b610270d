"""The front page: what Gradus is, where to begin, the chapters with their ideas, and where to read on.

Its words are in templates/cover.html; the chapters come from the syllabus. On every page the book's name leads here.
"""

from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

from book import contents, demos, search, xray
from gradus import phases

COVER = "index"


def setup(app: Sphinx) -> None:
    app.connect("html-collect-pages", cover)
    app.connect("html-page-context", lead_here)


def cover(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the page, with no list of its headings at the side."""
    chapters = [(f"phases/{phase.folder}/README", phase) for phase in phases.available()]
    shown = {"runs": xray.PHASES, "demos": demos.DEMOS, "demo": search.anchors_of([demos.HEADING])[0]}
    yield COVER, {"start": contents.START, "chapters": chapters, **shown, "furo_hide_toc": True}, "cover.html"


def lead_here(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Make the cover what the theme calls the main page, though Sphinx's own is the page that holds the navigation."""
    context["master_doc"] = COVER
