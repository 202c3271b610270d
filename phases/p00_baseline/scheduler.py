"""The simplest order there is: first come, first served, one sequence at a time."""

from collections import deque
from collections.abc import Iterable

from gradus.cache import CacheManager
from gradus.cache.usage import CacheUsage
from gradus.engine.plan import Admission, Plan, Result, Span, admit
from gradus.engine.sequence import Output, Sequence, SpanResult
from gradus.errors import RequestError


class Scheduler:
    """The queue, the running sequences and their endings. A phase adds `schedule`, which decides when each one starts.

    waiting: sequences without a slot, the next to start first. running: sequences with one, in the order they started.
    """

    def __init__(self, cache: CacheManager) -> None:
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0  # sequences sent back to the queue (p04)
        self.cached_tokens = 0  # prompt positions found in the cache (p05)

    # -- before a step -----------------------------------------------------------------------------------------------

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue the samples of one request. Raises RequestError, queueing none, if the cache could never hold them."""
        sequences = list(sequences)
        most = max(sequence.longest for sequence in sequences)
        if not self.cache.fits(most, most):
            raise RequestError(f"{most} tokens are more than the cache can ever hold", param="max_tokens", got=most)
        self.waiting.extend(sequences)

    def schedule(self) -> Plan | None:
        """The next step's work, or None if there is none. Room in the cache is taken here, before the step runs."""
        raise NotImplementedError

    def start(self, slot: int) -> Admission:
        """Start the first waiting sequence in `slot`."""
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        return admit(sequence, slot)

    def span(self, sequence: Sequence) -> Span:
        """Everything known about the sequence and not stored yet: its whole prompt first, then one new token per step.

        A cache that stores nothing (p00's) makes this the whole sequence in every step.
        """
        start = self.cache.stored(sequence.id)
        reserved = self.cache.reserve(sequence.id, len(sequence.tokens))
        assert reserved, "no room for a sequence that was admitted: did `release` give an earlier one's room back?"
        pages = self.cache.table_change(sequence.id)
        return Span(sequence, sequence.slot, start, sequence.tokens[start:], logits=1, pages=pages)

    # -- after a step ------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan, result: Result) -> list[Output]:
        """Wait for the step, then record what it did for each sequence."""
        outputs = []
        for span, sampled in zip(plan.spans, result.get(), strict=True):
            outputs += self.record(span, sampled)
        return outputs

    def record(self, span: Span, sampled: SpanResult) -> list[Output]:
        """Append the token that a span sampled. A sequence that ends frees its place."""
        assert span.sequence is not None
        output = span.sequence.accept(sampled)
        if span.sequence.finish_reason is not None:
            self.release(span.sequence)
        return [output]

    def release(self, sequence: Sequence) -> None:
        """End the sequence's run, and free its slot and its room in the cache for the next one."""
        self.running.remove(sequence)
        self.cache.release(sequence.id)

    # -- at any time between two steps -------------------------------------------------------------------------------

    def cancel(self, request_id: str, index: int | None, reason: str) -> list[Output]:
        """End the samples of a request (or one of them), waiting or running; [] if they have ended already."""
        meant = [s for s in (*self.running, *self.waiting) if s.request.id == request_id and index in (None, s.index)]
        for sequence in meant:
            if sequence in self.running:
                self.release(sequence)
            else:
                self.waiting.remove(sequence)
        return [sequence.end(reason) for sequence in meant]

    def head(self) -> Sequence | None:
        """The waiting sequence that would start next."""
        return self.waiting[0] if self.waiting else None

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    @property
    def active_count(self) -> int:
        return len(self.running)

    def usage(self) -> CacheUsage | None:
        """The use of the cache; None for a cache without pages."""
        return None

    def check(self) -> None:
        """Assert the invariants of queue and cache. Tests call this after every step."""
        self.cache.check()
        live = [*self.running, *self.waiting]
        assert all(sequence.finish_reason is None for sequence in live), "a sequence that has ended waits or runs"
        assert len({sequence.id for sequence in live}) == len(live), "a sequence waits or runs twice"
        slots = {sequence.slot for sequence in self.running}
        assert len(slots) == len(self.running), "two running sequences have the same slot"


class OneAtATime(Scheduler):
    """Runs a sequence to its end, then takes the next. All others wait, even other samples of the same request."""

    def schedule(self) -> Plan | None:
        admissions = []
        if not self.running and self.waiting:
            admissions.append(self.start(slot=0))
        if not self.running:
            return None
        return Plan([self.span(sequence) for sequence in self.running], admissions)
