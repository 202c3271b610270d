"""A tile of a product whose weights are the high side: its launch, and the programs that share its sums.

Used by the products of quantized matrices (`int4.py`, `gguf.py`, `eight_bits.py`). A program owns `rows` outputs of
`tokens` rows of x, and of the sum over K its share; program_id is (tile of outputs, split, tile of tokens). Of many
tiles, TOGETHER of tokens pass by a tile of weights one after the other, so that they find it in the L2 cache. Sums end
as those of 16-bit products do, in `linear/splits.py`.
"""

from typing import Any, NamedTuple, Unpack

import torch
import triton
from torch import Tensor

from gradus.kernels.core.counters import Counters, counters_of
from gradus.kernels.core.overlap import starts_early
from gradus.kernels.core.tuning import KINDS
from gradus.kernels.linear.epilogue import Epilogue

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


KINDS["tile"] = TileLaunch


def result(like: Tensor, m: int, outputs: int, dtype: torch.dtype, padded: bool) -> Tensor:
    """Memory for [M, N]; padded: rows lie at multiples of 16 bytes."""
    aligned = ALIGNED // dtype.itemsize
    width = -(-outputs // aligned) * aligned if padded else outputs
    return torch.empty(m, width, dtype=dtype, device=like.device)[:, :outputs]


class Around(Epilogue, total=False):
    """Optional arguments of a product. residual: [M, N], which takes the sum in place. padded: rows of the result begin
    at multiples of 16 bytes. counters: None takes the device's.
    """

    padded: bool
    counters: Counters | None


def multiply(
    kernel: Any, operands: tuple[Tensor | None, ...], x: Tensor, rows: int, dtype: torch.dtype, launch: TileLaunch,
    more: dict[str, Any], sums: torch.dtype = torch.float32, **around: Unpack[Around],
) -> Tensor:  # fmt: skip
    """residual + activation(x weightᵀ + bias); gated: activation(gate) * up of the product's two halves.

    operands: the kernel's first ones. x: [M, K]. rows: of the matrix. more: arguments and options of this kernel alone.
    sums: the type of shared ones. Returns [M, N] in dtype: `residual` itself if given.
    """
    (m, k), gated, residual = x.shape, around.get("gated", False), around.get("residual")
    outputs = rows // 2 if gated else rows
    out = result(x, m, outputs, dtype, around.get("padded", False)) if residual is None else residual
    tiles, early = triton.cdiv(k, launch.columns), starts_early()
    shares = launch.shared_sums(m, rows, outputs, tiles, sums, x.device, around.get("counters"))
    kernel[shares.grid](
        *operands, around.get("bias"), residual, out, shares.partial, shares.arrived,
        m, outputs, k, out.stride(0), shares.chunk,
        ACTIVATION=around.get("activation"), GATED=gated, BLOCK_M=launch.tokens, BLOCK_N=launch.rows, GROUP_M=TOGETHER,
        PDL=early, num_warps=launch.warps, num_stages=launch.stages, launch_pdl=early, **more,
    )  # fmt: skip
    return out
