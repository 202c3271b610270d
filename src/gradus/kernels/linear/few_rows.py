"""Two to sixteen rows through a matrix, on the matrix units, with the norm, the activation and the residual sum.

Idea: a step that verifies a few drafts streams weights just as a step of one row does, but the arithmetic outside the
matrix units grows with every row (`gemv.py`). Here the product is turned around, out' = W x': sixteen outputs are the
high side of a matrix unit's tile and eight rows its narrow side, so that eight rows cost what two do; sixteen are two
such tiles, which share the weights in their registers.

A program must be short between its wait for the previous launch and its end:

- *K is split over a program's warps*, DEPTH columns each in turn, and every warp adds up a product of its own.
- *Values go from memory straight into the registers that the matrix units read*, weights before the wait, x after it:
  no shared memory, no barrier. In Triton itself both would pass through shared memory, since there `tl.dot` chooses
  where its operands lie; so this is written in Gluon, Triton's lower level, where a layout is part of a type.
- *A warp normalizes its own columns of x*, in the registers where it multiplies them. RMSNorm's factor is put off to
  the end, as in `gemv.py`.
- *One exchange through shared memory*, of sums and squares together, behind one barrier.
- *Several sums in turn*, SUMS of them: a product waits for the sum that it adds to, for longer than it takes to issue.

g x is rounded to x's dtype before the product, as the result of a norm in a launch of its own is. Sums are float32.

Bytes: N K of weights, once; x (M K) comes from the cache. Layout: weight [N, K] row-major, x [M, K], out [M, N].
"""

from typing import Unpack

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.linear.epilogue import Fusions, Operands, finish, vector
from gradus.kernels.linear.launches import DEPTH, MOST_ROWS, FewRowsLaunch
from gradus.kernels.linear.layouts import by_output, indices, products, scale_of, shared

COLUMNS = constexpr(DEPTH)

# -- layouts of tensors [warps, …, …], one slice of K per warp -----------------------------------------------


@gluon.constexpr_function
def weight_side(warps: int) -> gl.DotOperandLayout:
    """Lay out weights, [warps, outputs, COLUMNS]: a thread has four columns of an output, one load of 8 bytes."""
    return gl.DotOperandLayout(0, products(warps), 4)


@gluon.constexpr_function
def x_side(warps: int) -> gl.DotOperandLayout:
    """Lay out x, [warps, COLUMNS, ROWS]: a thread has four columns of a row."""
    return gl.DotOperandLayout(1, products(warps), 4)


# -- the kernel --------------------------------------------------------------------------------------------------------


