"""Measurements of p13's server: benchmarks/lessons/serving_lesson.py has written them. No torch here."""

import json
from typing import Any

from gradus.bench.statistics import median
from gradus.course.xray.lanes.way import RECORDING


def streams(name: str) -> list[tuple[int, float]]:
    """(number of streams, median of the runs) of "rate", "ttft_p50" and so on; "alone" is the rate without a server."""
    rows = _recorded()["streams"]
    if name == "alone":
        return [(row["streams"], median(row["alone"])) for row in rows]
    return [(row["streams"], median([run[name] for run in row["served"]])) for row in rows]


def blocked() -> dict[str, list[tuple[float, float]]]:
    """(seconds, ms) of the longest gaps, by where the prompt is encoded."""
    return {where: [(at, gap) for at, gap in points] for where, points in _recorded()["blocked"].items()}


def _recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))
    return found
