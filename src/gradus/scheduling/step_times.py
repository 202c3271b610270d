"""What steps take: without drafts in seconds, and with drafts as a multiple of that. No torch here.

A multiple moves little as texts grow and machines become busy, since both kinds of steps slow down alike. So it can be
measured before the first request, where graphs are captured (`expect`), and is corrected by what steps then take.
"""

from collections import Counter

from gradus.scheduling.draft_shapes import DraftShape, batch_size

NEW = 1 / 8  # of an average, the share that a new observation replaces, once there were some
FIRST = 4  # steps of a kind of which the fastest counts: one of the first may have set something up
LARGEST_RISE = 2.0  # the most that a single step counts, as a multiple of the average: it may have been interrupted
GUESS = 0.02  # what a row more adds to a step at least, relative to one row of it, until that is measured
STALE = 256  # steps with drafts after which one without is timed again
RECENT = 32  # steps with drafts after which a time without them is not averaged with older ones
FORGOTTEN = 2048  # steps after which a shape that was too slow is believed to be what was expected of it


class StepTimes:
    """By batch size. Sizes are those that batches are padded to."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds
        self._timed: Counter[tuple[int, DraftShape | None]] = Counter()  # steps that an average is of
        self._ratios: dict[tuple[int, DraftShape], float] = {}
        self._expected: dict[tuple[int, DraftShape], float] = {}
        self._since: Counter[int] = Counter()  # steps with drafts since the newest without
        self._seen: dict[tuple[int, DraftShape], int] = {}  # the step that a shape was timed in last
        self._steps = 0

    def expect(self, sequences: int, shape: DraftShape, ratio: float) -> None:
        """A step of this shape takes so many times what one without drafts takes, as far as is known before any."""
        self._expected[batch_size(sequences), shape] = ratio

    def known(self, sequences: int) -> bool:
        """Whether it is known what a step without drafts takes."""
        return self._timed[batch_size(sequences), None] >= FIRST

    def stale(self, sequences: int) -> bool:
        """Whether that is so long ago that the next step should have no drafts."""
        return self._since[batch_size(sequences)] >= STALE

    def ratio(self, sequences: int, shape: DraftShape) -> float:
        """What a step of this shape takes, as a multiple of one without drafts: at least 1."""
        size = batch_size(sequences)
        known = self._ratios.get((size, shape))
        if known is not None and self._steps - self._seen[size, shape] < FORGOTTEN:
            return known
        return self._guess(size, shape)

    def _guess(self, size: int, shape: DraftShape) -> float:
        """What was expected, or half of what the nearest smaller shape adds by row: time rises less and less."""
        if (size, shape) in self._expected:
            return self._expected[size, shape]
        less = [each for (other, each) in self._ratios if other == size and each.rows <= shape.rows]
        nearest = max(less, key=lambda each: (each.rows, each.drafts), default=None)
        if nearest is None:
            return 1 + GUESS * shape.rows / size
        known = self._ratios[size, nearest]
        return known + 0.5 * (known - 1) / nearest.rows * (shape.rows - nearest.rows)

    def took(self, sequences: int, shape: DraftShape | None, seconds: float, usual: bool = True) -> float:
        """A step took so long. usual: the next one like it takes as long. Returns the multiple that this one took."""
        size = batch_size(sequences)
        self._steps += 1
        self._timed[size, shape] += usual
        times = self._timed[size, shape]
        if shape is None:
            if self._since[size] > RECENT:  # texts have grown since, or a neighbor came: begin anew
                del self._plain[size]
                times = self._timed[size, None] = FIRST
            self._plain[size] = _moved(self._plain.get(size), seconds, times)
            self._since[size] = 0
            return 1.0
        self._since[size] += 1
        plain = self._plain.get(size, seconds)
        ratio = max(1.0, seconds / plain)
        if usual:
            self._ratios[size, shape] = _moved(self._ratios.get((size, shape)), ratio, times)
            self._seen[size, shape] = self._steps
        return min(ratio, LARGEST_RISE * self._ratios.get((size, shape), ratio))


def _moved(average: float | None, new: float, times: int) -> float:
    if average is None:
        return new
    if times <= FIRST:
        return min(average, new)
    return average + NEW * (min(new, LARGEST_RISE * average) - average)
