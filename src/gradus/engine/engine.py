"""The loop: schedule, run, commit. It is the same from the first phase to the server; its parts are swapped."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from gradus.engine.plan import Plan, Result
from gradus.engine.request import ModelLimits, Request
from gradus.engine.scheduler import Scheduler
from gradus.engine.sequence import Output, Sequence


class Runner(Protocol):
    def run(self, plan: Plan) -> Result:
        """Start one forward pass over the plan's spans and return without waiting for it."""


@dataclass(slots=True)
class Metrics:
    """Totals since the engine was built, and its queue now. A request's n samples count one each.

    completed: ended by a stop token, a stop string or their length. failed: ended by an error.
    batch_total, max_batch: spans, summed over all steps, and the most in one.
    rows, padding_rows: what the model computed, and what of it nobody had asked for.
    """

    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    batch_total: int = 0
    max_batch: int = 0
    rows: int = 0
    padding_rows: int = 0
    waiting: int = 0
    active: int = 0

    @property
    def average_batch(self) -> float:
        return self.batch_total / self.steps if self.steps else 0.0


class Engine:
    """Runs requests to completion, one step at a time: choose the work, do it, record it. Token ids in, token ids out.

    Not thread-safe: whoever owns the loop makes every call. An exception out of `step` means that the engine itself is
    broken; what goes wrong for a single sequence ends that sequence with finish_reason "error".
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, limits: ModelLimits) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.limits = limits
        self._totals = Metrics()

    def step(self) -> list[Output]:
        plan = self.scheduler.schedule()  # which sequences advance, and by how many tokens
        if plan is None:
            return []
        result = self.runner.run(plan)  # one forward pass over all of them
        outputs = self.scheduler.commit(plan, result)  # append tokens, finish, free
        self._count_step(plan, result, outputs)
        return outputs

    def submit(self, request: Request) -> None:
        """Queue a request, its n samples at once. Raises RequestError, keeping nothing, if it could never be served."""
        self.scheduler.add([Sequence(request, index) for index in range(request.params.n)])
        self._totals.prompt_tokens += len(request.prompt)

    def cancel(self, request_id: str, index: int | None = None, reason: str = "cancelled") -> list[Output]:
        """End a request, or one sample of it, in whatever state it is.

        Returns the last output of each sample that this ended; [] if they had ended before.
        """
        outputs = self.scheduler.cancel(request_id, index, reason)
        self._count_endings(outputs)
        return outputs

    @property
    def has_work(self) -> bool:
        return self.scheduler.waiting_count + self.scheduler.active_count > 0

    def metrics(self) -> Metrics:
        """A snapshot; later steps do not change it."""
        return replace(self._totals, waiting=self.scheduler.waiting_count, active=self.scheduler.active_count)

    def _count_step(self, plan: Plan, result: Result, outputs: Iterable[Output]) -> None:
        totals = self._totals
        totals.steps += 1
        totals.batch_total += len(plan.spans)
        totals.max_batch = max(totals.max_batch, len(plan.spans))
        totals.rows += result.rows
        totals.padding_rows += result.rows - sum(len(span.tokens) for span in plan.spans)
        totals.generated_tokens += sum(len(output.tokens) for output in outputs)
        self._count_endings(outputs)

    def _count_endings(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if output.finish_reason in ("stop", "length"):
                self._totals.completed += 1
            elif output.finish_reason == "error":
                self._totals.failed += 1
            elif output.finish_reason is not None:
                self._totals.cancelled += 1
