"""Launch shapes of the products of few rows' experts, and which of them a number of rows takes.

The choice depends on the rows and on the matrices' sizes alone, so that all ranks of a model choose alike.
"""

from typing import NamedTuple

MOST_FEW = 64  # rows of `few.py`


class FewLaunch(NamedTuple):
    """outputs, columns: a tile of weights; with a gate there are two. stages: tiles in flight. warps: of a program."""

    outputs: int
    columns: int
    stages: int
    warps: int


class MixtureLaunch(NamedTuple):
    """The launches of both products."""

    up: FewLaunch
    down: FewLaunch


Sizes = tuple[int, int]  # [D, F] of an expert

# The fastest of benchmarks/kernels/experts.py on an H200, by sizes and rows. None: grouped products are as fast.
FASTEST: dict[Sizes, dict[int, MixtureLaunch | None]] = {
    (2048, 768): {  # Qwen3-30B-A3B
        1: MixtureLaunch(FewLaunch(64, 64, 6, 4), FewLaunch(64, 128, 4, 4)),
        2: MixtureLaunch(FewLaunch(32, 64, 4, 4), FewLaunch(128, 64, 3, 8)),
        4: MixtureLaunch(FewLaunch(64, 128, 2, 4), FewLaunch(64, 64, 4, 4)),
        8: MixtureLaunch(FewLaunch(64, 128, 3, 4), FewLaunch(64, 64, 3, 4)),
        16: MixtureLaunch(FewLaunch(64, 128, 3, 4), FewLaunch(64, 128, 3, 4)),
        64: None,
    },
}
MOST_UNRACED = 16  # rows of other sizes


def launch_of(rows: int, hidden: int, width: int) -> MixtureLaunch | None:
    """Return the launch for a number of rows and these sizes: the next raced number's. None: take the products of many
    rows (`grouped.py`).
    """
    raced = FASTEST.get((hidden, width))
    if rows > (MOST_UNRACED if raced is None else MOST_FEW):
        return None
    if raced is None:
        return MixtureLaunch(FewLaunch(64, 64, 4, 4), FewLaunch(64, 64, 4, 4))
    return raced[min(most for most in raced if most >= rows)]
