"""Launch shapes of grouped products: importable without Gluon, which not every Triton has."""

from typing import NamedTuple

from gradus.kernels.core.tuning import KINDS


class GroupedLaunch(NamedTuple):
    """tokens: rows of one expert in a tile. rows, columns: of a tile of weights; with a gate it is a pair of them.
    stages: tiles in flight. copied: by the copy engine, where there is one. early: it may start early.
    """

    tokens: int
    rows: int
    columns: int
    stages: int
    warps: int
    copied: bool = False
    early: bool = False

    def shared_bytes(self, *, gated: bool, item: int = 2) -> int:
        """Bytes of its tiles in shared memory. item: bytes of a value."""
        return self.stages * (self.rows * (1 + gated) + self.tokens) * self.columns * item


KINDS["grouped"] = GroupedLaunch


HIGH = 128  # rows of one expert in a tile of `hopper_grouped`
DEEP = 64  # columns of its tiles
CONSUMERS = 2  # warp groups that multiply them


class HopperGroupedLaunch(NamedTuple):
    """stages: tiles in shared memory."""

    stages: int


class HopperStreamedLaunch(NamedTuple):
    """tokens: rows of one expert in a tile of `hopper_streamed`. stages: tiles in shared memory."""

    tokens: int
    stages: int


KINDS["hopper grouped"] = HopperGroupedLaunch
KINDS["hopper streamed"] = HopperStreamedLaunch
HopperLaunch = HopperGroupedLaunch | HopperStreamedLaunch
AnyLaunch = GroupedLaunch | HopperLaunch
