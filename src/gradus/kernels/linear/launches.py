"""Launch shapes of the products of few rows. They need no Gluon, which some versions of Triton lack."""

import math
from typing import NamedTuple

from gradus.device.capability import KIB
from gradus.kernels.core.tuning import KINDS

FEW_ROWS = 4  # of `gemv`
MOST_ROWS = 16  # of `few_rows`
MOST_STREAMED_ROWS = 32  # of `streamed_rows`: with 64, cuBLAS is faster
DEPTH = 32  # columns of a tile that a warp has: two products of 16 each
VECTOR = 8  # 16-bit values in 16 bytes
LANES = 8  # of a warp, side by side on a row: 128 bytes. The other lanes are on the next rows
LANE_ROWS = 32 // LANES
WARP_COLUMNS = LANES * VECTOR
MOST_OUTPUTS = 256  # of a program: their sums meet in shared memory


class GemvLaunch(NamedTuple):
    """rows, columns: the tile of weights that a program has in flight at a time."""

    rows: int
    columns: int
    warps: int


class SplitKLaunch(NamedTuple):
    """rows, columns: a tile of weights. splits: programs that share a row's sum. stages: tiles in flight."""

    rows: int
    columns: int
    splits: int
    stages: int
    warps: int


class FewRowsLaunch(NamedTuple):
    """outputs: of a program, a multiple of 16. warps: they share K. ahead: tiles of weights in flight, of `outputs` by
    DEPTH columns for every warp. sums: that a warp adds to in turn.
    """

    outputs: int
    warps: int
    ahead: int
    sums: int


class Slices(NamedTuple):
    """The division of a product's outputs. programs: in total. groups: the most groups of rows that a program handles.
    stages: tiles in its shared memory. bytes: its shared memory.
    """

    programs: int
    groups: int
    stages: int
    bytes: int


class StreamedLaunch(NamedTuple):
    """outputs, columns: of a tile; with a gate it is a pair of them. row_warps, column_warps: those that share a tile's
    rows, and its columns. kilobytes: of tiles in shared memory, at most. programs: per multiprocessor; or 0, one for
    each tile of outputs, as where those are too few for all multiprocessors.

    For more than one row of activations, `outputs` is a multiple of 16, and all warps share columns.
    """

    outputs: int
    columns: int
    row_warps: int
    column_warps: int
    kilobytes: int
    programs: int

    @property
    def warps(self) -> int:
        return self.row_warps * self.column_warps

    def slices(
        self, outputs: int, k: int, gated: bool, processors: int, shared_memory: int, rows: int = 1, normed: bool = True
    ) -> Slices:
        """Divide outputs of k columns on a device. processors: its multiprocessors. shared_memory: bytes per program.

        rows: of activations. Several rows without a norm take shared memory with each tile.
        """
        most = self.programs * processors or math.ceil(outputs / self.outputs)
        programs = min(outputs, max(most, math.ceil(outputs / MOST_OUTPUTS)))
        groups = math.ceil(math.ceil(outputs / programs) / self.outputs)
        matrices = 2 if gated else 1
        tile = 2 * (self.outputs * matrices + (0 if normed or rows == 1 else rows)) * self.columns
        together = 1 << (groups - 1).bit_length() if rows == 1 else rows  # one row's sums meet once, others by group
        sums = 4 * (self.outputs * together * matrices + rows) * self.column_warps
        room = min(self.kilobytes * KIB, shared_memory - sums)
        stages = max(1, min(groups * math.ceil(k / self.columns), room // tile))
        return Slices(programs, groups, stages, stages * tile + sums)


KINDS.update(gemv=GemvLaunch, few_rows=FewRowsLaunch, streamed=StreamedLaunch, splitk=SplitKLaunch)
