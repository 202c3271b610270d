"""Measure whether the GPU waits for the host between two steps, and for how long.

The host's own time does not answer this, because work that overlaps with the GPU is free. So CUDA events are recorded
before and after each step's work. If the previous step's last event is still pending once all of the next step's work
is queued, the GPU had no pause. Otherwise the pause is at most the time between the two steps' events, and at most the
time that queueing took.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result

FULL = 0.75  # a step counts if it has at least this share of the largest step's sequences


@dataclass(slots=True)
class Step:
    """sequences: how many decoded; 0 if anything else ran. handing_over_us: the host's time in `run`.

    late: the previous step had ended before all of this one's work was queued.
    """

    sequences: int
    before: torch.cuda.Event
    after: torch.cuda.Event
    handing_over_us: float
    late: bool


class IdleWatch:
    """Wraps an engine's runner on a GPU. Costs some microseconds per step, so it is for untimed runs."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.steps: list[Step] = []

    def run(self, plan: Plan) -> Result:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        start = time.perf_counter()
        result = self.runner.run(plan)
        took = time.perf_counter() - start
        late = not self.steps or self.steps[-1].after.query()
        after.record()
        decodes = plan.tokens == plan.size
        self.steps.append(Step(plan.size if decodes else 0, before, after, 1e6 * took, late))
        return result

    def idle_us(self) -> list[float]:
        """An upper bound of the GPU's wait before each full step of decodes, in microseconds."""
        torch.cuda.synchronize()
        most = max((step.sequences for step in self.steps), default=0)
        return [
            1e3 * last.after.elapsed_time(step.before) + step.handing_over_us if step.late else 0.0
            for last, step in zip(self.steps, self.steps[1:], strict=False)
            if step.sequences and step.sequences >= FULL * most
        ]


@contextmanager
def idle_watch(engine: Engine) -> Iterator[IdleWatch]:
    watch = IdleWatch(engine.runner)
    engine.runner = watch
    try:
        yield watch
    finally:
        engine.runner = watch.runner
