"""A histogram that takes many equal values at once: a step gives hundreds of streams a token after the same time."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence


class Distribution:
    """Counts of values by bucket, and their sum. edges: inclusive upper bounds, ascending."""

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.sum = 0.0
        self._counts = [0] * (len(self.edges) + 1)  # the last is for values beyond all edges

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    def cumulative(self, edges: Iterable[float]) -> Iterator[tuple[str, int]]:
        """Yield each bound as text and the number of values up to it; the last bound is +Inf.

        edges: some of this distribution's own, so that the counts are exact.
        """
        wanted, total = {*edges}, 0
        for edge, count in zip(self.edges, self._counts, strict=False):
            total += count
            if edge in wanted:
                yield f"{edge:g}" if edge % 1 else str(float(edge)), total
        yield "+Inf", total + self._counts[-1]


# -- edges -------------------------------------------------------------------------------------------------------------


def edges(text: str) -> tuple[float, ...]:
    return tuple(float(edge) for edge in text.split())


def merged(*parts: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted({float(edge) for part in parts for edge in part}))


def steps_1_2_5(most: float) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, … up to `most`."""
    return tuple(digit * 10.0**power for power in range(10) for digit in (1, 2, 5) if digit * 10**power <= most)
