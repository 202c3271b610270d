"""Results of scripts in `benchmarks`, as pages show them. Each JSON file lies next to its script.

These scripts measure something other than workloads on engines, so they write no results.json. No torch here.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradus.bench.record.agent_tables import agent_tables
from gradus.bench.record.goodput_tables import goodput_parts, users_parts
from gradus.bench.record.long_tables import prompt_tables, step_tables
from gradus.bench.record.metrics import percent, shown
from gradus.bench.record.needle_tables import needle_parts
from gradus.bench.record.study import Part
from gradus.bench.statistics import median


def parts(name: str, folder: Path, page: Path) -> list[Part]:
    """A script's results as `page` shows them; [] if it has not been run. folder: `benchmarks`."""
    file = folder / f"{_stem(name)}.json"
    if not file.is_file():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    where = Path(os.path.relpath(file, page.parent)).as_posix()
    return SCRIPTS[name](found, f"[Samples]({where}).")


def command(name: str) -> str:
    """The command that writes the file."""
    script = f"benchmarks/{_stem(name)}"
    return f"python {script}.py --out {script}.json"


EXPERTS = ("experts-lesson-choices", "experts-lesson-times", "experts-lesson-quality")
LONG = ("long-lesson-steps", "long-lesson-prompts")
"""Blocks of one page, each group from one file."""
LESSONS = ("masks", "masks-steps", "serving-lesson", "load-lesson", "parallel-lesson", "tiers-lesson", *EXPERTS, *LONG)
"""Scripts with files in `benchmarks/lessons`."""


def _stem(name: str) -> str:
    shared = {**dict.fromkeys(EXPERTS, "experts_lesson"), **dict.fromkeys(LONG, "long_lesson")}
    stem = shared.get(name) or name.removesuffix("-users").replace("-", "_")
    return f"lessons/{stem}" if name in LESSONS else stem


def _masks(found: dict[str, Any], samples: str) -> list[Part]:
    """The cost of an automaton and its masks, for each expression."""
    masks = found["masks"]
    header = ["the answer is", "states", "automaton, ms", "first mask of a state (the longest), µs", "kept mask, µs"]
    rows = [
        [
            row["name"],
            str(row["states"]),
            shown(row["compiling"] / 1e3),
            f"{shown(median(row['cold']))} ({shown(max(row['cold']))})",
            shown(row["warm"]),
        ]
        for row in masks["rows"]
    ]
    each = median([row["each"] for row in masks["rows"]]) / 1e3
    return [
        f"**{found['hardware']['processor']}**, one core, the {masks['tokens']:,} tokens of {found['model']}, in a "
        f"tree of {masks['nodes']:,} nodes that takes {shown(masks['building'] / 1e6)} s to build. {samples}",
        (header, rows),
        f"Trying each token on its own, without the tree, takes {shown(each)} ms for a state.",
    ]


def _masked_steps(found: dict[str, Any], samples: str) -> list[Part]:
    """Steps on a GPU without masks, and with masks that are filled while the model runs or before."""
    header = ["sequences", "free, ms a step", "masks filled meanwhile", "masks filled before the launch"]
    rows = [
        [str(row["sequences"]), *(shown(row[way]) for way in ("free", "masked", "mask first"))] for row in found["rows"]
    ]
    return [
        f"**{found['hardware']['gpu']}**, {found['steps of']}, masks kept from earlier steps. {samples}",
        (header, rows),
    ]


def _serving_lesson(found: dict[str, Any], samples: str) -> list[Part]:
    """p13's server compared with its engine alone, for each number of streams. Medians of the runs."""
    header = ["streams", "tokens/s", "without a server", "TTFT p50 (p99), ms", "ITL p50 (p99), ms"]
    rows = []
    for row in found["streams"]:
        middle = {name: median([run[name] for run in row["served"]]) for name in row["served"][0]}
        rows.append([str(row["streams"]), shown(middle["rate"]), shown(median(row["alone"]))])
        rows[-1] += [f"{shown(middle[f'{name}_p50'])} ({shown(middle[f'{name}_p99'])})" for name in ("ttft", "itl")]
    return [
        f"**{found['hardware']['processor']}**, {found['hardware']['cores']} cores, {found['model']} in "
        f"{found['phase']}, {found['prompt']} tokens in, {found['tokens']} out, all streams at once. {samples}",
        (header, rows),
    ]


def _load_lesson(found: dict[str, Any], samples: str) -> list[Part]:
    """p13's open loops: latencies by rate."""
    terms = found["pace"]
    header = ["requests/s", "answered/s", "TTFT p50, ms", "TTFT p99, ms", "TPOT, ms"]
    rows = [
        [
            shown(row["rate"]),
            shown(row["requests_s"]),
            shown(row["ttft_ms"]["p50"]),
            shown(row["ttft_ms"]["p99"]),
            shown(row["tpot_ms"]["mean"]),
        ]
        for row in found["open"]
    ]
    (short, long), (few, many) = found["prompt"], found["output"]
    return [
        f"**{found['hardware']['processor']}**, {found['hardware']['cores']} cores, {found['model']} in `gradus serve` "
        f"with one thread and {found['slots']} slots, {short} to {long} tokens in, {few} to {many} out, an open loop. "
        f"A step takes {shown(terms['fixed'])} ms, {shown(terms['row'])} per row, {shown(terms['token'])} per token "
        f"of a prompt. {samples}",
        (header, rows),
    ]


