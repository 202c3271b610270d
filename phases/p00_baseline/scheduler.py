"""The simplest scheduler there is: first come, first served, one sequence at a time."""

from collections import deque
from collections.abc import Iterable

from gradus.cache import CacheManager
from gradus.engine.plan import Plan, Result, Span, admit
from gradus.engine.sequence import Output, Sequence
from gradus.errors import RequestError


class OneAtATime:
    """Runs a sequence to its end, then takes the next. The others wait, a request's own n samples too."""

    def __init__(self, cache: CacheManager) -> None:
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: Sequence | None = None

    def add(self, sequences: Iterable[Sequence]) -> None:
        sequences = list(sequences)
        longest = max(sequence.request.longest for sequence in sequences)
        if not self.cache.fits(longest, longest):
            raise RequestError(f"{longest} tokens are more than the cache can ever hold", param="max_tokens", got=longest)
        self.waiting.extend(sequences)

    def schedule(self) -> Plan | None:
        admissions = []
        if self.running is None and self.waiting:
            self.running = self.waiting.popleft()
            admissions.append(admit(self.running, slot=0))
        if self.running is None:
            return None
        return Plan([self._span(self.running)], admissions)

    def _span(self, sequence: Sequence) -> Span:
        """Everything that is known but not stored: with a cache the newest token, without one the whole sequence."""
        start = self.cache.stored(sequence.id)
        self.cache.reserve(sequence.id, len(sequence.tokens))
        return Span(sequence, 0, start, sequence.tokens[start:], logits=1, pages=self.cache.tables(sequence.id))

    def commit(self, plan: Plan, result: Result) -> list[Output]:
        (sampled,) = result.get()
        sequence = plan.spans[0].sequence
        output = sequence.accept(sampled)
        if sequence.finish_reason:
            self._release(sequence)
        return [output]

    def cancel(self, request_id: str, index: int | None, reason: str) -> list[Output]:
        known = [*self.waiting] if self.running is None else [self.running, *self.waiting]
        meant = [s for s in known if s.request.id == request_id and index in (None, s.index)]
        for sequence in meant:
            if sequence is self.running:
                self._release(sequence)
            else:
                self.waiting.remove(sequence)
        return [sequence.end(reason) for sequence in meant]

    def _release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.id)
        self.running = None

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    @property
    def active_count(self) -> int:
        return int(self.running is not None)

    def check(self) -> None:
        self.cache.check()
        assert all(sequence.finish_reason is None for sequence in self.waiting)
        assert self.running is None or self.running not in self.waiting
