"""Launch shapes of the products of experts, and which of them a number of rows takes.

The choice depends on the rows and on the matrices' sizes alone, so that all ranks of a model choose alike.
"""

from typing import NamedTuple

MOST_FEW = 64  # rows of `few.py`


class PairLaunch(NamedTuple):
    """rows, columns: of the tile of weights that a program has in flight at a time. For the second product, the columns
    are those of each chosen expert. tiles: that a program of the first product takes in turn.
    """

    rows: int
    columns: int
    warps: int
    tiles: int = 1


class FewLaunch(NamedTuple):
    """outputs, columns: a tile of weights; with a gate there are two. stages: tiles in flight. warps: of a program.
    ahead: of the second product, weights are fetched into the L2 cache while the first one is at work.
    """

    outputs: int
    columns: int
    stages: int
    warps: int
    ahead: bool = False


class MixtureLaunch(NamedTuple):
    """The launches of both products, each of pairs or of a few rows."""

    up: PairLaunch | FewLaunch
    down: PairLaunch | FewLaunch


Sizes = tuple[int, int]  # [D, F] of an expert

# benchmarks/kernels/experts.py prints what belongs here, by sizes and rows. Raced on an H200.
FASTEST: dict[Sizes, dict[int, MixtureLaunch | None]] = {
    (2048, 768): {
        1: MixtureLaunch(FewLaunch(64, 64, 6, 4), FewLaunch(64, 128, 4, 4)),
        2: MixtureLaunch(FewLaunch(32, 64, 4, 4), FewLaunch(128, 64, 3, 8)),
        4: MixtureLaunch(FewLaunch(64, 128, 2, 4), FewLaunch(64, 64, 4, 4)),
        8: MixtureLaunch(FewLaunch(64, 128, 3, 4), FewLaunch(64, 64, 3, 4)),
        16: MixtureLaunch(FewLaunch(64, 128, 3, 4), FewLaunch(64, 128, 3, 4)),
        32: MixtureLaunch(FewLaunch(64, 64, 3, 4), FewLaunch(64, 128, 4, 4)),
        64: MixtureLaunch(FewLaunch(64, 64, 3, 4), FewLaunch(128, 64, 4, 4)),
    },
}
UNRACED = {
    4: MixtureLaunch(FewLaunch(64, 64, 4, 4), FewLaunch(64, 128, 3, 4)),
    16: MixtureLaunch(FewLaunch(64, 128, 3, 4), FewLaunch(64, 128, 3, 4)),
    MOST_FEW: MixtureLaunch(FewLaunch(64, 64, 3, 4), FewLaunch(64, 64, 3, 4)),
}
"""For experts of other sizes: launches that were near the fastest in the race above."""


def launch_of(rows: int, hidden: int, width: int) -> MixtureLaunch | None:
    """Return the launch raced for the next larger number of rows of experts of these sizes. None for the products of
    many rows (`grouped.py`).
    """
    if rows > MOST_FEW:
        return None
    raced = FASTEST.get((hidden, width), {})
    most = min((most for most in raced if most >= rows), default=None)
    return UNRACED[min(most for most in UNRACED if most >= rows)] if most is None else raced[most]
