"""One row through a matrix (GEMV), or a few, with the norm before the product and the activation and sum after it.

Idea: at one row per step, a product is a stream of weights, each used once. Tensor cores have nothing to do. Speed
depends on the bytes in flight on every multiprocessor, and on the gap between one stream and the next. A program owns
BLOCK_N outputs, reads their rows of the matrix in 16-byte loads, multiplies in float32, and sums once, at the end. K is
split over a program's threads, so N alone gives enough programs and no second pass is needed.

A few rows (a small batch, or drafts to verify) share that stream: weights are read and widened once. Each row has its
own sums, in the order of a single row, and the registers for them grow with the rows.

RMSNorm costs nothing here, because it is linear except for one factor: W (x / rms(x) * g) = (W (g x)) / rms(x), and the
sum of x² is gathered on the way. A LayerNorm needs the mean first, so x must fit one tile. Every program recomputes the
norm, from a row that is in the cache: cheaper than a launch.

Bytes: N K of weights, once; x (M K) and the vectors are read from the cache. Layout: weight [N, K] row-major, x [M, K].
"""

from typing import Unpack

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.linear.epilogue import Fusions, Operands, finish, vector
from gradus.kernels.linear.launches import FEW_ROWS, GemvLaunch

UNROLLED = constexpr(4)  # up to this many tiles along K are requested together