def _parallel_lesson(found: dict[str, Any], samples: str) -> list[Part]:
    """p12's ranks at work in each way to cut a model in two, from the notes of one recorded run each."""
    header = ["cut", "rank", "waits", "usual wait, ms", "time without work"]
    rows = []
    for name, notes in found["ways"].items():
        length = max(note["until"] for note in notes) - min(note["at"] for note in notes)
        for rank in sorted({note["rank"] for note in notes}):
            mine = [note for note in notes if note["rank"] == rank]
            steps = [note for note in mine if note["kind"] == "step"]
            waits = [note for note in mine if note["kind"] != "step"]
            inside = [wait for wait in waits if any(step["at"] <= wait["at"] < step["until"] for step in steps)]
            working = sum(map(_took, steps)) - sum(map(_took, inside))
            usual = shown(median([_took(wait) for wait in waits]))
            idle = percent(1 - working / length)
            rows.append(["" if rank else name, str(rank), str(len(waits)), usual, idle])
    return [
        f"**{found['hardware']['processor']}**, {found['hardware']['cores']} cores, one thread per rank, "
        f"{found['model']}, two requests, {found['tokens']} tokens out. The shortest of {found['runs']} runs. "
        f"{samples}",
        (header, rows),
    ]


def _tiers_lesson(found: dict[str, Any], samples: str) -> list[Part]:
    """The first token of a session by the place of its pages, in p05 over host memory."""
    ways = ("computed", "fetched", "found")
    rows = [
        [f"{row['tokens']:,}", f"{row['bytes'] / 1e6:.0f}", *(shown(1e3 * row[way]) for way in ways)]
        for row in found["rows"]
    ]
    return [
        f"**{found['hardware']['processor']}**, one thread, {found['model'].removeprefix('random:')} with random "
        f"weights, {found['dtype']}. Seconds of the processor, medians of {len(found['rows'][0]['samples']['found'])}. "
        f"{samples}",
        (["tokens", "MB", *(f"{way}, ms" for way in ways)], rows),
    ]


def _experts_choices(found: dict[str, Any], samples: str) -> list[Part]:
    """Experts that real text reads, by p14's router and the number of users."""
    counts = [4, 16]
    places = [found["users"].index(count) for count in counts]
    header = ["router", *(f"{count} users" for count in counts), "16 neighbors in one text", "fullest expert"]
    rows = [["predicted", *(f"{found['predicted'][place]:.1f}" for place in places), "", "1.0 ×"]]
    for name, row in found["choices"].items():
        read = [f"{row['users'][place]:.1f}" for place in places]
        rows.append([name, *read, f"{row['neighbors'][found['users'].index(16)]:.1f}", f"{row['fullest'][0]:.1f} ×"])
    return [
        f"Experts that are read, of {found['experts']}, {found['chosen']} for each token: {found['model']}, a lesson "
        f"of this course, averages over three layers. Fullest: its load as a multiple of the average. {samples}",
        (header, rows),
    ]


def _experts_times(found: dict[str, Any], samples: str) -> list[Part]:
    """The time of one layer's experts by rows: as a loop, and padded."""
    header = ["rows", "experts read", "loop, ms", "padded, ms", "rows that are padding"]
    rows = []
    for row in found["times"]:
        read, padding = median(row["read"]), percent(median(row["padding"]))
        rows.append(
            [str(row["rows"]), f"{read:.0f}", *(shown(median(row[way])) for way in ("loop", "padded")), padding]
        )
    return [
        f"**{found['hardware']['processor']}**, {found['hardware']['cores']} cores, one layer of 32 experts of 512 "
        f"features, 8 for each row of 1,024 values, in float32. Medians of {len(found['times'][0]['loop'])} runs. "
        f"{samples}",
        (header, rows),
    ]


def _experts_quality(found: dict[str, Any], samples: str) -> list[Part]:
    """The loss of taking some of a dense model's slices, by how they are chosen."""
    header = [
        "slices taken",
        "always the first: same best token",
        "perplexity",
        "fitted: same best token",
        "perplexity",
    ]
    rows = []
    for row in found["quality"]:
        pairs = [(percent(row[name]["same"]), f"{row[name]['perplexity']:,.1f}") for name in ("first", "fitted")]
        rows.append([f"{row['chosen']} of {found['experts']}", *(each for pair in pairs for each in pair)])
    return [f"{found['model']}, judged on a lesson of this course. {samples}", (header, rows)]


def _took(note: dict[str, Any]) -> float:
    return float(note["until"] - note["at"])


SCRIPTS: dict[str, Callable[[dict[str, Any], str], list[Part]]] = {
    "masks": _masks,
    "masks-steps": _masked_steps,
    "serving-lesson": _serving_lesson,
    "load-lesson": _load_lesson,
    "parallel-lesson": _parallel_lesson,
    "experts-lesson-choices": _experts_choices,
    "experts-lesson-times": _experts_times,
    "experts-lesson-quality": _experts_quality,
    "tiers-lesson": _tiers_lesson,
    "long-lesson-steps": step_tables,
    "long-lesson-prompts": prompt_tables,
    "agents": agent_tables,
    "goodput": goodput_parts,
    "goodput-users": users_parts,
    "needle": needle_parts,
    "needle-cpu": needle_parts,
}
