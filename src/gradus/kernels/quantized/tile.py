"""A tile of a product whose weights are the high side: its launch, and the programs that share its sums.

Used by the products of quantized matrices (`int4.py`, `eight_bits.py`). A program owns `rows` outputs of `tokens` rows
of x, and of the sum over K its share; program_id is (tile of outputs, split, tile of tokens). Of many tiles, TOGETHER
of tokens pass by a tile of weights one after the other, so that they find it in the L2 cache. Complete sums end as
those of 16-bit products do, in `linear/epilogue.py`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.counters import Counters, counters_of
from gradus.kernels.linear.splits import arrives_last, leave, total

ALIGNED = 16  # bytes
TOGETHER = 8


class SharedSums(NamedTuple):
    """chunk: tiles of K per program. partial [splits, M, N] and arrived: None without splits."""

    grid: tuple[int, int, int]
    chunk: int
    partial: Tensor | None
    arrived: Tensor | None


class TileLaunch(NamedTuple):
    """rows, columns: a tile of weights. tokens: rows of x. splits: programs that share a sum, at most. stages: tiles in
    flight. ahead: tiles whose weights are fetched into the L2 cache before an early launch waits.
    """

    rows: int
    columns: int
    tokens: int
    splits: int
    stages: int
    warps: int
    ahead: int = 0

    def shared_sums(
        self,
        m: int,
        rows: int,
        outputs: int,
        tiles: int,
        dtype: torch.dtype,
        device: torch.device,
        counters: Counters | None = None,
    ) -> SharedSums:
        """Divide a product's sums among programs. rows: of the matrix. outputs: half of them if gated. tiles: of K."""
        chunk = triton.cdiv(tiles, self.splits)
        splits = triton.cdiv(tiles, chunk)  # none without a share
        grid = triton.cdiv(outputs, self.rows), splits, triton.cdiv(m, self.tokens)
        if splits == 1:
            return SharedSums(grid, chunk, None, None)
        partial = torch.empty(splits, m, rows, dtype=dtype, device=device)
        return SharedSums(grid, chunk, partial, counters_of(device, grid[0] * grid[2], counters))


def result(like: Tensor, m: int, outputs: int, dtype: torch.dtype, padded: bool) -> Tensor:
    """Memory for [M, N]; padded: rows lie at multiples of 16 bytes."""
    aligned = ALIGNED // dtype.itemsize
    width = -(-outputs // aligned) * aligned if padded else outputs
    return torch.empty(m, width, dtype=dtype, device=like.device)[:, :outputs]


@triton.jit
def share(
    sums: tensor, ups: tensor, n: tensor, m: tensor, inside: tensor, partial_ptr: tensor, arrived_ptr: tensor,
    M: int, N: int, GATED: constexpr,
) -> tensor:  # fmt: skip
    """Leave a program's sums for the last one of its tile; whether it is that itself."""
    rows = 2 * N if GATED else N
    here = m[None, :] * rows + n[:, None]
    leave(sums, here, inside, partial_ptr, M * rows)
    if GATED:
        leave(ups, here + N, inside, partial_ptr, M * rows)
    return arrives_last(arrived_ptr, tl.program_id(2) * tl.num_programs(0) + tl.program_id(0))


@triton.jit
def shared(
    sums: tensor, ups: tensor, n: tensor, m: tensor, inside: tensor, partial_ptr: tensor, M: int, N: int,
    GATED: constexpr,
) -> tensor:  # fmt: skip
    """The sums of all programs of a tile."""
    rows = 2 * N if GATED else N
    here = m[None, :] * rows + n[:, None]
    sums = total(sums, here, inside, partial_ptr, M * rows)
    if GATED:
        ups = total(ups, here + N, inside, partial_ptr, M * rows)
    return sums, ups
