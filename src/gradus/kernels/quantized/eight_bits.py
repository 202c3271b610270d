"""Rows through a matrix of 8-bit weights: int8 by int8 or e4m3 by e4m3, with scales for rows, tokens, or blocks.

Idea: both sides are 8 bits wide, so tensor cores multiply them as they lie in shared memory: nothing is converted, and
a decode reads half the bytes of bfloat16 for the price of one instruction per 32 columns. As in `splitk.py` weights are
the high side of a tile, from 8 tokens on. With taller tiles the same kernel takes a prompt, at twice the rate of
bfloat16; a library's product of integers would write its sums as 32-bit integers and read them again to scale them.

Sums of integers are exact in int32. Tensor cores sum products of e4m3 with fewer bits than float32 has (14 on a Hopper,
DeepSeek-V3, section 3.3.2), so sums of 128 products each are added in float32: the blocks' size, where scales come in.

Bytes: N K of weights once per `tokens` rows of x, 4 N of scales; M (K + 2 N) of activations.
Layout: x [M, K], weight [N, K], both row-major; x's scales [groups, M]. A row n of weights has scales[n], or where
blocks of 128 x 128 share one, scales[block_of_row[n], k / 128].
"""

from typing import NamedTuple, Unpack

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, prefetch, wait_for_previous
from gradus.kernels.linear.splits import finish_tile
from gradus.kernels.quantized.quantize import Rounded
from gradus.kernels.quantized.tile import Around, TileLaunch, multiply

BLOCK = 128


class EightBitWeights(NamedTuple):
    """values: int8 or e4m3 [N, K]. scales: float32 [N]; or with block_of_row, int64 [N], [blocks, ⌈K / 128⌉]."""

    values: Tensor
    scales: Tensor
    block_of_row: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.values.shape[0]


@triton.jit
def _tile(rows: tensor, column: tensor, inside: tensor, K: int, EVEN_K: constexpr) -> tensor:
    """Columns of the rows that are pointed to, along either side: `inside` has the rows' shape."""
    if EVEN_K:
        return tl.load(rows + column, mask=inside, other=0.0)
    return tl.load(rows + column, mask=inside & (column < K), other=0.0)


