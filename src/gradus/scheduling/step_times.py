"""Step times: in seconds without drafts, and as a multiple of that with drafts. No torch here.

The multiple changes little as texts grow and machines become busy, since both kinds of steps slow down alike. So it can
be measured before the first request, when graphs are captured (`expect`), and corrected by the steps served later.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from gradus.scheduling.draft_shapes import DraftShape

NEW = 1 / 8  # the share of an average that a new observation replaces, after the first few
FIRST = 4  # the first steps of each kind: only their fastest counts, since one may have set something up
LARGEST_RISE = 2.0  # the most that one step counts, as a multiple of the average: it may have been interrupted
GUESS = 0.02  # until measured, the least that a row adds, as a share of a step with one row per sequence
STALE = 256  # steps with drafts after which a step without drafts is timed again
RECENT = 32  # steps with drafts after which a time without drafts is not averaged with older ones
FORGOTTEN = 2048  # steps after which a shape's measured time gives way to the expected one, for another trial


class StepTimes:
    """Averages of measured times, by padded batch size and shape of drafts."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds
        self._plain_timed: Counter[int] = Counter()  # steps timed without drafts
        self._since: Counter[int] = Counter()  # steps with drafts since the newest step without
        self._ratios: dict[tuple[int, DraftShape], float] = {}
        self._timed: Counter[tuple[int, DraftShape]] = Counter()
        self._expected: dict[tuple[int, DraftShape], float] = {}
        self._seen: dict[tuple[int, DraftShape], int] = {}  # the last step in which a shape was timed
        self._steps = 0
        self._newest: dict[int, dict[DraftShape, float]] = {}  # by size: ratios, until one may have changed

    def expect(self, size: int, shape: DraftShape, ratio: float) -> None:
        """Set the expected time of a step of this shape, as a multiple of one without drafts, before any is served."""
        self._expected[size, shape] = max(1.0, ratio)
        self._newest.clear()

    def known(self, size: int) -> bool:
        """Whether the time of a step without drafts is known."""
        return self._plain_timed[size] >= FIRST

    def stale(self, size: int) -> bool:
        """Whether the time of a step without drafts is so old that the next step should have none."""
        return self._since[size] >= STALE

    def ratios(self, size: int, shapes: Iterable[DraftShape]) -> Mapping[DraftShape, float]:
        """Return the `ratio` of each of the shapes of this size."""
        if size not in self._newest:
            self._newest[size] = {shape: self.ratio(size, shape) for shape in shapes}
        return self._newest[size]

    def ratio(self, size: int, shape: DraftShape) -> float:
        """Return the time of a step of this shape, as a multiple of a step without drafts: at least 1."""
        known = self._ratios.get((size, shape))
        if self._timed[size, shape] > 1 and self._steps - self._seen[size, shape] < FORGOTTEN and known is not None:
            return known  # after more than the first step, which may have set something up
        return self._expected.get((size, shape)) or self._guess(size, shape)

    def _guess(self, size: int, shape: DraftShape) -> float:
        """Extrapolate from the nearest shape that was timed: a further row costs half as much as one of its rows, and a
        row less saves as much."""
        timed = {each: ratio for (other, each), ratio in self._ratios.items() if other == size}
        if not timed:
            return 1 + GUESS * shape.rows / size
        less = [each for each in timed if each.rows < shape.rows]
        nearest = max(less, key=_rows) if less else min(timed, key=_rows)
        share = 0.5 if less else 1.0
        return timed[nearest] + share * (timed[nearest] - 1) / nearest.rows * (shape.rows - nearest.rows)

    def took_plain(self, size: int, seconds: float) -> None:
        """Record the time of a step without drafts."""
        self._plain_timed[size] += 1
        if self._since[size] > RECENT:
            self._plain.pop(size, None)  # absent if no step without drafts was served yet
        self._plain[size] = _moved(self._plain.get(size), seconds, self._plain_timed[size])
        self._since[size] = 0

    def took(self, size: int, shape: DraftShape, seconds: float, usual: bool = True) -> float:
        """Record the time of a step of this shape. usual: whether the next step like it will take as long.

        Returns the time as a multiple of a step without drafts.
        """
        self._steps += 1
        self._since[size] += 1
        self._newest.clear()
        ratio = max(1.0, seconds / self._plain.get(size, seconds))
        known = self.ratio(size, shape)
        if usual:
            self._timed[size, shape] += 1
            average = self._ratios.get((size, shape))
            self._ratios[size, shape] = _moved(average, ratio, self._timed[size, shape])
            self._seen[size, shape] = self._steps
        return min(ratio, LARGEST_RISE * known) if usual else ratio


def _rows(shape: DraftShape) -> int:
    return shape.rows


def _moved(average: float | None, new: float, times: int) -> float:
    """Update an average with a new observation; the first few yield their fastest instead."""
    if average is None or times <= FIRST:
        return min(new, average or new)
    return average + NEW * (min(new, LARGEST_RISE * average) - average)
