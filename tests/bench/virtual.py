"""The benchmarks' driver on a clock that only steps move: what it measures follows from the schedule alone."""

from dataclasses import dataclass
from typing import Any

import pytest

from gradus.bench.measure import drive as driver
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result

STEP, ROW = 0.025, 0.001
"""Seconds of a step, and of each row that it computes: about what a small model takes on two cores."""


@dataclass
class VirtualTime:
    """Stands for the module `time` in the driver."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + 1e-6  # a clock that stops just before an arrival would never get there


class VirtualRunner:
    """A runner that takes time by the rows it computes. largest: the rows of the largest step."""

    def __init__(self, runner: Any, clock: VirtualTime, step: float = STEP, row: float = ROW) -> None:
        self.runner, self.clock, self.step_s, self.row_s = runner, clock, step, row
        self.largest = 0

    def run(self, plan: Plan) -> Result:
        result = self.runner.run(plan)
        self.clock.now += self.step_s + self.row_s * result.rows
        self.largest = max(self.largest, result.rows)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


@pytest.fixture
def virtual(monkeypatch):
    """virtual(engine): from now on the engine's steps move the driver's clock, and nothing else does."""
    clock = VirtualTime()
    monkeypatch.setattr(driver, "time", clock)

    def slowed(engine: Engine) -> Engine:
        engine.runner = VirtualRunner(engine.runner, clock)
        return engine

    return slowed
