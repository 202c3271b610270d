"""The shapes of steps that verify drafts: what a GPU captures, and what the choice of drafts is made among. No torch.

A step has B sequences, of which each may have up to K drafts, and rows for E drafts in all: a batch in which two of
eight sequences copy needs 14 rows more, not 56. E is B · K, half of that, a quarter, and so on, so a step has at most
twice the rows that it needs. Where each draft is one more pass of the drafter, K is one of a few numbers; otherwise it
is always the most there may be, since a draft costs no more than its row.
"""

from functools import cached_property
from typing import NamedTuple

CHOICES = (1, 3, 7)  # with the token before them 2, 4 or 8 rows: what GPU kernels are compiled for
MOST_ROWS = 256
"""Of a step that verifies drafts: beyond, its time grows with its rows on any device."""
MOST_SEQUENCES = 64
"""Of a step that verifies drafts: with more, a row takes as long as it would in a step of its own."""
HALVINGS = 2  # of B · K where K is one of a few: more shapes than that would take long to capture


class DraftShape(NamedTuple):
    """Room for up to `drafts` of each sequence, and `rows` of all together."""

    drafts: int
    rows: int


NO_SHAPE = DraftShape(0, 0)
"""Of a step without drafts."""


def batch_sizes(most: int) -> list[int]:
    """Padded batch sizes up to `most`, the last: so dense that at most 3 rows in 8 are padding (5 sequences in 8 rows).

    A padding row costs its share of the products and nothing in attention; a size costs a capture.
    """
    sizes = [1, 2, 4, 8, 12, 16, *range(24, 65, 8), *range(80, 257, 16), *range(288, 513, 32), *range(576, most, 64)]
    return [size for size in sizes if size < most] + [most]


class DraftShapes:
    """Those of batches of up to `sequences`. most: drafts of each. passes: whether a draft more takes the drafter one
    more pass. rows: of a step, at most. padded: whether a step has all rows of its shape, or only those of the drafts
    that were found."""

    def __init__(
        self, most: int, sequences: int, *, passes: bool = False, rows: int = MOST_ROWS, padded: bool = True
    ) -> None:
        self.most, self.passes, self.rows, self.padded = most, passes, rows, padded
        self._sequences = sequences

    @cached_property
    def choices(self) -> tuple[int, ...]:
        """The most drafts of a sequence, one number for each pass that is worth having."""
        return (*(each for each in CHOICES if each < self.most), self.most) if self.passes else (self.most,)

    @cached_property
    def _by_size(self) -> dict[int, tuple[DraftShape, ...]]:
        sizes = [size for size in batch_sizes(self._sequences) if size <= MOST_SEQUENCES]
        return {size: self._all(size) for size in sizes or [self._sequences]}

    def _all(self, size: int) -> tuple[DraftShape, ...]:
        """The shapes of a batch of this size, the one with the fewest rows first."""
        found = set()
        for drafts in self.choices:
            rows, least = size * drafts, max(1, (size * drafts) >> HALVINGS, drafts) if self.passes else 1
            while rows >= least:
                found.add(DraftShape(drafts, rows))
                rows = rows // 2 if rows > 1 else 0
        fitting = [each for each in found if size + each.rows <= self.rows]
        return tuple(sorted(fitting, key=lambda each: (each.rows, each.drafts)))

    def unpadded(self, rows: int) -> "DraftShapes":
        """The same for steps of no more rows than these, which have only those of the drafts that were found."""
        return DraftShapes(self.most, self._sequences, passes=self.passes, rows=min(rows, self.rows), padded=False)

    def size(self, sequences: int) -> int:
        """The batch size that so many sequences are padded to; 0 where they are too many for drafts."""
        return next((size for size in self._by_size if size >= sequences), 0)

    def of(self, size: int) -> tuple[DraftShape, ...]:
        """The shapes of a batch of this size, the one with the fewest rows first."""
        return self._by_size.get(size, ())

    def fitting(self, sequences: int, drafts: int, rows: int) -> DraftShape | None:
        """The smallest that has room for so many of one sequence, and of all; None where none has."""
        shapes = self.of(self.size(sequences))
        return next((each for each in shapes if each.rows >= rows and each.drafts >= drafts), None)
