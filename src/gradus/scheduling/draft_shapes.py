"""The shapes of steps that verify drafts: what a GPU captures, and what the choice of drafts is made among. No torch.

A step has B sequences, of which each may have up to K drafts, and rows for E drafts in all: a batch in which two of
eight sequences copy needs 14 rows more, not 56. E is B · K, half of that, a quarter, and so on, so a step has at most
twice the rows that it needs. Where each draft is a pass of the drafter, K matters too and is one of a few; otherwise it
is always the most there may be.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

CHOICES = (1, 3, 7)  # with the token before them 2, 4 or 8 rows: what GPU kernels are compiled for
MOST_ROWS = 256
"""Of a step that verifies drafts: beyond, its time grows with its rows on any device."""
MOST_SEQUENCES = 64
"""Of a step that verifies drafts: with more, rows cost what they cost anyway."""
HALVINGS = 2  # of B · K, where K matters too: more shapes than that would take long to capture


class DraftShape(NamedTuple):
    """Up to `drafts` of each sequence, `rows` of all together."""

    drafts: int
    rows: int

    @classmethod
    def of(cls, sequences: int, drafts: int, rows: int, choices: Sequence[int], *, passes: bool) -> "DraftShape":
        """The smallest that has room for so many. There is always one: `choices` end with the most drafts."""
        fitting = (each for each in all_shapes(batch_size(sequences), tuple(choices), passes) if each.rows >= rows)
        return min((each for each in fitting if each.drafts >= drafts), key=lambda each: (each.rows, each.drafts))


def batch_sizes(most: int) -> list[int]:
    """Padded batch sizes up to `most`, the last: so dense that at most 3 rows in 8 are padding (5 sequences in 8 rows).

    A padding row costs its share of the products and nothing in attention; a size costs a capture.
    """
    sizes = [1, 2, 4, 8, 12, 16, *range(24, 65, 8), *range(80, 257, 16), *range(288, 513, 32), *range(576, most, 64)]
    return [size for size in sizes if size < most] + [most]


_SIZES = batch_sizes(MOST_SEQUENCES)


def batch_size(sequences: int) -> int:
    """The batch size that so many sequences are padded to, as far as drafts go."""
    return next((size for size in _SIZES if size >= sequences), sequences)


def choices(most: int, *, adaptive: bool, passes: bool) -> list[int]:
    """How many drafts a sequence may have at most, ascending; none is always a choice."""
    return [*(each for each in CHOICES if each < most), most] if adaptive and passes else [most]


@lru_cache(maxsize=None)
def all_shapes(sequences: int, choices: tuple[int, ...], passes: bool) -> tuple[DraftShape, ...]:
    """Those of a batch of this size, the largest first."""
    found = []
    for drafts in choices:
        rows, halvings = sequences * drafts, 0
        while rows >= (drafts if passes else 1) and (halvings <= HALVINGS or not passes):
            found.append(DraftShape(drafts, rows))
            if rows == 1:
                break
            rows, halvings = -(-rows // 2), halvings + 1
    return tuple(sorted(found, key=lambda shape: (shape.rows, shape.drafts), reverse=True))


def shapes(sequences: int, choices: Sequence[int], room: int, *, passes: bool) -> list[DraftShape]:
    """Those that a step of so many sequences, with room for so many rows more, may have, the largest first."""
    size = batch_size(sequences)
    room -= size - sequences
    return [shape for shape in all_shapes(size, tuple(choices), passes) if shape.rows <= room]
