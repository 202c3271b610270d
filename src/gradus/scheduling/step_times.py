"""What steps take: without drafts in seconds, and with drafts as a multiple of that. No torch here.

A multiple moves little as texts grow and machines become busy, since both kinds of steps slow down alike. So it can be
measured before the first request, where graphs are captured (`expect`), and is corrected by what steps then take.
"""

from collections import Counter

from gradus.scheduling.draft_shapes import DraftShape

NEW = 1 / 8  # of an average, the share that a new observation replaces, once there were some
FIRST = 4  # steps of a kind of which the fastest counts: one of the first may have set something up
LARGEST_RISE = 2.0  # the most that a single step counts, as a multiple of the average: it may have been interrupted
GUESS = 0.02  # what a row adds to a step at least, as a share of a step with one row per sequence, until it is measured
STALE = 256  # steps with drafts after which one without is timed again
RECENT = 32  # steps with drafts after which a time without them is not averaged with older ones
FORGOTTEN = 2048  # steps after which a shape is believed to take what was expected of it, for another trial


class StepTimes:
    """By padded batch size and shape of drafts."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds
        self._plain_timed: Counter[int] = Counter()  # steps that these are of
        self._since: Counter[int] = Counter()  # steps with drafts since the newest without
        self._ratios: dict[tuple[int, DraftShape], float] = {}
        self._timed: Counter[tuple[int, DraftShape]] = Counter()
        self._expected: dict[tuple[int, DraftShape], float] = {}
        self._seen: dict[tuple[int, DraftShape], int] = {}  # the step that a shape was timed in last
        self._steps = 0

    def expect(self, size: int, shape: DraftShape, ratio: float) -> None:
        """Note what multiple of a step without drafts one of this shape takes, before any has been served."""
        self._expected[size, shape] = max(1.0, ratio)

    def known(self, size: int) -> bool:
        """Whether it is known what a step without drafts takes."""
        return self._plain_timed[size] >= FIRST

    def stale(self, size: int) -> bool:
        """Whether that is so long ago that the next step should have no drafts."""
        return self._since[size] >= STALE

    def ratio(self, size: int, shape: DraftShape) -> float:
        """What a step of this shape takes, as a multiple of one without drafts: at least 1."""
        known = self._ratios.get((size, shape))
        if known is not None and self._steps - self._seen[size, shape] < FORGOTTEN:
            return known
        return self._expected.get((size, shape)) or self._guess(size, shape)

    def _guess(self, size: int, shape: DraftShape) -> float:
        """Half of what each row of the nearest smaller shape adds: a step's time rises less and less with its rows."""
        less = [each for (other, each) in self._ratios if other == size and each.rows < shape.rows]
        if not less:
            return 1 + GUESS * shape.rows / size
        nearest = max(less)
        known = self._ratios[size, nearest]
        return known + 0.5 * (known - 1) / nearest.rows * (shape.rows - nearest.rows)

    def took_plain(self, size: int, seconds: float) -> float:
        """Take in what a step without drafts took. Returns the multiple that it took of what such a step takes: 1."""
        self._plain_timed[size] += 1
        if self._since[size] > RECENT:
            self._plain.pop(size)
        self._plain[size] = _moved(self._plain.get(size), seconds, self._plain_timed[size])
        self._since[size] = 0
        return 1.0

    def took(self, size: int, shape: DraftShape, seconds: float, usual: bool = True) -> float:
        """Take in what a step of this shape took. usual: the next one like it takes as long.

        Returns the multiple that it took of a step without drafts.
        """
        self._steps += 1
        self._since[size] += 1
        ratio = max(1.0, seconds / self._plain.get(size, seconds))
        known = self._ratios.get((size, shape), ratio)
        if usual:
            self._timed[size, shape] += 1
            self._ratios[size, shape] = _moved(known, ratio, self._timed[size, shape])
            self._seen[size, shape] = self._steps
        return min(ratio, LARGEST_RISE * known) if usual else ratio


def _moved(average: float | None, new: float, times: int) -> float:
    """An average with a new observation, the fastest of the first ones."""
    if average is None or times <= FIRST:
        return min(new, average or new)
    return average + NEW * (min(new, LARGEST_RISE * average) - average)
