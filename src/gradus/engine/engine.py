"""The loop: schedule, run, commit. It is the same from the first phase to the server; its parts are swapped."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import replace
from typing import Protocol

from gradus.cache import CacheManager
from gradus.cache.usage import CacheUsage
from gradus.engine.core import Compiler
from gradus.engine.metrics import Metrics, Speculation
from gradus.engine.outputs import endings
from gradus.engine.plan import Plan, Result
from gradus.engine.request import ModelLimits, Request
from gradus.engine.sequence import Output, Sequence
from gradus.engine.shares import Shares
from gradus.engine.time_limits import TimeLimits


class Scheduler(Protocol):
    """Decides which sequences run and how many tokens of each. Knows no tensor.

    cache: knows what is stored where. running: the sequences that have a slot. preemptions: how often one of them
    was sent back to the queue. cached_tokens: prompt positions found in the prefix cache.
    """

    preemptions: int
    cached_tokens: int

    @property
    def cache(self) -> CacheManager: ...

    @property
    def running(self) -> list[Sequence]: ...

    @property
    def waiting_count(self) -> int: ...

    @property
    def active_count(self) -> int: ...

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue the samples of one request, all or none. Raises RequestError for what could never be served."""

    def head(self) -> Sequence | None:
        """Return the sequence that would start next; None when none waits."""

    def schedule(self) -> Plan | None:
        """Plan the next step, or return None when there is no work. Takes room in the cache before the step runs."""

    def commit(self, plan: Plan, result: Result) -> Ordered[Output]:
        """Wait for the step, append its tokens, and free the sequences that ended."""

    def cancel(self, request_id: str, index: int | None, reason: str) -> list[Output]:
        """End the request's samples (or one of them) wherever they are; [] if they ended before."""

    def usage(self) -> CacheUsage | None:
        """Report how full the cache is, if it has pages."""

    def check(self) -> None:
        """Assert the invariants of queue and cache: tests call it after every step, the server when it is idle."""


class Runner(Protocol):
    def run(self, plan: Plan) -> Result:
        """Start one forward pass over the plan's spans and return without waiting for it."""


class Engine:
    """Runs requests to completion, one step at a time: choose the work, do it, record it. Token ids in, token ids out.

    Not thread-safe: one thread owns the loop and makes every call. An exception out of `step` means that the engine
    itself is broken; a failure of a single sequence ends that sequence with finish_reason "error".

    lag: how many steps stay under way when `step` returns. With 0, each step is waited for at once; with 1, the next
    step is scheduled and launched while the device works on it, so the device never waits for the host. That requires
    a scheduler that plans with tokens known only to the device, and a runner that fills them in.
    times: the home of timeouts and deadlines. The loop ends the sequences that it names, in every phase.
    speculation: reports how drafts have done, in engines that speculate.
    compiler: compiles the constraints of requests, in engines that keep to a grammar.
    close: ends threads that run between and during steps, in engines that have any.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        limits: ModelLimits,
        lag: int = 0,
        times: TimeLimits | None = None,
        speculation: Callable[[], Speculation] | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.limits = limits
        self.lag = lag
        self.times = TimeLimits() if times is None else times
        self.speculation = speculation
        self.compiler = compiler
        self.close: Callable[[], object] = lambda: None
        self.in_flight: deque[tuple[Plan, Result]] = deque()  # launched but not committed, oldest first
        self.shares = Shares()
        self._totals = Metrics()

    def step(self) -> Ordered[Output]:
        ended = self._end_late() if self.times.watching else []
        if not (self.in_flight or self.scheduler.active_count):
            self.times.step_time.busy_from(self.times.clock())
        plan = self.scheduler.schedule()  # which sequences advance, and by how many tokens
        if plan is not None:
            self.in_flight.append((plan, self.runner.run(plan)))  # one forward pass over all of them, launched
        if self.in_flight and (plan is None or len(self.in_flight) > self.lag):
            outputs = self._commit(*self.in_flight.popleft())
            return [*ended, *outputs] if ended else outputs
        return ended

    def _commit(self, plan: Plan, result: Result) -> Ordered[Output]:
        outputs = self.scheduler.commit(plan, result)  # append tokens, finish, free
        seconds = self.times.step_time.step_ended(self.times.clock())
        self.shares.charge(seconds, plan, outputs)
        if ended := endings(outputs):
            self._settle(ended)
        self._totals.count_step(seconds, plan, result.rows, outputs, ended)
        return outputs

    def _settle(self, ended: list[Output]) -> None:
        """Write the share of the device into the timings of sequences that have ended."""
        for output in ended:
            device_s = self.shares.close((output.request_id, output.index))
            if output.timings is not None:
                output.timings = replace(output.timings, device_s=device_s)

    def _end_late(self) -> list[Output]:
        """End the sequences that are out of time, running or waiting, before another step is spent on them."""
        outputs: list[Output] = []
        while self.times.any:
            head = self.scheduler.head()
            candidates = self._with_deadlines(head) if self.times.any_deadline else []
            for sequence, reason in self.times.late(candidates, len(self.in_flight)):
                outputs += self.cancel(sequence.request_id, sequence.index, reason)
            if self.scheduler.head() is head:  # else there is a new head to judge
                break
        return outputs

    def _with_deadlines(self, head: Sequence | None) -> list[Sequence]:
        """List the running sequences that have a deadline, and the head of the queue."""
        found = [sequence for sequence in self.scheduler.running if sequence.due < math.inf]
        return found if head is None else [*found, head]

    def submit(self, request: Request) -> None:
        """Queue a request, its n samples at once. Raises RequestError, keeping nothing, if it could never be served."""
        sequences = [Sequence(request, index, self.times.clock) for index in range(request.params.n)]
        self.scheduler.add(sequences)
        for sequence in sequences:
            self.times.watch(sequence)
        self._totals.prompt_tokens += len(request.prompt)

    def cancel(self, request_id: str, index: int | None = None, reason: str = "cancelled") -> list[Output]:
        """End a request, or one sample of it, in whatever state it is.

        Returns the last output of each sample that this call ended; [] if they had ended before.
        """
        outputs = self.scheduler.cancel(request_id, index, reason)
        self._settle(outputs)
        self._totals.count_endings(outputs)
        return outputs

    @property
    def parts(self) -> "Engine":
        """The parts that a watcher looks at."""
        return self

    @property
    def has_work(self) -> bool:
        return bool(self.in_flight or self.scheduler.active_count or self.scheduler.waiting_count)

    @property
    def waiting_count(self) -> int:
        """The number of samples that wait to start."""
        return self.scheduler.waiting_count

    def metrics(self) -> Metrics:
        """Return a snapshot; later steps do not change it."""
        scheduler = self.scheduler
        return replace(
            self._totals,
            waiting=scheduler.waiting_count,
            active=scheduler.active_count,
            preemptions=scheduler.preemptions,
            cached_tokens=scheduler.cached_tokens,
            unshared_s=self.shares.unshared_s,
            cache=scheduler.usage(),
            speculation=None if self.speculation is None else self.speculation(),
        )

    def device_seconds(self) -> list[tuple[str, int, float]]:
        """List what each sample that has begun and not ended has used of the device: (request id, index, seconds)."""
        return list(self.shares.open())

    def check(self) -> None:
        """Assert the invariants of queue and cache. Costs more than a step: for tests, and for idle servers."""
        self.scheduler.check()
