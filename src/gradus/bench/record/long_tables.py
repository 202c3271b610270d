"""The tables of p09's page on long prompts, from benchmarks/lessons/long_lesson.json: chunks and whole prompts."""

from statistics import linear_regression
from typing import Any

from gradus import phases
from gradus.bench.record.metrics import shown
from gradus.bench.record.study import Part
from gradus.models.shapes import SHAPES

Steps = list[tuple[int, int, float]]
"""(start, count, seconds) of each chunk."""

WAYS = {"equal": "of equal length", "cut": "of equal cost"}


def steps(found: dict[str, Any], way: str) -> Steps:
    """The chunks of a prompt that was cut in one of WAYS, each with the seconds of its shortest run: whatever disturbs
    a step makes it longer."""
    one = found["steps"][way]
    return [
        (start, count, min(run[place] for run in one["seconds"])) for place, (start, count) in enumerate(one["chunks"])
    ]


def line(chunks: Steps) -> tuple[float, float]:
    """Fit seconds = a + b · start to those chunks that are as long as the longest. Returns a and b."""
    longest = max(count for _, count, _ in chunks)
    starts, times = zip(*((start, took) for start, count, took in chunks if count == longest), strict=True)
    slope, begin = linear_regression(starts, times)
    return begin, slope


def step_tables(found: dict[str, Any], samples: str) -> list[Part]:
    """Show the steps of each way to cut the prompt, then the line through those of equal length."""
    hardware, taken = found["hardware"], {way: steps(found, way) for way in WAYS}
    runs, whole = len(found["steps"]["equal"]["seconds"]), taken["equal"]
    begin, slope = line(whole)
    header = ["chunks", "tokens", "s, shortest and longest", "longest over shortest", "s, all steps"]
    rows = [_way_row(f"{len(one)} {WAYS[way]}", one) for way, one in taken.items()]
    return [
        f"**{hardware['processor']}**, one thread, {found['model']} in {found['phase']}, float32, a prompt of "
        f"{sum(count for _, count, _ in whole):,} tokens. Seconds of the processor, the shortest of {runs} runs of "
        f"each step; all but the last chunk, which has the rest, are compared. {samples}",
        (header, rows),
        f"A step of equal length takes {shown(begin)} s + {shown(1000 * slope)} s for each 1,000 positions before it. "
        f"Attention takes as long as everything else at position {begin / slope:,.0f}; by FLOPs, at "
        f"{_chunks().even(_sizes(found['model'])):,.0f}.",
    ]


def _way_row(name: str, chunks: Steps) -> list[str]:
    sizes, times = zip(*((count, took) for _, count, took in chunks[:-1]), strict=True)
    between = f"{max(sizes)} to {min(sizes)}" if len(set(sizes)) > 1 else str(sizes[0])
    total = sum(took for *_, took in chunks)
    shortest, longest = min(times), max(times)
    return [name, between, f"{shown(shortest)}, {shown(longest)}", f"{longest / shortest:.1f}", shown(total)]


def prompt_tables(found: dict[str, Any], samples: str) -> list[Part]:
    """Show prompt tokens per second by the prompt's length, measured and as two fitted rates give them back."""
    rows = found.get("prompts", [])
    if not rows:
        return []
    lengths = [int(length) for length in rows[0]["tok_s"]]
    speeds, rates = [], []
    for row in rows:
        sizes, name = _sizes(row["model"]), f"{row['engine']}, {row['model']}"
        measured = [(int(length), int(length) / rate) for length, rate in row["tok_s"].items()]
        fitted = _chunks().fitted(sizes, measured)
        again = [shown(length / _chunks().seconds(sizes, length, fitted)) for length, _ in measured]
        speeds.append([name, *(f"{shown(n / took)} ({back})" for (n, took), back in zip(measured, again, strict=True))])
        rates.append([name, *(shown(rate / 1e12) for rate in (fitted.matrices, fitted.attention)), row["gpu"]])
    notes = " ".join(f"{note}: {'; '.join(names)}." for note, names in _noted(rows).items())
    return [
        f"A prompt's tokens per second, alone, by its length: measured (and by the two rates). {notes} {samples}",
        (["", *(f"{length:,}" for length in lengths)], speeds),
        "The rates that explain them:",
        (["", "products, TFLOP/s", "attention, TFLOP/s", "GPU"], rates),
    ]


def _noted(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The rows' notes on where their numbers come from, each with the names of its rows."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if "note" in row:
            found.setdefault(row["note"], []).append(f"{row['engine']} ({row['model']})")
    return found


def _chunks() -> Any:
    """p09's module. No torch is in it."""
    return phases.find("p09").module("chunks")


def _sizes(model: str) -> Any:
    return _chunks().Sizes.of(SHAPES[model])
