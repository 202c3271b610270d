"""The report of a study: its declaration, and the order of question, prediction, tables, figures and losses in all."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from gradus.bench.record.plots import Picture
from gradus.bench.record.results import Results, Run, figure_name

Rows = tuple[list[str], list[list[str]]]
"""A table: its header and its rows."""
Part = str | Rows


def figure(found: Results, run: Run, name: str, title: str) -> str:
    """Show the figure of a table, in the folder of the results."""
    return f"![{title}]({figure_name(found, run, name)})"


@dataclass(frozen=True, slots=True)
class Study:
    """A comparison with tables of its own, because it does not run workloads on several engines.

    quick: a note on runs that were a quick look. about: paragraphs before a run's tables. tables: a run's tables.
    pictures: a run's figures, by table. findings: sections after the tables of all runs. losses: a paragraph on a run.
    command: the command that repeats a run; its second argument is the device ("cpu" or "cuda").
    """

    name: str
    question: tuple[str, ...]
    prediction: tuple[str, ...]
    how_to_read: str
    quick: str
    tables: Callable[[Results, Run], Iterable[Part]]
    pictures: Callable[[Run], Iterable[tuple[str, Picture]]]
    losses: Callable[[Run], str]
    command: Callable[[Run, str], str]
    about: Callable[[Run], Iterable[str]] = lambda run: ()
    findings: Callable[[Results], Iterable[str]] = lambda found: ()

    def report(self, found: Results) -> Iterator[Part]:
        """The paragraphs and tables of report.md, without the heading and the common ending."""
        yield from self.question
        yield "## Predicted"
        yield from self.prediction
        yield self.how_to_read
        for run in found.runs:
            yield f"## {run.title}"
            if run.settings["quick"]:
                yield f"**A quick look, not to be quoted.** {self.quick}"
            yield from self.about(run)
            yield from self.tables(found, run)
        yield from self.findings(found)
        yield "## Where it loses"
        yield from (f"**{run.title}.** {self.losses(run)}" for run in found.runs)

    def figures(self, found: Results, hardware: str) -> Iterator[tuple[str, Picture]]:
        """(file name, picture) of each table of each run. hardware: as people call it."""
        for run in found.runs:
            for name, picture in self.pictures(run):
                yield figure_name(found, run, name), replace(picture, subtitle=f"{run.title}, {hardware}")


def gradus_bench(name: str, run: Run, device: str) -> str:
    """The command that measures a benchmark again as a run was. device: "cpu" or "cuda"."""
    if "scheme" in run.settings:
        numbers = f" --dtype {run.settings['dtype']} --quantize {run.settings['quantize']}"
    else:
        numbers = "" if " " in run.dtype else f" --dtype {run.dtype}"  # "auto" may choose mixed widths on a CPU
    return f"gradus bench {name} --device {device} --model {run.model}{numbers}"
