"""Records each step: its work, and where host and device spent their time.

    timeline = Timeline(model.device)
    timeline.watch(engine)
    ...
    timeline.leave(engine)
    for step in timeline.records: ...

A timeline wraps the loop's scheduler and runner, reads the clock before and after each call, and passes everything
through. That does not show when a GPU works, since `run` only launches. So one event goes into the GPU's stream before
a step's work and one after it; their times are read when the step is committed, long after both have passed. Nothing
ever waits for the timeline. Its own cost on the host, a few calls per step and a look at each span, falls between the
intervals and not into them; without a timeline, the loop pays nothing.
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

    number: counts from 0. under_way: steps launched before this one and not yet committed.
    decodes: spans of one sampled token. prefills: all other spans, which compute tokens known beforehand.
    tokens: the tokens of all spans. rows: the rows that the model computed for them, padding included.
    pages: how many sequences held once the step was planned; None in phases without pages. waiting: samples still in
        the queue then.
    schedule, run, commit: on the host. Under overlap the next step is planned and launched before this one's commit.
    wait: seconds of the commit in which the host waited for the device.
    gpu: from the step's first work on the GPU to its last, gaps included; None on a CPU, where `run` is the work.
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
    """Keeps the records of an engine's last steps, at most `kept` of them, oldest first. steps: how many it recorded.

    Only committed steps that were planned while the timeline watched have a record.
    """

    def __init__(self, device: torch.device, kept: int = KEPT) -> None:
        self.records: deque[StepRecord] = deque(maxlen=kept)
        self.steps = self._planned = 0
        self._began = time.perf_counter()
        self._gpu = GpuClock(device, self._now) if device.type == "cuda" else None
        self._launched: deque[_Launched] = deque()  # steps not committed yet, in their order
        self._scheduled: Interval = (0.0, 0.0)

    def watch(self, engine: Engine) -> None:
        """Wrap the engine's scheduler and its runner, from the next step until `leave`."""
        self._scheduler, self._runner, self._in_flight = engine.scheduler, engine.runner, engine.in_flight
        engine.scheduler, engine.runner = _Watched(self, engine.scheduler), self

    def leave(self, engine: Engine) -> None:
        """Give the engine its own parts back. The records of steps under way are lost."""
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
        """Take out the entry noted when the plan was launched; None if the timeline did not watch then."""
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
    """A step's result, and how many seconds the host waited for it."""

    def __init__(self, result: Result) -> None:
        self.rows, self.seconds, self._result = result.rows, 0.0, result

    def get(self) -> Sampled:
        start = time.perf_counter()
        try:
            return self._result.get()
        finally:
            self.seconds += time.perf_counter() - start


class GpuClock:
    """Reports when a GPU reached a point of its stream, in the host's time.

    The two clocks are aligned once, while the GPU is idle: an event happened somewhere between its launch and the end
    of the host's wait for it. Of several events, the one with the shortest such interval is used.
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
        """Mark the point after all the work that is in the stream so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, event: torch.cuda.Event) -> float:
        """Return when the GPU reached `event`. A result arrives at most one kernel before the mark that follows it."""
        event.synchronize()
        return self._at + self._first.elapsed_time(event) / 1e3


def is_decode(span: Span) -> bool:
    """True if the span computes a single token that was sampled before."""
    return len(span.tokens) == 1 and span.sequence is not None and span.start >= len(span.sequence.request.prompt)


def pages_held(scheduler: Any) -> int | None:
    """Count the pages that sequences hold; None for a cache without pages."""
    return scheduler.cache.pages().held if hasattr(scheduler.cache, "pages") else None
