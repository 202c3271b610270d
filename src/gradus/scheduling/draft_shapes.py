"""The shapes of steps that verify drafts: a GPU captures them, and drafts are chosen among them. No torch here.

A step has B sequences with up to K drafts each, and rows for E drafts in all: a batch of eight sequences, two of them
copying, needs 14 rows more, not 56. E is B · K (or all the rows there are, where a step runs only the drafts found),
half of that, a quarter, and so on, so a step has at most twice the rows that it needs, or a few. Where each draft is
one more pass of the drafter, K is one of CHOICES; otherwise it is the maximum, or the second of CHOICES where a step
has hardly more rows than sequences: attention takes longer for every sequence that may have more new tokens than its
smallest tile holds. With the token before them, three drafts of up to four query heads each fit a tile of 16 rows.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

CHOICES = (1, 3, 7)  # with the token before them 2, 4 or 8 rows: what GPU kernels are compiled for
MOST_ROWS = 256
"""The most rows of a step that verifies drafts: beyond that, its time grows with its rows on any device."""
MOST_SEQUENCES = 64
"""The most sequences of a step that verifies drafts: with more, a row takes as long as in a step of its own."""
HALVINGS = 2  # how often B · K is halved where K is one of a few: more shapes would take long to capture


class DraftShape(NamedTuple):
    """Room for up to `drafts` of each sequence, and `rows` of all together."""

    drafts: int
    rows: int


NO_SHAPE = DraftShape(0, 0)
"""The shape of a step without drafts."""


def batch_sizes(most: int) -> list[int]:
    """List padded batch sizes up to and including `most`. At most 3 rows in 8 are padding (5 sequences in 8 rows).

    A padding row costs its share of the products and nothing in attention; a size costs a capture.
    """
    sizes = [1, 2, 4, 8, 12, 16, *range(24, 65, 8), *range(80, 257, 16), *range(288, 513, 32), *range(576, most, 64)]
    return [size for size in sizes if size < most] + [most]


def halved(rows: int, least: int) -> Iterator[int]:
    """Yield `rows`, half of that, and so on, down to `least`."""
    while rows >= least:
        yield rows
        rows //= 2


class DraftShapes:
    """The shapes for batches of up to `sequences`. most: drafts per sequence. passes: whether each further draft costs
    the drafter a pass. rows: the most rows of a step. padded: whether a step runs all rows of its shape, or only the
    rows of drafts that were found."""

    def __init__(
        self, most: int, sequences: int, *, passes: bool = False, rows: int = MOST_ROWS, padded: bool = True
    ) -> None:
        self.most, self.passes, self.rows, self.padded = most, passes, rows, padded
        self._sequences = sequences

    @cached_property
    def choices(self) -> tuple[int, ...]:
        """The possible values of K: a few numbers where each draft costs a pass, otherwise the maximum alone."""
        return (*(each for each in CHOICES if each < self.most), self.most) if self.passes else (self.most,)

    @cached_property
    def _by_size(self) -> dict[int, tuple[DraftShape, ...]]:
        sizes = [size for size in batch_sizes(self._sequences) if size <= MOST_SEQUENCES]
        return {size: self._all(size) for size in sizes or [self._sequences]}

    def _all(self, size: int) -> tuple[DraftShape, ...]:
        """List the shapes of a batch of this size, fewest rows first."""
        found = set()
        for drafts in self.choices:
            most = size * drafts if self.padded else min(size * drafts, self.rows - size)
            least = max(drafts, most >> HALVINGS) if self.passes else drafts
            found |= {DraftShape(drafts, rows) for rows in halved(most, least)}
        if not self.passes:
            short = min(CHOICES[1], self.most)
            found |= {DraftShape(short, rows) for rows in halved(size * short, short) if rows <= max(size, short)}
        fitting = [each for each in found if size + each.rows <= self.rows]
        return tuple(sorted(fitting, key=lambda each: (each.rows, each.drafts)))

    def unpadded(self, rows: int) -> "DraftShapes":
        """Make the shapes of steps with at most `rows` rows that run only the drafts that were found."""
        return DraftShapes(self.most, self._sequences, passes=self.passes, rows=min(rows, self.rows), padded=False)

    @cached_property
    def _sizes(self) -> list[int]:
        """The size of each number of sequences, up to the most that drafts are verified for."""
        return [next(size for size in self._by_size if size >= count) for count in range(max(self._by_size) + 1)]

    def size(self, sequences: int) -> int:
        """Return the batch size that `sequences` are padded to; 0 where they are too many for drafts."""
        return self._sizes[sequences] if sequences < len(self._sizes) else 0

    def of(self, size: int) -> tuple[DraftShape, ...]:
        """List the shapes of a batch of this size, fewest rows first."""
        return self._by_size.get(size, ())

    def fitting(self, sequences: int, drafts: int, rows: int) -> DraftShape | None:
        """Find the smallest shape with room for `drafts` of one sequence and `rows` in all; None if no shape has it."""
        shapes = self.of(self.size(sequences))
        return next((each for each in shapes if each.rows >= rows and each.drafts >= drafts), None)
