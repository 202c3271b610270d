"""A tile of a product whose weights are the high side: its launch, the programs that share its sums, and how it ends.

Used by the products of quantized matrices (`int4.py`, `eight_bits.py`). A program owns `rows` outputs of `tokens` rows
of x, and of the sum over K its share; program_id is (tile of outputs, split, tile of tokens). Of many tiles, TOGETHER
of tokens pass by a tile of weights one after the other, so that they find it in the L2 cache. `gemv.py` and
`skinny.py` end their sums in the same way, in kernels of their own; in torch it is one function (`finish_reference`).
"""

from typing import NamedTuple, TypedDict

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.linear.splits import Counters, arrives_last, counters_of, leave, total
from gradus.kernels.rows.activation import activate, activation_reference, gated_activation_reference

ALIGNED = 16  # bytes
TOGETHER = 8


class Behind(TypedDict, total=False):
    """What follows a product in its kernel: the arguments that may be left out."""

    bias: Tensor | None
    activation: str | None
    gated: bool
    residual: Tensor | None


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
        """For a matrix of `rows` rows that makes `outputs` (half of them, with a gate), and K of so many tiles."""
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


@triton.jit
def finish(
    sums: tensor, ups: tensor, n: tensor, m: tensor, inside_n: tensor, inside: tensor, bias_ptr: tensor,
    residual_ptr: tensor, out_ptr: tensor, N: int, stride: int, ACTIVATION: constexpr, GATED: constexpr,
) -> None:  # fmt: skip
    """Write residual + activation(sums + bias), with a gate times (ups + bias)."""
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + n, mask=inside_n, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION is not None:
        sums = activate(sums, ACTIVATION)
    if GATED:
        if bias_ptr is not None:
            ups += tl.load(bias_ptr + N + n, mask=inside_n, other=0.0).to(tl.float32)[:, None]
        sums *= ups
    here = m.to(tl.int64)[None, :] * stride + n[:, None]
    if residual_ptr is not None:
        sums += tl.load(residual_ptr + here, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + here, sums.to(out_ptr.dtype.element_ty), mask=inside)


# -- the same in torch -----------------------------------------------------------------------------------------------


def finish_reference(
    sums: Tensor,
    dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """sums: float32 [M, N], or [M, 2 N] if gated; the bias is as wide. residual: [M, N], takes the sum in place.

    Returns [M, N] in dtype, or the residual.
    """
    if bias is not None:
        sums = sums + bias.float()
    if activation is not None:
        sums = gated_activation_reference(sums, activation) if gated else activation_reference(sums, activation)
    return sums.to(dtype) if residual is None else residual.copy_(residual.float() + sums)
