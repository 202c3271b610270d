"""A student's phases among the contenders: "your p01" runs what p01 runs, with the student's functions in place.

Results keep such an entry next to the course's own, and a sentence under the table compares the two. No torch here.
"""

from collections.abc import Iterator
from pathlib import Path

from gradus import phases
from gradus.bench.declare.declaration import YOURS, Benchmark, Table
from gradus.bench.record.metrics import METRICS, shown, spread
from gradus.bench.record.results import Cell, Entry, Run
from gradus.errors import ConfigError
from gradus.exercises import solution
from gradus.exercises.solution import Solution


def solutions(where: Path, benchmarks: list[Benchmark]) -> dict[str, Solution]:
    """The student's phases that these benchmarks measure, by contender: "your p01".

    Raises ConfigError if there is none, if one does not import, and if a file cannot be read.
    """
    rungs = {name for benchmark in benchmarks for table in benchmark.tables for name in table.contenders}
    mine = [phase.name for phase in phases.available() if phase.name in rungs and solution.has_functions(phase, where)]
    if not mine:
        having = ", ".join(sorted(name for name in rungs if name in {phase.name for phase in phases.available()}))
        raise ConfigError(f"{where} has no function of {having}: `gradus exercise` writes a file to begin with")
    found = [one for name in mine if (one := _whole(name, where, alone=len(mine) == 1)) is not None]
    if not found:
        raise ConfigError(f"{where}: nothing of {solution.listed(mine)} is all written yet")
    for one in found:
        one.module("engine")  # fails before anything slow
    return {one.name: one for one in found}


def _whole(name: str, where: Path, *, alone: bool) -> Solution | None:
    """The phase, if it is complete; None for one that is only begun, among several."""
    try:
        return solution.load(name, where)
    except solution.Unfinished:
        if alone:
            raise
        return None


def beside(contenders: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """A table's contenders, each followed by the student's version of the phase."""
    return tuple(one for name in contenders for one in (name, YOURS + name) if one == name or one in names)


def sentences(run: Run, table: Table) -> Iterator[str]:
    """For each workload and each phase of the student's: "your p01: 41 tok/s, 12 × your p00 (ours: 43 tok/s)"."""
    cells = run.of(table.name)
    for cell in cells:
        where = f" ({cell.row} {table.axis})" if len(cells) > 1 else ""
        for entry in cell.entries:
            if entry.contender.startswith(YOURS):
                yield f"{entry.contender}{where}: {_said(entry, cell, table)}"


def _said(entry: Entry, cell: Cell, table: Table) -> str:
    measured = _value(entry, table)
    if measured is None:
        return f"not measured, {entry.skipped}"
    said = _worded(measured, table)
    before = _before(entry, cell)
    if before is not None and (base := _value(before, table)):
        gain = measured / base if METRICS[table.metric].more_is_better else base / measured
        said += f", {shown(gain)} × {before.contender}"
    ours = cell.entry(entry.contender.removeprefix(YOURS))
    if ours is not None and (value := _value(ours, table)):
        said += f" (ours: {_worded(value, table)})"
    return said


def _worded(value: float, table: Table) -> str:
    """ "41 tok/s"; of "latency ms", "latency 7.6 ms" """
    heading, number = METRICS[table.metric].heading, shown(value, table.metric)
    what, _, unit = heading.rpartition(" ")
    return f"{what} {number} {unit}" if unit in ("ms", "MB") else f"{number} {heading}"


def _before(entry: Entry, cell: Cell) -> Entry | None:
    """The baseline: the student's if it was measured, else the course's."""
    base = phases.available()[0].name
    if entry.contender in (YOURS + base, base):
        return None
    return next((one for name in (YOURS + base, base) if (one := cell.entry(name)) and one.samples), None)


def _value(entry: Entry, table: Table) -> float | None:
    found = spread(entry.samples, table.metric)
    return None if found is None else found.median
