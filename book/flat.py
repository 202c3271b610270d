"""A phase's engine in one file, as `gradus flat` prints it: a page of the book, to be read from top to bottom."""

import ast
from collections.abc import Iterator
from functools import cache
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from book import sources
from gradus import phases
from gradus.course.views.flat import flatten

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PHASE = "p06"
"""The last one that every later engine builds on: pages, prefix cache and chunks, and nothing for one device alone."""
PAGE = f"flat/{PHASE}"


def setup(app: "Sphinx") -> None:
    app.connect("html-collect-pages", page)


@cache
def text() -> str:
    return flatten(phases.find(PHASE))


def page(app: "Sphinx") -> Iterator[tuple[str, dict[str, Any], str]]:
    title = f"gradus flat {PHASE}"
    yield PAGE, {"title": title, "body": f"<h1>{title}</h1>\n{sources.listing(text(), f'{PHASE}.py')}"}, "page.html"


def excerpt(name: str) -> str:
    """The last function of that name, without its docstring. Raises IndexError where there is none."""
    functions = [node for node in ast.walk(ast.parse(text())) if isinstance(node, ast.FunctionDef)]
    function = [node for node in functions if node.name == name][-1]
    first = function.body[1 if ast.get_docstring(function) else 0]
    lines = text().splitlines()
    head = lines[function.lineno - 1 : function.body[0].lineno - 1]
    return dedent("\n".join([*head, *lines[first.lineno - 1 : function.end_lineno]]))
