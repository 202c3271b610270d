"""Room for words in tables: a column that holds a sentence is wider than the columns of numbers around it."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

SENTENCE = 30  # characters, beyond which a cell holds words more than a value
NAME = 20  # characters, up to which a name such as qwen3-0.6b stays in one piece


def setup(app: Sphinx) -> None:
    app.add_post_transform(MarkSentences)


class MarkSentences(SphinxPostTransform):
    """Cells of columns with words get the class `sentence`, unless all columns have words: then none needs more.

    A cell with one name gets the class `whole`: browsers break it at its hyphens otherwise.
    """

    default_priority = 900
    formats = ("html",)

    def run(self, **_: Any) -> None:
        for table in self.document.findall(nodes.tgroup):
            rows = [list(row.findall(nodes.entry)) for row in table.findall(nodes.row)]
            for cell in (cell for row in rows for cell in row):
                if len(cell.astext()) <= NAME and " " not in cell.astext():
                    cell["classes"].append("whole")
            columns = list(zip(*rows, strict=True))
            wordy = [column for column in columns if any(len(cell.astext()) > SENTENCE for cell in column)]
            if len(wordy) < len(columns):
                for column in wordy:
                    for cell in column:
                        cell["classes"].append("sentence")
