"""Launch shapes of the products of experts, and which of them a number of rows takes.

The choice depends on the rows and on the matrices' sizes alone, so that all ranks of a model choose alike.
"""

from typing import NamedTuple

MOST_FEW = 64  # rows of `few.py`
MOST_PAIRED = 2  # rows of `pairs.py`, where hardly an expert is chosen twice
MOST_COMPARED = 256  # experts whose ranks each program of `pairs.py` finds for itself


class PairLaunch(NamedTuple):
    """rows, columns: of the tile of weights that a program has in flight at a time. For the second product, the columns
    are those of each chosen expert. tiles: that a program of the first product takes in turn, so that it chooses once
    for all of them.
    """

    rows: int
    columns: int
    warps: int
    tiles: int = 1


class FewLaunch(NamedTuple):
    """outputs, columns: a tile of weights; with a gate there are two. stages: tiles in flight. warps: of a program."""

    outputs: int
    columns: int
    stages: int
    warps: int


class MixtureLaunch(NamedTuple):
    """The launches of both products: of pairs, or of a few rows."""

    up: PairLaunch | FewLaunch
    down: PairLaunch | FewLaunch

    @property
    def paired(self) -> bool:
        return isinstance(self.up, PairLaunch)


Sizes = tuple[int, int]  # [D, F] of an expert

# Until a race on a GPU has named others: benchmarks/kernels/experts.py prints what belongs here, by sizes and rows.
FASTEST: dict[Sizes, dict[int, MixtureLaunch | None]] = {}


def launch_of(rows: int, hidden: int, width: int, experts: int) -> MixtureLaunch | None:
    """The launch for so many rows of experts of these sizes: that of the next number of rows which was raced. None for
    the products of many rows (`grouped.py`).
    """
    if rows > MOST_FEW:
        return None
    raced = FASTEST.get((hidden, width), {})
    most = min((most for most in raced if most >= rows), default=None)
    launch = unraced(rows, hidden) if most is None else raced[most]
    if launch is not None and launch.paired and experts > MOST_COMPARED:
        return unraced(MOST_PAIRED + 1, hidden)
    return launch


def unraced(rows: int, hidden: int) -> MixtureLaunch:
    """What should be reasonable anywhere: 32 weights of each thread in flight, or three tiles of a program."""
    if rows <= MOST_PAIRED:
        return MixtureLaunch(PairLaunch(2, 1024 if hidden >= 1024 else 256, 4), PairLaunch(2, 256, 4))
    tile = FewLaunch(32, 128, 3, 4)
    return MixtureLaunch(tile, tile)
