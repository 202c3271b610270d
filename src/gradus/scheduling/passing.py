"""Which prompts may pass a long one, in an engine with a step target. No torch here.

A step target cuts a long prompt into many steps, and every prompt behind it would wait for all of them. So a prompt
passes the best one under way if it goes first by its order, or if it is shorter than the rest of the best one and ranks
no lower. The same holds for a prompt that cannot begin yet because it sits out. The length that counts is the number of
tokens to compute.
"""

from collections.abc import Iterable

from gradus.cache.paged import PagedCache
from gradus.engine.sequence import Sequence
from gradus.scheduling.queue import WaitingQueue

LOOK = 64
"""Waiting sequences among which one is sought that may pass a long prompt."""


class Passing:
    """Compares prompts by the tokens left to compute. cache: has the stored ones."""

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache

    def rest(self, sequence: Sequence) -> int:
        """Return how many tokens it has to compute before it samples one; an estimate while it waits."""
        return len(sequence.tokens) - (self._cache.stored(sequence.id) if sequence.slot >= 0 else sequence.known)

    def may_pass(self, other: Sequence, best: Sequence) -> bool:
        """Whether a prompt may pass `best`: it goes first by its order, or is the shorter one and ranks no lower."""
        if other.order < best.order:
            return True
        return other.order[0] == best.order[0] and self.rest(other) < self.rest(best)

    def among(self, under_way: Iterable[Sequence], best: Sequence) -> list[Sequence]:
        """Return the prompts under way that may pass `best`, shortest first."""
        return sorted([each for each in under_way if each is not best and self.may_pass(each, best)], key=self.rest)

    def next(
        self, best: Sequence, waiting: WaitingQueue, under_way: list[Sequence], spare: int, slots: int
    ) -> Sequence | None:
        """Return the waiting sequence to start before `best` goes on: one that goes first by its order, or else the
        shortest that may pass; None if there is none.

        under_way: all prompts that are. The pages that they will still take are left to them. spare: the pages for new
        sequences. slots: the number of free ones; one is left to the head of the queue.
        """
        head = waiting.head()
        if head is None or head.order < best.order:
            return head
        spare -= sum([self._cache.pages_for(self.rest(each)) for each in under_way])

        def may(other: Sequence) -> bool:
            if not self.may_pass(other, best) or (other is not head and slots < 2):
                return False
            room = self._cache.pages_for(len(other.tokens) - other.indexed)  # pages from the second tier take some, too
            return room <= spare and not self._will_know_more(other, under_way)

        candidates = filter(may, waiting.some(LOOK))
        return min(candidates, key=lambda other: (self.rest(other), other.order), default=None)

    def _will_know_more(self, sequence: Sequence, under_way: list[Sequence]) -> bool:
        """Whether a prompt under way is about to publish the next page of this one's prefix: it would be computed
        twice."""
        if self._cache.index is None or sequence.unscored:
            return False
        tokens, salt = sequence.tokens, sequence.request.scheduling.cache_salt
        for other in under_way:
            end = self._cache.publishes_at(other.id)
            alike = end < len(tokens) and tokens[:end] == other.tokens[:end]
            if alike and other.request.scheduling.cache_salt == salt:
                return True
        return False
