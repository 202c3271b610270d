"""How long steps take: in seconds without drafts, and as a multiple of that with drafts. No torch here.

The multiple changes little as texts grow and machines become busy, since both kinds of steps slow down alike. So it can
be measured before the first request, when graphs are captured (`expect`), and corrected by the steps served later.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradus.scheduling.draft_shapes import DraftShape

MEMORY = 1 / 16  # the share of an average, of times or accepted drafts, that a new observation replaces
LARGEST_RISE = 2.0  # the most that one step counts, as a multiple of the average: it may have been interrupted
FURTHER = 0.5  # what a further row costs where it was not timed, as a share of one that was: a guess too high bars it
STALE = 512  # steps after which what was learned is tested again: a time, or that drafts are rejected


@dataclass(slots=True)
class Average:
    """The average time of one kind of step. count: of its steps. step: the number of the newest one.

    The first step may have set something up. So an average is known from the second on, and begins with the faster one.
    """

    value: float = math.inf
    count: int = 0
    step: int = 0

    def add(self, new: float, step: int) -> None:
        """Replace a share of the average by a new time: the more, the older the average is."""
        if self.count < 2:
            self.value = min(self.value, new)
        else:
            share = min(1.0, max(MEMORY, (step - self.step) / STALE))
            self.value += share * (min(new, LARGEST_RISE * self.value) - self.value)
        self.count, self.step = self.count + 1, step


class StepTimes:
    """Averages of measured times, by padded batch size and shape of drafts."""

    def __init__(self) -> None:
        self._plain: defaultdict[int, Average] = defaultdict(Average)  # seconds
        self._since: Counter[int] = Counter()  # steps with drafts since the newest step without
        self._served: dict[int, dict[DraftShape, Average]] = defaultdict(dict)  # ratios
        self._expected: dict[tuple[int, DraftShape], float] = {}
        self._steps = 0
        self._newest: dict[int, dict[DraftShape, float]] = {}  # by size: ratios, until one may have changed

    def expect(self, size: int, shape: DraftShape, ratio: float) -> None:
        """Set the expected time of a step of this shape, as a multiple of one without drafts, before any is served."""
        self._expected[size, shape] = max(1.0, ratio)
        self._newest.clear()

    def known(self, size: int) -> bool:
        """Whether the time of a step without drafts is known."""
        return self._plain[size].count > 1

    def stale(self, size: int) -> bool:
        """Whether the time of a step without drafts is so old that the next step should have none."""
        return self._since[size] >= STALE

    def ratios(self, size: int, shapes: Iterable[DraftShape]) -> Mapping[DraftShape, float]:
        """Return the `ratio` of each of the shapes of this size."""
        if size not in self._newest:
            self._newest[size] = {shape: self.ratio(size, shape) for shape in shapes}
        return self._newest[size]

    def ratio(self, size: int, shape: DraftShape) -> float:
        """Return the time of a step of this shape, as a multiple of a step without drafts: at least 1.

        An average that is older than STALE gives way to the expected time, or to that of a step without drafts: so the
        shape is tried again.
        """
        expected, served = self._expected.get((size, shape)), self._served[size].get(shape)
        if served is None or served.count < 2:
            return expected or self._guess(size, shape)
        age = self._steps - served.step
        return served.value if age <= STALE else served.value * STALE / age + (expected or 1.0) * (1 - STALE / age)

    def _guess(self, size: int, shape: DraftShape) -> float:
        """Extrapolate from the nearest shape that was served: a row less saves what each of its rows costs, and a
        further row costs a share of that. Return 1 if none was served."""
        served = self._served[size]
        if not served:
            return 1.0
        nearest = min(served, key=lambda each: abs(each.rows - shape.rows))
        share = FURTHER if nearest.rows < shape.rows else 1.0
        return served[nearest].value + share * (served[nearest].value - 1) / nearest.rows * (shape.rows - nearest.rows)

    def took_plain(self, size: int, seconds: float) -> None:
        """Record the time of a step without drafts."""
        self._steps += 1
        if not self._steps % STALE:  # ratios are older
            self._newest.clear()
        self._plain[size].add(seconds, self._steps)
        self._since[size] = 0

    def took(self, size: int, shape: DraftShape, seconds: float, usual: bool = True) -> float:
        """Record the time of a step of this shape. usual: whether the next step like it will take as long.

        Returns the time as a multiple of a step without drafts.
        """
        self._steps += 1
        self._since[size] += 1
        self._newest.clear()
        ratio = max(1.0, seconds / self._plain[size].value)
        if not usual:
            return ratio
        most = LARGEST_RISE * self.ratio(size, shape)
        self._served[size].setdefault(shape, Average()).add(ratio, self._steps)
        return min(ratio, most)
