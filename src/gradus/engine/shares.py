"""Each sequence's share of the device: a step's time, divided by the rows that were of use. No torch here.

A step lasts from the end of the one before to its own, so steps that overlap are not counted twice, and the shares of
all sequences add up to the time that the engine was busy. Rows of use are those of spans, and those of tokens that
decodes sampled; padding and rejected drafts are overhead, which all share. Cached positions have no row and cost
nothing. A preempted sequence pays for the rows that it computes again. A step that was under way when its last sequence
ended is in no sequence's share, and is counted separately.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Ordered

import numpy as np
from numpy.typing import NDArray

from gradus.engine.outputs import Outputs, endings
from gradus.engine.plan import REJECTED, SCORED, Column, Decodes, Plan, Span
from gradus.engine.sequence import Output

SampleId = tuple[str, int]
"""A sequence's request id and index."""


class Shares:
    """Seconds of the device by sequence, from its first committed step to its end.

    Seconds are kept by slot, so that one vector operation charges all decodes of a step. Slots have the owners that
    they had in the newest committed step. `earlier` has what a sequence was charged in slots that it has left.
    unshared_s: seconds of steps whose sequences had all ended before.
    """

    def __init__(self) -> None:
        self.unshared_s = 0.0
        self._owners: dict[int, SampleId] = {}
        self._slots: dict[SampleId, int] = {}
        self._earlier: dict[SampleId, float] = {}
        self._seconds: NDArray[np.float64] = np.zeros(0)  # by slot
        self._owned: NDArray[np.float64] = np.zeros(0)  # by slot: 1 while its owner has not ended, else 0
        self._all_owned: Column | None = None  # the slots of the newest decodes, if each was owned

    def charge(self, seconds: float, plan: Plan, outputs: Ordered[Output]) -> None:
        """Divide a committed step of `seconds` among its sequences, those that it has ended included."""
        spans = self._spans(plan.spans, outputs) if plan.spans else []
        rows, total = self._decoded(plan.decodes, outputs)
        for _, own in spans:
            total += own
        if not total:
            self.unshared_s += seconds
            return
        price = seconds / total
        if len(plan.decodes.slots):
            self._seconds[plan.decodes.slots] += price * rows
        for slot, own in spans:
            self._seconds[slot] += price * own

    def _spans(self, spans: list[Span], outputs: Ordered[Output]) -> list[tuple[int, int]]:
        """Return slot and rows of each span, except those of sequences that had ended before."""
        ended = {(output.request_id, output.index) for output in endings(outputs)}
        found = []
        for span in spans:
            sequence = span.sequence
            assert sequence is not None
            if sequence.finish_reason is None or sequence.id in ended:
                self._move(sequence.id, span.slot)
                found.append((span.slot, rows_of(span, outputs)))
            else:
                self._vacate(span.slot)
        return found

    def _decoded(self, decodes: Decodes, outputs: Ordered[Output]) -> tuple[NDArray[np.float64] | float, float]:
        """Return the rows of each decode in the columns, 0 for sequences that had ended before, and their sum.

        The same sequences mostly decode step after step, and then without drafts, each has one.
        """
        if not len(decodes.slots):
            return 0.0, 0.0
        assert isinstance(outputs, Outputs)
        if outputs.tokens.shape[1] > 1:
            rows = self._owned[decodes.slots] * np.count_nonzero(outputs.tokens > REJECTED, axis=1)
            return rows, float(rows.sum())
        if decodes.slots is self._all_owned:
            return 1.0, float(len(decodes.slots))
        rows = self._owned[decodes.slots]
        self._all_owned = decodes.slots if rows.all() else None
        return rows, float(rows.sum())

    def _move(self, sample: SampleId, slot: int) -> None:
        """Make the sequence the owner of the slot in which it now runs."""
        if self._owners.get(slot) == sample:
            return
        if sample in self._slots:
            self._vacate(self._slots[sample])
        self._vacate(slot)
        self._owners[slot], self._slots[sample] = sample, slot
        self._seconds[slot], self._owned[slot] = 0.0, 1.0

    def _vacate(self, slot: int) -> None:
        """Leave a slot without an owner. The last one keeps what it was charged there."""
        if (missing := slot + 1 - len(self._seconds)) > 0:
            self._seconds, self._owned = (np.pad(each, (0, missing)) for each in (self._seconds, self._owned))
        self._owned[slot] = 0.0
        self._all_owned = None
        if (last := self._owners.pop(slot, None)) is not None:
            del self._slots[last]
            self._earlier[last] = self._earlier.get(last, 0.0) + float(self._seconds[slot])

    def close(self, sample: SampleId) -> float:
        """Forget a sequence that has ended. Returns its share in seconds."""
        if sample in self._slots:
            self._vacate(self._slots[sample])
        return self._earlier.pop(sample, 0.0)

    def open(self) -> Iterator[tuple[str, int, float]]:
        """Yield request id, index and share in seconds of each sequence that has had a step and has not ended."""
        for sample in self._slots.keys() | self._earlier.keys():
            now = float(self._seconds[self._slots[sample]]) if sample in self._slots else 0.0
            yield *sample, self._earlier.get(sample, 0.0) + now


def rows_of(span: Span, outputs: Ordered[Output]) -> int:
    """Count a span's rows of use: a scored row counts as SCORED, a draft only if it was accepted."""
    rows = len(span.tokens) * (1 if span.scores is None else SCORED)
    if span.logits <= 1 or span.sequence is None:
        return rows
    sampled = sum([len(each.tokens) for each in outputs if (each.request_id, each.index) == span.sequence.id])
    return rows - span.logits + max(1, sampled)
