"""The glossary under the words of every page, and formulas as MathML, which browsers draw by themselves.

The first time a page uses a term of docs/glossary.md, the term shows its meaning when it is pointed at.
"""

import re
from functools import cache
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from book.contents import ROOT

GLOSSARY = "docs/glossary"
ROW = re.compile(r"^\| (?!term \||-)([^|]+) \| ([^|]+) \|$", re.MULTILINE)
EVERYDAY = {
    "batch", "code", "column", "cursor", "delta", "event", "group", "hit", "host", "lag", "launch", "n",
    "outlier", "page", "phase", "plan", "policy", "position", "program", "rehearsal", "replay", "request",
    "sequence", "skeleton", "split", "step", "stream",
}  # fmt: skip
"""Terms that a page uses all the time, or in their everyday sense."""


def setup(app: Sphinx) -> None:
    app.add_post_transform(ExplainTerms)
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    app.config.html_math_renderer = "mathml"


@cache
def meanings() -> dict[str, str]:
    """By term, in lower case."""
    rows = ROW.findall((ROOT / f"{GLOSSARY}.md").read_text(encoding="utf-8"))
    return {term.strip().lower(): re.sub(r"[`*]", "", meaning) for names, meaning in rows for term in names.split(",")}


@cache
def _terms() -> re.Pattern[str]:
    """Longer terms first; a plural is the term as well."""
    wanted = sorted(meanings().keys() - EVERYDAY, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, wanted))})(?:s|es)?(?![\w-])", re.IGNORECASE)


class ExplainTerms(SphinxPostTransform):
    default_priority = 900
    formats = ("html",)

    def run(self, **_: Any) -> None:
        if self.env.current_document.docname in (GLOSSARY, "CHANGELOG"):
            return
        seen: set[str] = set()
        paragraphs = [p for p in self.document.findall(nodes.paragraph) if not isinstance(p.parent, nodes.entry)]
        for paragraph in paragraphs:  # not the cells of tables, which name things
            for text in [child for child in paragraph.children if isinstance(child, nodes.Text)]:
                paragraph.replace(text, explained(text.astext(), seen))


def explained(text: str, seen: set[str]) -> list[nodes.Node]:
    """The text with the terms in it that are not in `seen` yet, which then are."""
    parts: list[nodes.Node] = []
    end = 0
    for found in _terms().finditer(text):
        term = found[1].lower()
        if term not in seen:
            seen.add(term)
            parts += [nodes.Text(text[end : found.start()])]
            parts += [nodes.abbreviation(found[0], found[0], explanation=meanings()[term], classes=["term"])]
            end = found.end()
    return [*parts, nodes.Text(text[end:])]


# -- formulas ----------------------------------------------------------------------------------------------------------


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode
