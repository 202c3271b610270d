"""Sentences whose numbers come from results.json: `{table/row/contender/metric}` becomes the measured median.

They are in `account.txt`, in the folder of the results that they explain, and in `step` of a phase's benchmark:

    {output-length/200/p01/output_tok_s}             the first model of the results, as the metric is shown everywhere
    {output-length/200/p01/predicted}                the prediction of the table's metric
    {output-length/200/p01/speedup}                  against the table's `against`
    {profile/p01/kernels}                            a profile's number; `top` is its first kernel's name
    {random:gpt2-124m, float32: batch/64/p02/itl_ms} a certain run, by the title that the report gives it
    {rates/read_gb_s}                                a rate of the machine

A field that the results lack is an error, never a blank. No torch here.
"""

import re
from pathlib import Path
from typing import Any

from gradus.bench.declare.declaration import FIRST_ROW, Benchmark, Table, in_scheme, quantized
from gradus.bench.record.metrics import METRICS, shown, spread
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.errors import ConfigError

ACCOUNT = "account.txt"
FIELD = re.compile(r"\{([^{}]+)\}")

# Digits that are no measurement: names of phases, number types, models, hardware.
NAMES = re.compile(r"\b(?:p\d\d|fp\d+|bf\d+|float\d+|bfloat\d+|int\d+|[A-Za-z]+\d+[A-Za-z]?\b|p\d\d?\b)|\S*-\d\S*")


def account(folder: Path) -> list[str]:
    """The paragraphs that are written on the results of a folder, each as one line; [] if there are none."""
    file = folder / ACCOUNT
    text = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    return [" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n") if paragraph]


def fill(text: str, results: Results, benchmark: Benchmark) -> str:
    """Fill in the numbers. Raises ConfigError naming a field that the results lack."""
    return FIELD.sub(lambda match: lookup(match[1], results, benchmark), text)


def loose_numbers(text: str) -> list[str]:
    """Numbers written into the prose with no field behind them; a test allows none."""
    bare = NAMES.sub("", FIELD.sub("", text))
    return re.findall(r"\d[\d.,]*", bare)


def lookup(where: str, results: Results, benchmark: Benchmark) -> str:
    missing = ConfigError(f"reports of {results.hardware}/{results.benchmark}: the results have no {{{where}}}")
    title, colon, path = where.rpartition(": ")
    run = next((run for run in results.runs if not colon or run.title == title), None)
    if run is None:
        raise missing
    try:
        value = _value(path.split("/"), run, benchmark)
    except (KeyError, StopIteration, IndexError, ValueError):
        value = None
    if value is None:
        raise missing
    return value


def _value(parts: list[str], run: Run, benchmark: Benchmark) -> str | None:
    if parts[0] == "rates":
        return shown(run.fingerprint["rates"][parts[1]])
    if parts[0] == "profile":
        profile = next(profile for profile in run.profiles if profile["contender"] == parts[1])
        if parts[2] == "top":
            return f"`{profile['top'][0][0]}`"
        return shown(profile["top"][0][1] if parts[2] == "top_percent" else profile[parts[2]])
    name, *label, contender, metric = parts
    table, cell = benchmark.table(name), run.cell(name, "/".join(label))  # a row may be called "8/s"
    entry = cell.entry(contender) if cell else None
    if cell is None or entry is None:
        return None
    if metric in ("predicted", "times_floor", "speedup"):
        number = {"predicted": predicted, "times_floor": times_floor}.get(
            metric, lambda e, t: speedup(e, cell, run, t)
        )(entry, table)
        return None if number is None else shown(number)
    found = spread(entry.samples, metric)
    return None if found is None else shown(found.median, metric)


# -- derived numbers, for sentences and tables alike -------------------------------------------------------------------


def predicted(entry: Entry, table: Table) -> float | None:
    """The floor of the table's metric."""
    return None if entry.prediction is None else METRICS[table.metric].floor(entry.prediction)


def times_floor(entry: Entry, table: Table) -> float | None:
    """Measured over predicted, as a factor: 1 is the floor itself."""
    floor, measured = predicted(entry, table), spread(entry.samples, table.metric)
    return None if floor is None or measured is None else METRICS[table.metric].times_floor(measured.median, floor)


def speedup(entry: Entry, cell: Cell, run: Run, table: Table) -> float | None:
    """The factor relative to the table's `against`; None if there is nothing to compare with."""
    base = reference(entry, cell, run, table)
    measured, before = spread(entry.samples, table.metric), spread(base.samples, table.metric) if base else None
    if measured is None or before is None:
        return None
    better = METRICS[table.metric].more_is_better
    return measured.median / before.median if better else before.median / measured.median


def reference(entry: Entry, cell: Cell, run: Run, table: Table) -> Entry | None:
    if table.against is None:
        return None
    if table.against == FIRST_ROW:
        return run.of(table.name)[0].entry(entry.contender)
    _, scheme = quantized(entry.contender)
    return cell.entry(in_scheme(table.against, scheme)) or cell.entry(table.against)


def facts(run: Run) -> dict[str, Any]:
    """Hardware, rates and versions, in a report's order."""
    rates = run.fingerprint["rates"]
    return {
        **run.fingerprint["hardware"],
        "measured": (
            f"read {shown(rates['read_gb_s'])} GB/s, copy {shown(rates['copy_gb_s'])} GB/s, "
            f"products {shown(1e3 * rates['float32_tflop_s'])} GFLOP/s in float32 and "
            f"{shown(1e3 * rates['bfloat16_tflop_s'])} in bfloat16, one tiny operation {shown(rates['launch_us'])} µs"
        ),
        "versions": ", ".join(f"{name} {version}" for name, version in run.fingerprint["versions"].items()),
        "settings": ", ".join(f"{name} {value}" for name, value in run.settings.items()),
    }