@gluon.jit
def few_rows_kernel(
    x_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, gain_ptr: tensor, out_ptr: tensor,
    M: int, N: int, eps: float,
    K: constexpr, ACTIVATION: constexpr, GATED: constexpr, ROWS: constexpr, BLOCK_N: constexpr, WARPS: constexpr,
    AHEAD: constexpr, SUMS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Outputs from program_id(0) * BLOCK_N on, of M rows of x. Pointers may be None: that part is then not compiled.

    AHEAD: tiles of weights in flight, each BLOCK_N outputs by COLUMNS of every warp.
    """
    LAST: constexpr = by_output(WARPS)
    OUT: constexpr = gl.SliceLayout(0, LAST)
    let_next_start(PDL)
    first = gl.program_id(0) * BLOCK_N
    weights = weight_ptr + first.to(gl.int64) * K
    up_weights = weight_ptr + (first.to(gl.int64) + N) * K
    tiles: tensor = ()
    for i in gl.static_range(AHEAD):
        tiles += (_tile(weights, up_weights, gain_ptr, N - first, i * COLUMNS * WARPS, K, GATED, BLOCK_N, WARPS),)
    row = gl.arange(0, ROWS, gl.SliceLayout(0, OUT))
    output = first + gl.arange(0, BLOCK_N, gl.SliceLayout(1, OUT))
    here = row[None, :] * N + output[:, None]
    inside = (row < M)[None, :] & (output < N)[:, None]
    bias = vector(bias_ptr, output, output < N)
    up_bias = vector(bias_ptr, N + output, output < N) if GATED else bias
    wait_for_previous(PDL)  # weights are on their way; x and the residual are the previous kernel's
    onto = vector(residual_ptr, here, inside)
    sums, ups, squares = _products(
        tiles, x_ptr, weights, up_weights, gain_ptr, M, N - first, K, GATED, ROWS, BLOCK_N, WARPS, AHEAD, SUMS
    )
    parts = shared(sums)
    up_parts = shared(ups) if GATED else parts
    scale = scale_of(squares, eps, K, LAST) if gain_ptr is not None else 1.0
    out = gl.sum(parts.load(LAST), 0) * scale
    up = gl.sum(up_parts.load(LAST), 0) * scale if GATED else out
    finish(out, up, bias[:, None], up_bias[:, None], onto, out_ptr + here, inside, ACTIVATION, GATED)


@gluon.jit
def _products(
    tiles: tensor, x_ptr: tensor, weights: tensor, up_weights: tensor, gain_ptr: tensor, M: int, outputs: int,
    K: constexpr, GATED: constexpr, ROWS: constexpr, BLOCK_N: constexpr, WARPS: constexpr, AHEAD: constexpr,
    SUMS: constexpr,
) -> tensor:  # fmt: skip
    """Sums of the matrix's outputs, and of up's, [WARPS, BLOCK_N, ROWS] each, SUMS of each; and of x's squares."""
    TILE: constexpr = COLUMNS * WARPS
    TILES: constexpr = (K + TILE - 1) // TILE
    rows: tensor = ()
    for i in gl.static_range(AHEAD):
        rows += (_rows(x_ptr, M, i * TILE, K, ROWS, WARPS),)
    sums: tensor = ()
    for _ in gl.static_range(SUMS):
        sums += (gl.full([WARPS, BLOCK_N, ROWS], 0.0, gl.float32, products(WARPS)),)
    ups = sums
    squares = gl.full([WARPS, COLUMNS, ROWS], 0.0, gl.float32, x_side(WARPS))
    for done in range(0, TILES, AHEAD):
        later: tensor = ()
        later_rows: tensor = ()
        for i in gl.static_range(AHEAD):
            x = rows[i]
            weight, up, gain = tiles[i]
            if gain_ptr is not None:
                wide = x.to(gl.float32)
                squares += wide * wide
                x = (wide * gain.to(gl.float32)).to(x.dtype)
            sums = _added(sums, i % SUMS, weight, x)
            if GATED:
                ups = _added(ups, i % SUMS, up, x)
            if TILES > AHEAD:  # into the registers that have just been read
                start = (done + AHEAD + i) * TILE
                tile = _tile(weights, up_weights, gain_ptr, outputs, start, K, GATED, BLOCK_N, WARPS)
                later += (tile,)
                later_rows += (_rows(x_ptr, M, start, K, ROWS, WARPS),)
        if TILES > AHEAD:
            tiles = later
            rows = later_rows
    return sums, ups, squares


@gluon.jit
def _tile(
    weights: tensor, up_weights: tensor, gain_ptr: tensor, outputs: int, start: int,
    K: constexpr, GATED: constexpr, BLOCK_N: constexpr, WARPS: constexpr,
) -> tensor:  # fmt: skip
    """COLUMNS columns from `start` on for every warp: of the matrix, of up's rows, and of the norm's gain."""
    SIDE: constexpr = weight_side(WARPS)
    output = indices(BLOCK_N, 1, SIDE)
    column = start + indices(WARPS, 0, SIDE) * COLUMNS + indices(COLUMNS, 2, SIDE)
    inside = (output < outputs) & (column < K)
    weight = gl.load(weights + (output * K + column), mask=inside, other=0.0, eviction_policy="evict_first")
    up = weight
    if GATED:
        up = gl.load(up_weights + (output * K + column), mask=inside, other=0.0, eviction_policy="evict_first")
    gain = weight
    if gain_ptr is not None:
        column = start + _columns_of_x(WARPS)
        gain = gl.load(gain_ptr + column, mask=column < K, other=0.0)
    return weight, up, gain


@gluon.jit
def _added(sums: tensor, AT: constexpr, weight: tensor, x: tensor) -> tensor:
    """The tuple of sums, with the product added to the one in that place."""
    return sums[:AT] + (mma_v2(weight, x, sums[AT]),) + sums[AT + 1 :]  # noqa: RUF005  # no starred tuples


@gluon.jit
def _rows(x_ptr: tensor, M: int, start: int, K: constexpr, ROWS: constexpr, WARPS: constexpr) -> tensor:
    """Load these columns of all rows of x, with zero rows up to ROWS."""
    row = indices(ROWS, 2, x_side(WARPS))
    column = start + _columns_of_x(WARPS)
    return gl.load(x_ptr + (row * K + column), mask=(row < M) & (column < K), other=0.0)


@gluon.jit
def _columns_of_x(WARPS: constexpr) -> tensor:
    SIDE: constexpr = x_side(WARPS)
    return indices(WARPS, 0, SIDE) * COLUMNS + indices(COLUMNS, 1, SIDE)


def few_rows(x: Tensor, weight: Tensor, launch: FewRowsLaunch, **fusions: Unpack[Fusions]) -> Tensor:
    """Multiply up to MOST_ROWS rows of 16-bit values, with an RMSNorm: see `Operands`. Returns [M, N].

    A row's result does not depend on the other rows.
    """
    given, early = Operands.of(x, weight, MOST_ROWS, **fusions), starts_early()
    assert given.shift is None, "a LayerNorm needs the mean of all columns first"
    ahead = min(launch.ahead, triton.cdiv(given.inner, DEPTH * launch.warps))
    few_rows_kernel[(triton.cdiv(given.outputs, launch.outputs),)](
        *given.tensors, given.out, given.rows, given.outputs, given.eps,
        given.inner, given.activation, given.gated, max(8, triton.next_power_of_2(given.rows)), launch.outputs,
        launch.warps, ahead, launch.sums, early,
        num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return given.out
