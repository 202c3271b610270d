"""Sphinx's settings, and what is done to a page before Sphinx reads it: its place in the navigation is written into it.

Strict: `make book` turns every warning into an error, so a broken link or anchor ends the build. Nothing is fetched by
the build or by the pages: fonts are the reader's own, search runs in the browser, formulas are MathML.
"""

import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from book import contents, cover, demos, flat, progress, search, sources, tables, words, xray  # noqa: E402  (the path comes first)

project = "Gradus"
author = "The Gradus authors"
root_doc = contents.ABOUT  # holds the navigation
include_patterns = [f"{page}.md" for page in contents.pages()]
exclude_patterns = [".venv", "build", "src", "tests"]
extensions = ["myst_parser"]
nitpicky = True

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # as GitHub has them
myst_heading_anchors = 4  # the anchors that GitHub makes
suppress_warnings = ["myst.header", "toc.excluded"]
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = "Gradus"
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "footer_icons": []}


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    for module in (cover, demos, flat, progress, search, sources, tables, words, xray):
        module.setup(app)


def add_navigation(app: Sphinx, page: str, text: list[str]) -> None:
    """One page holds the whole navigation; a chapter leads to the pages below it."""
    if page == contents.ABOUT:
        text[0] += "".join(_toctree(page, part.pages, part.caption) for part in contents.parts())
    elif further := contents.below(page):
        text[0] += _toctree(page, further, "")


def _toctree(page: str, entries: tuple[str, ...], caption: str) -> str:
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    lines = ("About <self>" if entry == page else f"/{entry}" for entry in entries)
    return f"\n\n```{{toctree}}\n{options}\n" + "\n".join(lines) + "\n```\n"
