"""A heap of sequences, smallest key first, whose endings cost nothing. No torch here.

Sequences that end stay in the heap, and are dropped when they reach the top. So ending one costs nothing, while taking
it out of a list of 100,000 would cost a step's time.
"""

import heapq
from collections.abc import Iterator

from gradus.engine.sequence import Sequence

SMALLEST_CLEANING = 64
"""The fewest entries at which a heap drops ended ones, however few are live."""


class SequenceHeap:
    """Sequences by a key, smallest first; ended ones are never returned.

    Ended ones leave when they reach the top, or all together when the heap has doubled since the last cleaning: so it
    never holds much more than twice the live ones, at a constant cost per push.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Sequence]] = []  # no two entries share both numbers
        self._clean_at = SMALLEST_CLEANING

    def push(self, key: float, number: int, sequence: Sequence) -> None:
        if len(self._entries) >= self._clean_at:
            self._entries = [entry for entry in self._entries if entry[2].finish_reason is None]
            heapq.heapify(self._entries)
            self._clean_at = max(SMALLEST_CLEANING, 2 * len(self._entries))
        heapq.heappush(self._entries, (key, number, sequence))

    def head(self) -> tuple[float, Sequence] | None:
        """Return the smallest key and its sequence; None when none is left."""
        while self._entries:
            key, _, sequence = self._entries[0]
            if sequence.finish_reason is None:
                return key, sequence
            heapq.heappop(self._entries)
        return None

    def pop(self) -> Sequence:
        """Take out the sequence that `head` has returned."""
        return heapq.heappop(self._entries)[2]

    def take(self, sequence: Sequence) -> None:
        """Take out a live sequence wherever it is, which takes a search. Raises ValueError if it is not here."""
        at = [entry[2] for entry in self._entries].index(sequence)
        self._entries[at] = self._entries[-1]
        self._entries.pop()
        heapq.heapify(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over the live sequences, in no order."""
        return (sequence for _, _, sequence in self._entries if sequence.finish_reason is None)

    def __len__(self) -> int:
        """Count the entries kept, live and ended."""
        return len(self._entries)