@triton.jit
def gemv_kernel(
    x_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, gain_ptr: tensor, shift_ptr: tensor,
    out_ptr: tensor, M: int, N: int, eps: float,
    K: constexpr, ACTIVATION: constexpr, GATED: constexpr, ROWS: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    """Outputs from program_id(0) * BLOCK_N on, of M rows of x, ROWS at most, each as if it were alone. Pointers may be
    None: that part is then not compiled.
    """
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_n = row < N
    weights = weight_ptr + row.to(tl.int64)[:, None] * K
    up_weights = weight_ptr + (row + N).to(tl.int64)[:, None] * K
    column = tl.arange(0, BLOCK_K)
    sums = _times(tl.zeros((BLOCK_N, BLOCK_K), tl.float32), ROWS)
    ups = sums
    squares = _times(tl.zeros((BLOCK_K,), tl.float32), ROWS)
    let_next_start(PDL)
    ahead: tensor = ()
    for start in tl.static_range(0, K if K <= UNROLLED * BLOCK_K else BLOCK_K, BLOCK_K):
        ahead = ahead + (_tiles(weights, up_weights, start + column, inside_n, K, GATED),)  # noqa: RUF005
    wait_for_previous(PDL)  # weights are on their way; x and the residual are the previous kernel's
    onto: tensor = ()
    for m in tl.static_range(ROWS):
        onto = onto + (vector(residual_ptr, m * N + row, inside_n & (m < M)),)  # noqa: RUF005  # no starred tuples
    if K <= UNROLLED * BLOCK_K:
        for start in tl.static_range(0, K, BLOCK_K):
            sums, ups, squares = _multiplied(
                sums, ups, squares, ahead[start // BLOCK_K], x_ptr, gain_ptr, shift_ptr, M, start + column, eps,
                K, GATED, ROWS,
            )  # fmt: skip
    else:
        tiles = ahead[0]
        for start in range(0, K, BLOCK_K):
            next_tiles = tiles
            if start + BLOCK_K < K:  # the next tile's loads are under way before this one's are used
                next_tiles = _tiles(weights, up_weights, start + BLOCK_K + column, inside_n, K, GATED)
            sums, ups, squares = _multiplied(
                sums, ups, squares, tiles, x_ptr, gain_ptr, shift_ptr, M, start + column, eps, K, GATED, ROWS
            )
            tiles = next_tiles

    for m in tl.static_range(ROWS):
        scale = 1.0
        if gain_ptr is not None and shift_ptr is None:
            scale = tl.rsqrt(tl.sum(squares[m], 0) / K + eps)
        bias = vector(bias_ptr, row, inside_n)
        up, up_bias = bias, bias
        if GATED:
            up, up_bias = tl.sum(ups[m], 1) * scale, vector(bias_ptr, N + row, inside_n)
        out, inside = out_ptr + m * N + row, inside_n & (m < M)
        finish(tl.sum(sums[m], 1) * scale, up, bias, up_bias, onto[m], out, inside, ACTIVATION, GATED)


@triton.jit
def _times(value: tensor, COUNT: constexpr) -> tensor:
    """(value, value, …)"""
    values: tensor = ()
    for _ in tl.static_range(COUNT):
        values = values + (value,)  # noqa: RUF005  # Triton has no starred tuples
    return values


@triton.jit
def _set(values: tensor, AT: constexpr, value: tensor) -> tensor:
    """Replace one value of the tuple."""
    return values[:AT] + (value,) + values[AT + 1 :]  # noqa: RUF005


@triton.jit
def _tiles(
    weights: tensor, up_weights: tensor, column: tensor, inside: tensor, K: constexpr, GATED: constexpr
) -> tensor:  # fmt: skip
    """Load columns of some matrix rows, which no program reads again; with a gate, also of up's rows."""
    inside = inside[:, None] & (column < K)[None, :]
    weight = tl.load(weights + column[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
    up = weight
    if GATED:
        up = tl.load(up_weights + column[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
    return weight, up


@triton.jit
def _multiplied(
    sums: tensor, ups: tensor, squares: tensor, tiles: tensor, x_ptr: tensor, gain_ptr: tensor, shift_ptr: tensor,
    M: int, column: tensor, eps: float, K: constexpr, GATED: constexpr, ROWS: constexpr,
) -> tensor:  # fmt: skip
    """Add each row's columns times these tiles to its sums."""
    weight, up = tiles[0].to(tl.float32), tiles[1].to(tl.float32)
    for m in tl.static_range(ROWS):
        x, square = _normed(x_ptr + m * K, gain_ptr, shift_ptr, m < M, column, squares[m], eps, K)
        squares = _set(squares, m, square)
        sums = _set(sums, m, sums[m] + weight * x[None, :])
        if GATED:
            ups = _set(ups, m, ups[m] + up * x[None, :])
    return sums, ups, squares


@triton.jit
def _normed(
    x_ptr: tensor, gain_ptr: tensor, shift_ptr: tensor, there: tensor, column: tensor, squares: tensor, eps: float,
    K: constexpr,
) -> tensor:  # fmt: skip
    """Load these columns of a row, if it is `there`, and normalize them, except for an RMSNorm's factor.

    They add their squares to `squares`, which give that factor.
    """
    inside = column < K
    x = tl.load(x_ptr + column, mask=inside & there, other=0.0).to(tl.float32)
    if gain_ptr is not None:
        gain = tl.load(gain_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if shift_ptr is not None:  # LayerNorm: K fits one tile, so this is the whole row
        shift = tl.load(shift_ptr + column, mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, x - tl.sum(x, 0) / K, 0.0)
        x *= tl.rsqrt(tl.sum(x * x, 0) / K + eps)
    elif gain_ptr is not None:
        squares += x * x
    if gain_ptr is not None:
        x *= gain
    if shift_ptr is not None:
        x += shift
    return x, squares


def gemv(x: Tensor, weight: Tensor, launch: GemvLaunch, **fusions: Unpack[Fusions]) -> Tensor:
    """Multiply up to FEW_ROWS rows, of any dtype, with any norm: see `Operands`. Returns [M, N]."""
    given, early = Operands.of(x, weight, FEW_ROWS, **fusions), starts_early()
    columns = launch.columns if given.shift is None else triton.next_power_of_2(given.inner)
    gemv_kernel[(triton.cdiv(given.outputs, launch.rows),)](
        *given.tensors, given.shift, given.out, given.rows, given.outputs, given.eps,
        given.inner, given.activation, given.gated, triton.next_power_of_2(given.rows), launch.rows, columns,
        early, num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return given.out
