"""The recorded run of p12's ranks, which benchmarks/lessons/parallel_lesson.py wrote. No torch here."""

import json
from pathlib import Path
from typing import Any

from gradus import phases

RECORDING = Path(__file__).parents[5] / "benchmarks" / "lessons" / "parallel_lesson.json"


def ways() -> dict[str, list[Any]]:
    """The lesson's own notes, in milliseconds and in order of time, by the way in which the model was cut."""
    found: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))
    note = phases.find("p12").module("watch").Note
    return {name: [note(**each) for each in notes] for name, notes in found["ways"].items()}
