"""Room for words in tables: columns of sentences and of names are wider than the columns of numbers around them."""

from collections.abc import Sequence
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

SENTENCE = 30  # characters, beyond which a cell holds words more than a value
NAME = 12  # characters, beyond which a name is broken at its blanks and hyphens
WHOLE = 20  # characters, up to which a name without blanks stays in one piece


def setup(app: Sphinx) -> None:
    app.add_post_transform(MarkWords)


class MarkWords(SphinxPostTransform):
    """Cells get a class that book.css gives room to: `sentence`, `name` or `whole`."""

    default_priority = 900
    formats = ("html",)

    def run(self, **_: Any) -> None:
        for table in self.document.findall(nodes.tgroup):
            rows = [list(row.findall(nodes.entry)) for row in table.findall(nodes.row)]
            kinds = [kind_of([cell.astext() for cell in column[1:]]) for column in zip(*rows, strict=True)]
            every = all(kind == "sentence" for kind in kinds)  # then none needs more than the others
            for row in rows:
                for cell, kind in zip(row, kinds, strict=True):
                    cell["classes"] += [kind] if kind and not every else []
                    cell["classes"] += ["whole"] if is_whole(cell.astext()) else []


def kind_of(column: Sequence[str]) -> str:
    """Tell "sentence", "name", or "" for a column of values. column: its cells, without the head."""
    longest = max(column, key=len, default="")
    if len(longest) > SENTENCE:
        return "sentence"
    return "name" if len(longest) > NAME and longest[0].isalpha() else ""


def is_whole(text: str) -> bool:
    """Whether browsers would break at a hyphen what reads as one name, such as qwen3-0.6b."""
    return len(text) <= WHOLE and " " not in text
