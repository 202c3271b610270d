"""Measurements of a server under load, as benchmarks/lessons/load_lesson.py has written them, and p13's predictions."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from gradus import phases

RECORDING = Path(__file__).parents[5] / "benchmarks" / "lessons" / "load_lesson.json"
LIMIT_MS = 200.0
"""Of the lesson's objective: p99 of the time to the first token."""
BOUNDS = (-1.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, float("inf"))
"""Of a router's imbalance, from one that only balances to one that only follows prefixes."""


def part(name: str) -> Any:
    """Import a module of p13's second half. No torch is in them."""
    return phases.find("p13").module(f"load.{name}")


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))
    return found


def predicted() -> Any:
    """The formulas' `Load` with the measured terms of a step."""
    found = recorded()
    terms = [found["pace"][name] / 1e3 for name in ("fixed", "row", "token")]
    pace = part("simulator").Pace(*terms, found["slots"], found["budget"])
    (low, high), prompt = found["output"], found["prompt"]
    return part("formulas").Load(pace, sum(prompt) / 2, (low + high) / 2, part("formulas").spread(low, high))


def opened(metric: str, name: str) -> list[tuple[float, float]]:
    """(requests per second that were sent, ms) of the open loads: "ttft" or "tpot", "p50", "p99" or "mean"."""
    return [(row["rate"], row[f"{metric}_ms"][name]) for row in recorded()["rates"]]


def answered(which: str) -> list[tuple[float, float]]:
    """(requests per second that were answered, p99 of TTFT in ms) of the "rates" or of the "users"."""
    return [(row["requests_s"], row["ttft_ms"]["p99"]) for row in recorded()[which]]


def knee() -> float:
    """The highest measured rate that keeps LIMIT_MS, below the lowest that does not."""
    found = part("knee")
    points = [found.Point(row["rate"], row["ttft_ms"]["p99"], row["late_ms_p99"]) for row in recorded()["rates"]]
    return float(found.kept(points, LIMIT_MS))


@cache
def routed() -> list[tuple[float, Any]]:
    """(bound, what came of it) of a simulated crowd behind a router with two replicas."""
    replicas, pace = part("replicas"), part("simulator").Pace(0.01, 0.0005, 0.0001, 16, 512)
    return [(bound, replicas.play(pace, replicas.Crowd(rate=14, room=200, count=2000), bound)) for bound in BOUNDS]
