"""Sequences by a key, smallest first, however many there are. No torch here.

Sequences that end stay in the heap as they are; they are dropped when they come to the top. So ending one costs
nothing, where taking it out of a list of 100,000 would cost a step's time.
"""

import heapq
from collections.abc import Iterator

from gradus.engine.sequence import Sequence

SMALLEST_CLEANING = 64
"""Entries of ended sequences that a heap may hold, however few live ones there are."""


class SequenceHeap:
    """Sequences by a key, smallest first. Ended ones are as good as gone.

    Ended ones leave when they reach the top, or all together when the heap has doubled since that was last done: so it
    never holds much more than twice the live ones, at a constant price per push.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Sequence]] = []  # no two have both numbers in common
        self._clean_at = SMALLEST_CLEANING

    def push(self, key: float, number: int, sequence: Sequence) -> None:
        if len(self._entries) >= self._clean_at:
            self._entries = [entry for entry in self._entries if entry[2].finish_reason is None]
            heapq.heapify(self._entries)
            self._clean_at = max(SMALLEST_CLEANING, 2 * len(self._entries))
        heapq.heappush(self._entries, (key, number, sequence))

    def head(self) -> tuple[float, Sequence] | None:
        """The smallest key and its sequence; None when none is left."""
        while self._entries:
            key, _, sequence = self._entries[0]
            if sequence.finish_reason is None:
                return key, sequence
            heapq.heappop(self._entries)
        return None

    def pop(self) -> Sequence:
        """Take out the sequence that `head` has shown."""
        return heapq.heappop(self._entries)[2]

    def __iter__(self) -> Iterator[Sequence]:
        """All live ones, in no order."""
        return (sequence for _, _, sequence in self._entries if sequence.finish_reason is None)

    def __len__(self) -> int:
        """Entries kept, live and ended."""
        return len(self._entries)
