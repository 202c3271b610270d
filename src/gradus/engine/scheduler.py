"""The queue, the running sequences and their endings. Who starts when is each phase's own decision. No torch here."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from gradus.cache import CacheManager
from gradus.engine.plan import Admission, Plan, Result, Span, admit
from gradus.engine.sequence import Output, Sequence
from gradus.errors import RequestError

if TYPE_CHECKING:
    from gradus.cache.usage import CacheUsage


class Waiting(Protocol):
    """Sequences that wait for a place, the next one first: a deque, or a queue with an order of its own."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...
    def popleft(self) -> Sequence: ...
    def extend(self, sequences: Iterable[Sequence], /) -> None: ...
    def remove(self, sequence: Sequence, /) -> None: ...


class Scheduler:
    """First come, first served. A phase adds `schedule`: it takes sequences from `waiting` and plans those `running`.

    Keeps nothing on the device; what is stored where is the cache manager's. The rest of this class suits schedulers
    that keep who runs until it ends; one that also ends or sends back sequences by itself (`PagedBatching`) brings its
    own queue, counts what it did, and leaves the endings for `take_ended`.
    """

    def __init__(self, cache: CacheManager, clock: Callable[[], float] = time.perf_counter) -> None:
        self.cache = cache
        self.clock = clock
        self.waiting: Waiting = deque()
        self.running: list[Sequence] = []  # in the order they started
        self.ended: list[Output] = []  # by the scheduler itself, outside any step; not reported yet
        self.preemptions = 0
        self.cached_tokens = 0  # prompt positions that were there already

    def schedule(self) -> Plan | None:
        """The next step's work, or None when there is none. Room in the cache is taken here, before the step runs."""
        raise NotImplementedError

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue the samples of one request, all or none. Raises RequestError for what could never be served."""
        sequences = list(sequences)
        longest = max(sequence.request.longest for sequence in sequences)
        if not self.cache.fits(longest, longest):
            raise RequestError(
                f"{longest} tokens are more than the cache can ever hold", param="max_tokens", got=longest
            )
        self.waiting.extend(sequences)

    def start(self, slot: int) -> Admission:
        """The first in the line begins to run in `slot`."""
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        return admit(sequence, slot)

    def span(self, sequence: Sequence) -> Span:
        """All that is known of the sequence but not stored: its prompt first, then the newest token, step by step.

        Without a cache nothing is ever stored, so this is the whole sequence every time.
        """
        start = self.cache.stored(sequence.id)
        reserved = self.cache.reserve(sequence.id, len(sequence.tokens))
        assert reserved, "`add` refuses what does not fit"
        pages = self.cache.table_change(sequence.id)
        return Span(sequence, sequence.slot, start, sequence.tokens[start:], logits=1, pages=pages)

    def commit(self, plan: Plan, result: Result) -> list[Output]:
        """Wait for the step, append its tokens, finish and free what ended."""
        outputs = []
        for span, sampled in zip(plan.spans, result.get(), strict=True):
            assert span.sequence is not None
            outputs.append(span.sequence.accept(sampled))
            if span.sequence.finish_reason:
                self.release(span.sequence)
        return outputs

    def cancel(self, request_id: str, index: int | None, reason: str) -> list[Output]:
        """End the request's samples (or one of them) wherever they are; [] if they ended before."""
        meant = [s for s in (*self.running, *self.waiting) if s.request.id == request_id and index in (None, s.index)]
        for sequence in meant:
            if sequence in self.running:
                self.release(sequence)
            else:
                self.waiting.remove(sequence)
        return [sequence.end(reason) for sequence in meant]

    def take_ended(self) -> list[Output]:
        """The last outputs of sequences that the scheduler ended by itself since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def release(self, sequence: Sequence) -> None:
        """It runs no more: its slot and its room in the cache are free for the next."""
        self.running.remove(sequence)
        self.cache.release(sequence.id)

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    @property
    def active_count(self) -> int:
        return len(self.running)

    def usage(self) -> "CacheUsage | None":
        """How full the cache is, where it has pages."""
        return None

    def check(self) -> None:
        """Assert the invariants of queue and cache: tests call it after every step, the server when it is idle."""
        self.cache.check()
        everybody = [*self.running, *self.waiting]
        assert all(sequence.finish_reason is None for sequence in everybody)
        assert len({sequence.id for sequence in everybody}) == len(everybody)
        assert len({sequence.slot for sequence in self.running}) == len(self.running)
