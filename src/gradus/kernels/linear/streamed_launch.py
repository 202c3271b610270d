"""What `streamed_gemv` and `streamed_rows` are launched with: without Gluon, which not every Triton has."""

import math
from typing import NamedTuple

from gradus.device.capability import KIB

VECTOR = 8  # 16-bit values in 16 bytes
LANES = 8  # of a warp, side by side on a row: 128 bytes. The other lanes are on the next rows
LANE_ROWS = 32 // LANES
WARP_COLUMNS = LANES * VECTOR
MOST_OUTPUTS = 256  # of a program: their sums meet in shared memory


class Slices(NamedTuple):
    """How a product's outputs are divided. programs: in all. groups: of rows that a program passes through, at most.
    stages: tiles in its shared memory. bytes: of shared memory that it takes.
    """

    programs: int
    groups: int
    stages: int
    bytes: int


class StreamedLaunch(NamedTuple):
    """outputs, columns: of a tile; with a gate it is a pair of them. row_warps, column_warps: those that share a tile's
    rows, and its columns. kilobytes: of tiles in shared memory, at most. programs: per multiprocessor, raced with the
    kilobytes: as many as its shared memory has room for, at most.

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
        self,
        outputs: int,
        k: int,
        gated: bool,
        processors: int,
        shared_memory: int,
        rows: int = 1,
        normed: bool = True,
    ) -> Slices:
        """For so many outputs of k columns, on a device with so many multiprocessors and bytes for a program.

        rows: of activations. They lie beside each tile if there are several, and no norm.
        """
        programs = min(outputs, max(self.programs * processors, math.ceil(outputs / MOST_OUTPUTS)))
        groups = math.ceil(math.ceil(outputs / programs) / self.outputs)
        matrices = 2 if gated else 1
        tile = 2 * (self.outputs * matrices + (0 if normed or rows == 1 else rows)) * self.columns
        together = 1 << (groups - 1).bit_length() if rows == 1 else rows  # one row's sums meet once, others by group
        sums = 4 * (self.outputs * together * matrices + rows) * self.column_warps
        room = min(self.kilobytes * KIB, shared_memory - sums)
        stages = max(1, min(groups * math.ceil(k / self.columns), room // tile))
        return Slices(programs, groups, stages, stages * tile + sums)
