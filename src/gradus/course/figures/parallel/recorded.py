"""Runs that scripts in `benchmarks` have kept: p12's ranks at work, and the final engine on two H100. No torch here."""

import json
from pathlib import Path
from typing import Any

from gradus import phases

BENCHMARKS = Path(__file__).parents[5] / "benchmarks"
RECORDING = BENCHMARKS / "lessons" / "parallel_lesson.json"
MEASURED = BENCHMARKS / "tensor_parallel.json"


def ways() -> dict[str, list[Any]]:
    """The lesson's own notes, in milliseconds and in order of time, by the way in which the model was cut."""
    found: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))
    note = phases.find("p12").module("watch").Note
    return {name: [note(**each) for each in notes] for name, notes in found["ways"].items()}


def two_h100(batch: int) -> tuple[float, float]:
    """Milliseconds of a decode step of Llama 3.1 8B's shape: on one H100, and on two. batch: 1 or 64 requests."""
    parts = json.loads(MEASURED.read_text(encoding="utf-8"))["parts"]
    one, two = (1e3 * batch / parts[gpus][f"batch {batch}"]["decode_tok_s"] for gpus in ("one", "two"))
    return one, two
