"""What `few_rows` is launched with: without Gluon, which not every Triton has."""

from typing import NamedTuple

MOST_ROWS = 16
DEPTH = 32  # columns of a tile that a warp has: two products of 16 each


class FewRowsLaunch(NamedTuple):
    """outputs: of a program, a multiple of 16. warps: they share K. ahead: tiles of weights in flight, of `outputs` by
    DEPTH columns for every warp. sums: that a warp adds to in turn.
    """

    outputs: int
    warps: int
    ahead: int
    sums: int
