"""Records the steps of a watched engine: their work, and the times of their parts.

The recorder wraps the methods that plan, run and commit a step, and `stop` takes the wrappers off: an engine that is
not watched runs nothing of this.

    schedule   planned: on the host
    run        launched: the device begins, unless it is still busy with the step before; a CPU has done the step
    get        ready: the result has reached the host
    commit     end: tokens appended, sequences ended

The device's time is an upper bound: it ends when the host sees the result, which may be later than the device had it.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradus.engine.core import Parts
from gradus.engine.outputs import endings
from gradus.engine.plan import REJECTED, UNDRAFTED, Plan, Sampled
from gradus.engine.sequence import Output
from gradus.server.engine.messages import EVENTS, STEP

KEPT_STEPS = 512
KEPT_EVENTS = 4096
ADMITTED, ENDED = range(len(EVENTS))

HandleOf = Callable[[str, int], int | None]
"""Returns the handle of a sample, by its request's id and its index; None if it has none."""


def microseconds() -> int:
    return time.monotonic_ns() // 1000


class UnderWay:
    """A step's result under way. planned: when its planning began and ended, in microseconds, and how many sequences it
    preempted. launched, ready: when its launch ended, and when it arrived."""

    def __init__(self, result: Any, planned: tuple[int, int, int]) -> None:
        self._result = result
        self.planned, self.launched = planned, microseconds()
        self.rows: int = result.rows
        self.sampled: Sampled | None = None
        self.ready = 0

    def get(self) -> Sampled:
        sampled: Sampled = self._result.get()
        finished = getattr(self._result, "landing", self) is None  # a CPU's, whose result nobody waits for
        self.ready = self.launched if finished else microseconds()
        self.sampled, self.rows = sampled, self._result.rows
        return sampled


class StepRecorder:
    """The newest steps of an engine, and what they did to samples, until they are taken.

    accepted: drafts accepted since the recording began, by the slots of running sequences.
    """

    def __init__(self, parts: Parts, handle_of: HandleOf) -> None:
        """Wrap the methods. Raises ValueError if they are wrapped already."""
        self.accepted: dict[int, int] = {}
        self._scheduler, self._runner = parts.scheduler, parts.runner
        self._handle_of = handle_of
        self._steps: deque[tuple[int, ...]] = deque(maxlen=KEPT_STEPS)
        self._events: deque[tuple[int, int, int]] = deque(maxlen=KEPT_EVENTS)
        self._planned = (0, 0, 0)  # of the newest plan: when it began and ended, and sequences preempted
        self._number = self._ready = 0
        scheduler = self._scheduler
        if "schedule" in vars(scheduler):
            raise ValueError("this engine is being recorded already")
        self._counts_drafts = hasattr(scheduler, "drafted")
        self._schedule, self._commit, self._cancel = scheduler.schedule, scheduler.commit, scheduler.cancel
        self._launch = self._runner.run
        vars(scheduler).update(schedule=self._scheduled, commit=self._committed, cancel=self._cancelled)
        vars(self._runner)["run"] = self._run

    def stop(self) -> None:
        """Take the wrappers off. Results under way stay wrapped until they are committed."""
        for name in ("schedule", "commit", "cancel"):
            vars(self._scheduler).pop(name, None)
        vars(self._runner).pop("run", None)

    def take(self) -> tuple[bytes, bytes]:
        """Return the columns of the steps and events since the last call: see STEP and EVENT."""
        steps, events = packed_rows(self._steps), packed_rows(self._events)
        self._steps.clear()
        self._events.clear()
        return steps, events

    # -- a step --------------------------------------------------------------------------------------------------------

    def _scheduled(self) -> Plan | None:
        began, before = microseconds(), self._scheduler.preemptions
        plan: Plan | None = self._schedule()
        if plan is not None:
            self._planned = began, microseconds(), self._scheduler.preemptions - before
        return plan

    def _run(self, plan: Plan) -> UnderWay:
        result = UnderWay(self._launch(plan), self._planned)
        for admission in plan.admissions:
            self.accepted[admission.slot] = 0
            self._note(self._planned[0], ADMITTED, admission.request.id, admission.index)
        return result

    def _committed(self, plan: Plan, result: Any) -> Sequence[Output]:
        before = self._drafts_counted()
        outputs: Sequence[Output] = self._commit(plan, result)
        end = microseconds()
        ended = self._note_endings(outputs, end)
        if not isinstance(result, UnderWay) or result.sampled is None:
            return outputs  # it was launched before the recording began
        began, planned, preempted = result.planned
        device = max(planned, self._ready)
        self._ready = result.ready
        drafted, accepted = self._drafts(plan, result.sampled)
        now = self._drafts_counted()
        drafts = drafted + now[0] - before[0], accepted + now[1] - before[1]
        prefill, decode = 0, len(plan.decodes.slots)
        if plan.spans:
            prefill = sum([len(span.tokens) for span in plan.spans if not _decodes(span)])
            decode += sum([_decodes(span) for span in plan.spans])
        counts = result.rows, plan.size, prefill, decode, *drafts, preempted, len(plan.admissions), ended
        times = began, planned, result.launched, device, result.ready, end
        self._steps.append((self._number, *times, *counts, self._scheduler.waiting_count))
        self._number += 1
        return outputs

    def _drafts(self, plan: Plan, sampled: Sampled) -> tuple[int, int]:
        """Count the drafts of the decodes in columns, verified and accepted."""
        if sampled.width == 1:
            return 0, 0
        tokens = sampled.decoded
        drafted = int(np.count_nonzero(tokens != UNDRAFTED)) - len(tokens)
        gained = np.maximum(np.count_nonzero(tokens > REJECTED, axis=1) - 1, 0)
        for slot, more in zip(plan.decodes.slots.tolist(), gained.tolist(), strict=True):
            self.accepted[slot] = self.accepted.get(slot, 0) + more
        return drafted, int(gained.sum())

    def _drafts_counted(self) -> tuple[int, int]:
        """Return the drafts that a scheduler of the course has counted: verified, accepted."""
        return (self._scheduler.drafted, self._scheduler.accepted) if self._counts_drafts else (0, 0)

    def _cancelled(self, *args: Any, **kwargs: Any) -> Sequence[Output]:
        outputs: Sequence[Output] = self._cancel(*args, **kwargs)
        self._note_endings(outputs, microseconds())
        return outputs

    def _note_endings(self, outputs: Sequence[Output], now: int) -> int:
        ended = endings(outputs)
        for output in ended:
            self._note(now, ENDED, output.request_id, output.index)
        return len(ended)

    def _note(self, now: int, kind: int, request_id: str, index: int) -> None:
        if (handle := self._handle_of(request_id, index)) is not None:
            self._events.append((now, kind, handle))


def _decodes(span: Any) -> bool:
    """Whether a span outside the columns continues an answer. (A phase without a cache computes the whole of it
    again, from position 0.)"""
    return span.sequence is not None and span.start >= len(span.sequence.request.prompt)


def packed_rows(rows: Sequence[tuple[int, ...]] | deque[Any]) -> bytes:
    """Pack rows of numbers: int64, in this machine's byte order."""
    return array("q", [value for row in rows for value in row]).tobytes()


assert len(STEP) == 17
