"""Does the GPU wait for the host between two steps, and for how long?

The host's own time says nothing about it: what it does while the GPU works costs nothing. So the GPU is asked. An event
lies before and after each step's work. If the one after the last step has not come when the next step's work has been
handed over whole, the GPU has had no pause. If it has, the pause is at most the time between the two steps' events, and
the time that handing over took.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result

FULL = 0.75  # a step counts with at least this share of the most sequences that any step had


@dataclass(slots=True)
class Step:
    """sequences: how many decoded; 0 where anything else ran. handing_over_us: the host's time in `run`.

    late: the step before had ended when this one had been handed over.
    """

    sequences: int
    before: torch.cuda.Event
    after: torch.cuda.Event
    handing_over_us: float
    late: bool


class IdleWatch:
    """Stands before an engine's runner, on a GPU. Costs some microseconds per step: for runs that are not timed."""

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
        """How long the GPU waited at most before each full step of decodes, in microseconds."""
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