@triton.jit
def _summed(
    sums: tensor, weight: tensor, x: tensor, scale_ptr: tensor, x_scale: tensor, block: tensor, inside_n: tensor,
    start: int, K: int, BLOCKS: constexpr,
) -> tensor:  # fmt: skip
    """sums, and the products of one tile; of blocks with their scales."""
    if sums.dtype == tl.int32:
        sums = tl.dot(weight, x, sums, out_dtype=tl.int32)
    elif BLOCKS:
        scale = tl.load(scale_ptr + block * ((K + 127) // 128) + start // 128, mask=inside_n, other=0.0)
        sums += tl.dot(weight, x) * (scale[:, None] * x_scale[None, :])
    else:
        sums += tl.dot(weight, x, max_num_imprecise_acc=min(128, weight.shape[1]))
    return sums


@triton.jit(do_not_specialize=["M", "chunk", "ahead"])  # no kernel of its own for one row, or a multiple of 16
def eight_bit_kernel(
    x_ptr: tensor, x_scale_ptr: tensor, weight_ptr: tensor, scale_ptr: tensor, block_ptr: tensor, bias_ptr: tensor,
    residual_ptr: tensor, out_ptr: tensor, partial_ptr: tensor, arrived_ptr: tensor,
    M: int, N: int, K: int, stride: int, chunk: int, ahead: int,
    EVEN_K: constexpr, ACTIVATION: constexpr, GATED: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr,
    BLOCK_K: constexpr, GROUP_M: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """BLOCK_N outputs of BLOCK_M rows, and of their sum the `chunk` tiles of BLOCK_K columns that are program_id(1)'s.

    Without blocks `block_ptr` is None. stride: from row to row of out and residual.
    """
    let_next_start(PDL)
    tile_m, tile_n = tl.swizzle2d(tl.program_id(2), tl.program_id(0), tl.num_programs(2), tl.num_programs(0), GROUP_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    inside_n, inside_m = n < N, m < M
    first = tl.program_id(1) * chunk * BLOCK_K
    end = min(first + chunk * BLOCK_K, K)
    weights = weight_ptr + n.to(tl.int64)[:, None] * K
    up_weights = weight_ptr + (N + n).to(tl.int64)[:, None] * K
    if PDL:
        for start in range(first, min(first + ahead * BLOCK_K, end), 128):
            prefetch(weight_ptr + tl.minimum(n, N - 1).to(tl.int64) * K + start)
    block, up_block = n, n
    if block_ptr is not None:
        block = tl.load(block_ptr + n, mask=inside_n, other=0)
        if GATED:
            up_block = tl.load(block_ptr + N + n, mask=inside_n, other=0)
    wait_for_previous(PDL)
    x = x_ptr + m.to(tl.int64)[None, :] * K
    if weight_ptr.dtype.element_ty == tl.int8:
        sums = tl.zeros((BLOCK_N, BLOCK_M), tl.int32)
    else:
        sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    ups, x_scale = sums, tl.zeros((BLOCK_M,), tl.float32)
    for start in range(first, end, BLOCK_K):
        weight = _tile(weights, start + k[None, :], inside_n[:, None], K, EVEN_K)
        v = _tile(x, start + k[:, None], inside_m[None, :], K, EVEN_K)
        if block_ptr is not None:
            x_scale = tl.load(x_scale_ptr + (start // 128) * M + m, mask=inside_m, other=0.0)
        sums = _summed(sums, weight, v, scale_ptr, x_scale, block, inside_n, start, K, block_ptr is not None)
        if GATED:
            up = _tile(up_weights, start + k[None, :], inside_n[:, None], K, EVEN_K)
            ups = _summed(ups, up, v, scale_ptr, x_scale, up_block, inside_n, start, K, block_ptr is not None)

    finish_tile(
        sums, ups, n, m, inside_n, inside_m[None, :] & inside_n[:, None],
        tl.program_id(2) * tl.num_programs(0) + tl.program_id(0), partial_ptr, arrived_ptr,
        scale_ptr if block_ptr is None else None, x_scale_ptr, bias_ptr, residual_ptr, out_ptr, M, N, stride,
        ACTIVATION, GATED,
    )  # fmt: skip


def eight_bit_product(
    x: Rounded, weights: EightBitWeights, dtype: torch.dtype, launch: TileLaunch, **around: Unpack[Around]
) -> Tensor:
    """See `multiply`. Returns [M, N] in dtype.

    x: [M, K] of the weights' type, its scales one per row, or per 128 where the weights have blocks; then a launch has
    at most 128 columns.
    """
    k, kind = x.values.shape[1], x.values.dtype
    assert weights.values.shape[1] == k and weights.values.is_contiguous() and kind == weights.values.dtype
    assert weights.block_of_row is None or launch.columns <= BLOCK
    more = {
        "ahead": launch.ahead, "EVEN_K": k % launch.columns == 0, "BLOCK_K": launch.columns,
        "maxnreg": most_registers(launch, kind),
    }  # fmt: skip
    return multiply(
        eight_bit_kernel, (*x, *weights), x.values, weights.rows, dtype, launch, more,
        torch.int32 if kind == torch.int8 else torch.float32, **around,
    )  # fmt: skip


def most_registers(launch: TileLaunch, kind: torch.dtype) -> int | None:
    """Per thread, for a prompt's tiles of integers: as many as let two programs share a multiprocessor.

    Their loop needs no more. But the sum onto the residual stream behind it would take 170, and a program alone on its
    multiprocessor multiplies at 0.6 times the speed (14,336 x 4,096 with 8,192 rows on an H200: 1,216 µs, not 702).
    """
    return 128 if kind == torch.int8 and launch.tokens == launch.rows == 128 and launch.warps == 8 else None


def library_product(x: Rounded, weights: EightBitWeights, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """Compute the product with torch's own kernels on a GPU: e4m3 without blocks into bfloat16, or integers.

    K and N must be multiples of 16, and rows of integers more than 16.
    """
    if weights.values.dtype == torch.int8:
        sums = torch._int_mm(x.values, weights.values.t())
        out = (sums * (x.scales.t() * weights.scales)).to(dtype)
        return out if bias is None else out.add_(bias)
    return torch._scaled_mm(
        x.values, weights.values.t(), x.scales.t(), weights.scales.unsqueeze(0), bias=bias, out_dtype=dtype,
        use_fast_accum=False,
    )  # fmt: skip
