"""A record per step: what it did, and where host and device spent their time.

    timeline = Timeline(model.device)
    timeline.watch(engine)
    ...
    timeline.leave(engine)
    for step in timeline.records: ...

A timeline stands between the loop and its parts, reads the clock before and after each, and hands everything through.
When a GPU works is another matter: `run` only launches. So an event goes into the GPU's stream before a step's work and
one after it, and they are asked for their times when the step is committed and both have long passed. Nothing ever
waits for the timeline. What it costs the host itself, a few calls per step and a look at each span, is between the
intervals and not in them; without a timeline, the loop pays nothing.
"""

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any

import torch

from gradus.engine.engine import Engine, Scheduler
from gradus.engine.plan import Plan, Result, Sampled, Span
from gradus.engine.sequence import Output

Interval = tuple[float, float]
"""Start and end, in seconds since the timeline's beginning."""

KEPT = 1024


@dataclass(slots=True)
class StepRecord:
    """One step, from its plan to its commit.

    number: counts from 0. under_way: steps that were launched before it and not committed yet.
    decodes: spans of one token that had been sampled. prefills: all others, which compute what was known already.
    tokens: of all spans. rows: what the model computed for them, padding included.
    pages: held by sequences once it was planned; None in phases without pages. waiting: samples that it left in the
        queue.
    schedule, run, commit: on the host. Under overlap the next step is planned and launched before this one's commit.
    wait: seconds of the commit in which the host waited for the device.
    gpu: from its first work on the GPU to its last, whatever lies between; None on a CPU, where `run` is the work.
    """

    number: int
    under_way: int
    prefills: int
    decodes: int
    tokens: int
    rows: int
    pages: int | None
    waiting: int
    schedule: Interval
    run: Interval
    commit: Interval = (0.0, 0.0)
    wait: float = 0.0
    gpu: Interval | None = None


class Timeline:
    """The records of an engine's last steps, at most `kept` of them, the oldest first. steps: how many there were.

    Only committed steps have a record, and only those that were planned while the timeline watched.
    """

    def __init__(self, device: torch.device, kept: int = KEPT) -> None:
        self.records: deque[StepRecord] = deque(maxlen=kept)
        self.steps = self._planned = 0
        self._began = time.perf_counter()
        self._gpu = GpuClock(device, self._now) if device.type == "cuda" else None
        self._launched: deque[_Launched] = deque()  # and not committed, in their order
        self._scheduled: Interval = (0.0, 0.0)

    def watch(self, engine: Engine) -> None:
        """Stand before the engine's scheduler and its runner from the next step on, until `leave`."""
        self._scheduler, self._runner, self._in_flight = engine.scheduler, engine.runner, engine.in_flight
        engine.scheduler, engine.runner = _Watched(self, engine.scheduler), self

    def leave(self, engine: Engine) -> None:
        """Give the engine its own parts back. Records of steps under way are lost."""
        engine.scheduler, engine.runner = self._scheduler, self._runner

    def schedule(self) -> Plan | None:
        start = self._now()
        plan = self._scheduler.schedule()
        self._scheduled = start, self._now()
        return plan

    def run(self, plan: Plan) -> Result:
        before = self._gpu.mark() if self._gpu else None
        start = self._now()
        result = self._runner.run(plan)
        ran = start, self._now()
        after = self._gpu.mark() if self._gpu else None
        self._launched.append(_Launched(plan, self._record(plan, result, ran), before, after))
        return result

    def commit(self, plan: Plan, result: Result) -> Ordered[Output]:
        waiting = _Waiting(result)
        start = self._now()
        outputs = self._scheduler.commit(plan, waiting)
        end = self._now()
        if (launched := self._take(plan)) is not None:
            self._keep(launched, (start, end), waiting.seconds)
        return outputs

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _record(self, plan: Plan, result: Result, ran: Interval) -> StepRecord:
        number, self._planned = self._planned, self._planned + 1
        tokens = decodes = 0
        spans = plan.expanded()
        for span in spans:
            tokens += len(span.tokens)
            decodes += is_decode(span)
        return StepRecord(
            number=number,
            under_way=len(self._in_flight),
            prefills=len(spans) - decodes,
            decodes=decodes,
            tokens=tokens,
            rows=result.rows,
            pages=pages_held(self._scheduler),
            waiting=self._scheduler.waiting_count,
            schedule=self._scheduled,
            run=ran,
        )

    def _take(self, plan: Plan) -> "_Launched | None":
        """What was noted when the plan was launched, if the timeline watched then."""
        if all(launched.plan is not plan for launched in self._launched):
            return None
        while (launched := self._launched.popleft()).plan is not plan:
            pass  # it was committed while the timeline did not watch
        return launched

    def _keep(self, launched: "_Launched", committed: Interval, waited: float) -> None:
        record = launched.record
        record.commit, record.wait = committed, waited
        if self._gpu and launched.before and launched.after:
            record.gpu = self._gpu.seconds(launched.before), self._gpu.seconds(launched.after)
        self.records.append(record)
        self.steps += 1


class _Watched:
    """A scheduler whose calls in each step pass through a timeline."""

    def __init__(self, timeline: Timeline, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.schedule, self.commit = timeline.schedule, timeline.commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


@dataclass(slots=True)
class _Launched:
    """A step under way, and the events around its work."""

    plan: Plan
    record: StepRecord
    before: torch.cuda.Event | None
    after: torch.cuda.Event | None


class _Waiting:
    """A step's result, and for how many seconds it was waited for."""

    def __init__(self, result: Result) -> None:
        self.rows, self.seconds, self._result = result.rows, 0.0, result

    def get(self) -> Sampled:
        start = time.perf_counter()
        try:
            return self._result.get()
        finally:
            self.seconds += time.perf_counter() - start


class GpuClock:
    """Tells when a GPU came to a point of its stream, in the host's time.

    The two clocks are put together once, while the GPU has nothing else to do: an event happened somewhere between its
    launch and the moment when the host had waited for it; of several, the one for which that was shortest counts.
    """

    def __init__(self, device: torch.device, now: Callable[[], float]) -> None:
        self._device = device
        torch.cuda.synchronize(device)
        waits = []
        for _ in range(8):
            launched, event = now(), self.mark()
            event.synchronize()
            waits.append((now() - launched, launched, event))
        length, launched, self._first = min(waits, key=lambda wait: wait[0])
        self._at = launched + length / 2

    def mark(self) -> torch.cuda.Event:
        """A point after all that the stream was given so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, event: torch.cuda.Event) -> float:
        """When the GPU was there. A result that has come lies before the mark behind it by a kernel at most."""
        event.synchronize()
        return self._at + self._first.elapsed_time(event) / 1e3


def is_decode(span: Span) -> bool:
    """Whether it computes one token, and that one was sampled before."""
    return len(span.tokens) == 1 and span.sequence is not None and span.start >= len(span.sequence.request.prompt)


def pages_held(scheduler: Any) -> int | None:
    """Pages that sequences hold; None of a cache without pages."""
    return scheduler.cache.pages().held if hasattr(scheduler.cache, "pages") else None
