"""Launch shapes of `hopper_product`, and when to use it: importable without Gluon, which not every Triton has."""

from typing import NamedTuple

import torch

from gradus.kernels.quantized.tile import ALIGNED

DEPTH = 128  # columns of x and the weights in a tile
CONSUMERS = 2  # warpgroups that multiply


class HopperLaunch(NamedTuple):
    """rows: of x, per consumer. columns: outputs of a tile. stages: tiles in shared memory. buffers: of results, per
    consumer. together: rows of tiles that pass by a column of them.
    """

    rows: int
    columns: int
    stages: int
    buffers: int
    together: int

    @property
    def tile_rows(self) -> int:
        return self.rows * CONSUMERS


# For products alone, and for those that add to the residual stream. The shapes raced in
# `benchmarks/answered/int8_product.json` differ by as much as one does between two races.
ALONE = HopperLaunch(rows=64, columns=256, stages=4, buffers=2, together=16)
ONTO = HopperLaunch(rows=64, columns=256, stages=4, buffers=2, together=16)
RACED = 4096  # outputs and columns, at least
FILLED = 4  # tiles per multiprocessor, at least: programs stay, and the last round of tiles must not be the only one


def launch_for(m: int, n: int, k: int, processors: int, *, onto: bool) -> HopperLaunch | None:
    """Choose the launch for x [m, k] and a matrix [n, k]; None: the kernel for all GPUs. onto: adds to the residual."""
    launch = ONTO if onto else ALONE
    tiles = -(-m // launch.tile_rows) * (n // launch.columns)
    whole = n % launch.columns == 0 and k % DEPTH == 0
    return launch if whole and min(n, k) >= RACED and tiles >= FILLED * processors else None


def is_aligned(residual: torch.Tensor) -> bool:
    """Whether the copy engine can read and write the tensor."""
    row = residual.stride(0) * residual.element_size()
    return residual.stride(1) == 1 and row % ALIGNED == 0 and residual.data_ptr() % ALIGNED == 0
