"""The loop: schedule, run, commit. It is the same from the first phase to the server; its parts are swapped."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gradus.engine.plan import Plan, Result
from gradus.engine.request import ModelLimits, Request
from gradus.engine.scheduler import Scheduler
from gradus.engine.sequence import Output, Sequence

if TYPE_CHECKING:
    from gradus.cache.usage import CacheUsage
    from gradus.execution.timeline import Timeline


class Planner(Protocol):
    """What the loop asks of its scheduler: see there."""

    def schedule(self) -> Plan | None: ...

    def commit(self, plan: Plan, result: Result) -> list[Output]: ...


class Runner(Protocol):
    def run(self, plan: Plan) -> Result:
        """Start one forward pass over the plan's spans and return without waiting for it."""


@dataclass(slots=True)
class Metrics:
    """Totals since the engine was built, and its queue now. A request's n samples count one each.

    completed: ended by a stop token, a stop string or their length. failed: ended by an error. deadline_misses: ended
    because their deadline could not be met. cancelled: ended from outside, or by their timeout.
    preemptions: how often a running sequence was sent back to the queue.
    cached_tokens: prompt positions that were not computed, because the prefix cache had them.
    batch_total, max_batch: spans, summed over all steps, and the most in one.
    rows, padding_rows: what the model computed, and what of it nobody had asked for.
    cache: how full the pages are, in the phases that have some.
    """

    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    deadline_misses: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    batch_total: int = 0
    max_batch: int = 0
    rows: int = 0
    padding_rows: int = 0
    waiting: int = 0
    active: int = 0
    cache: "CacheUsage | None" = None

    @property
    def average_batch(self) -> float:
        return self.batch_total / self.steps if self.steps else 0.0


class Engine:
    """Runs requests to completion, one step at a time: choose the work, do it, record it. Token ids in, token ids out.

    Not thread-safe: whoever owns the loop makes every call. An exception out of `step` means that the engine itself is
    broken; what goes wrong for a single sequence ends that sequence with finish_reason "error".

    lag: how many steps stay under way when `step` returns. With 0 each is waited for at once; with 1 the next one is
    scheduled and launched while the device works on it, so that the device never waits for the host. It takes a
    scheduler that plans with tokens nobody has seen yet (`PagedBatching`), and a runner that fills them in.
    timeline: keeps a record of each step, if there is one. It may be set and taken away at any time between two steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        limits: ModelLimits,
        lag: int = 0,
        timeline: "Timeline | None" = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.limits = limits
        self.lag = lag
        self.timeline = timeline
        self.in_flight: deque[tuple[Plan, Result]] = deque()  # launched and not committed, in their order
        self._totals = Metrics()

    def step(self) -> list[Output]:
        scheduler, runner = self._parts()
        plan = scheduler.schedule()  # which sequences advance, and by how many tokens
        outputs = self.scheduler.take_ended()  # for whom it is too late
        self._count_endings(outputs)
        if plan is not None:
            self.in_flight.append((plan, runner.run(plan)))  # one forward pass over all of them, launched
        if self.in_flight and (plan is None or len(self.in_flight) > self.lag):
            outputs += self._commit(scheduler, *self.in_flight.popleft())
        return outputs

    def _commit(self, scheduler: Planner, plan: Plan, result: Result) -> list[Output]:
        outputs = scheduler.commit(plan, result)  # append tokens, finish, free
        self._count_step(plan, result, outputs)
        return outputs

    def _parts(self) -> tuple[Planner, Runner]:
        """The two parts of the loop; where a timeline is kept, it stands before both."""
        if self.timeline is None:
            return self.scheduler, self.runner
        watched = self.timeline.watch(self.scheduler, self.runner.run, self.in_flight)
        return watched, watched

    def submit(self, request: Request) -> None:
        """Queue a request, its n samples at once. Raises RequestError, keeping nothing, if it could never be served."""
        clock = self.scheduler.clock
        self.scheduler.add([Sequence(request, index, clock) for index in range(request.params.n)])
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
        scheduler = self.scheduler
        return scheduler.waiting_count + scheduler.active_count + len(scheduler.ended) + len(self.in_flight) > 0

    def metrics(self) -> Metrics:
        """A snapshot; later steps do not change it."""
        scheduler = self.scheduler
        return replace(
            self._totals,
            waiting=scheduler.waiting_count,
            active=scheduler.active_count,
            preemptions=scheduler.preemptions,
            cached_tokens=scheduler.cached_tokens,
            cache=scheduler.usage(),
        )

    def _count_step(self, plan: Plan, result: Result, outputs: Iterable[Output]) -> None:
        totals = self._totals
        totals.steps += 1
        totals.batch_total += len(plan.spans)
        totals.max_batch = max(totals.max_batch, len(plan.spans))
        totals.rows += result.rows
        totals.padding_rows += result.rows - sum([len(span.tokens) for span in plan.spans])
        totals.generated_tokens += sum([len(output.tokens) for output in outputs])
        self._count_endings(outputs)

    def _count_endings(self, outputs: Iterable[Output]) -> None:
        for reason in [output.finish_reason for output in outputs if output.finish_reason is not None]:
            if reason in ("stop", "length"):
                self._totals.completed += 1
            elif reason == "error":
                self._totals.failed += 1
            elif reason == "deadline":
                self._totals.deadline_misses += 1
            else:
                self._totals.cancelled += 1
