"""The beginning of a study's report: the question, the prediction, and the tables of each run."""

from collections.abc import Callable, Iterable, Iterator

from gradus.bench.record.results import Results, Run

Rows = tuple[list[str], list[list[str]]]
"""A table: its header and its rows."""
Part = str | Rows


def opening(
    found: Results,
    question: Iterable[str],
    prediction: Iterable[str],
    how_to_read: str,
    quick: str,
    about: Callable[[Run], Iterable[Part]],
) -> Iterator[Part]:
    """quick: a note for runs that were a quick look. about: the text after a run's title."""
    yield from question
    yield "## Predicted"
    yield from prediction
    yield how_to_read
    for run in found.runs:
        yield f"## {run.title}"
        if run.settings["quick"]:
            yield f"**A quick look, not to be quoted.** {quick}"
        yield from about(run)
