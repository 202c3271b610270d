"""Two to 32 rows through a matrix, with weights prefetched into shared memory before the rows are ready.

Idea: `few_rows.py` multiplies on the matrix units, but has no more weights under way than registers hold.
`streamed_gemv.py` streams a slice of the outputs through shared memory, but multiplies outside of the matrix units.
This is the product of the one on the stream of the other. A program owns a slice of the outputs and passes through it
in groups of a tile's height. It asks for a ring of tiles before it waits for the launch before it.

- *K is split over a program's warps*: each has a tile's columns of its own, and adds up a product of its own.
- *With a norm, x stays in registers* for all groups, normalized, in the order in which the matrix units read it.
  RMSNorm's factor is put off to the end, as in `gemv.py`.
- *Without one, x is streamed with the weights*, tile by tile, once the wait is over: a down projection's rows are long,
  and registers are few if the next launch is to fit on the same multiprocessor.
- *A lane reads 16 bytes of a row at once*, eight columns of two products. Two rows that are read together lie in
  different banks: every second row of a tile has its halves exchanged.
- *The warps' sums meet in shared memory group by group*, while the tiles of the next groups are on their way.

g x is rounded to x's dtype before the product, as the result of a norm in a launch of its own is. Sums are float32.
Bytes: N K of weights, once; x (M K) comes from the cache, once per program, or without a norm once per group. Layout:
as in `streamed_gemv.py`, x [M, K].
"""

from typing import Unpack

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.linear.epilogue import Fusions, Operands, finish, vector
from gradus.kernels.linear.launches import MOST_STREAMED_ROWS, WARP_COLUMNS, StreamedLaunch
from gradus.kernels.linear.launches import VECTOR as VALUES_AT_ONCE
from gradus.kernels.linear.layouts import by_output, indices, normed, products, scale_of, shared
from gradus.kernels.linear.streamed_gemv import slices_on

VECTOR = constexpr(VALUES_AT_ONCE)
COLUMNS_OF_WARP = constexpr(WARP_COLUMNS)

# -- layouts of tensors [warps, …, …], one slice of K per warp -----------------------------------------------


@gluon.constexpr_function
def copies(warps: int) -> gl.BlockedLayout:
    """[warps, outputs, COLUMNS_OF_WARP]: one copy of 16 bytes in a lane, eight lanes on an output."""
    return gl.BlockedLayout([1, 1, VECTOR.value], [1, 4, 8], [warps, 1, 1], [2, 1, 0])


@gluon.constexpr_function
def halves() -> gl.SwizzledSharedLayout:
    """Lay them out in shared memory: every second output has its halves exchanged."""
    return gl.SwizzledSharedLayout(COLUMNS_OF_WARP.value // 2, 1, 2, [2, 1, 0])


@gluon.constexpr_function
def weight_side(warps: int) -> gl.DotOperandLayout:
    """[warps, outputs, COLUMNS_OF_WARP]: eight columns of an output in a lane."""
    return gl.DotOperandLayout(0, products(warps), VECTOR.value)


@gluon.constexpr_function
def x_side(warps: int) -> gl.DotOperandLayout:
    """[warps, COLUMNS_OF_WARP, rows]: eight columns of a row in a lane."""
    return gl.DotOperandLayout(1, products(warps), VECTOR.value)


# -- the kernel --------------------------------------------------------------------------------------------------------


@gluon.jit
def streamed_rows_kernel(
    x_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, gain_ptr: tensor, out_ptr: tensor,
    M: int, N: int, eps: float,
    K: constexpr, ACTIVATION: constexpr, MATRICES: constexpr, ROWS: constexpr, OUTPUTS: constexpr, COLUMNS: constexpr,
    WARPS: constexpr, GROUPS: constexpr, STAGES: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """The outputs of slice program_id(0), of M rows. Pointers may be None: that part is then not compiled.

    MATRICES: 2 with a gate. GROUPS: of OUTPUTS, that cover the longest slice. STAGES: tiles in shared memory, of so
    many outputs (of each matrix) and COLUMNS columns.
    """
    PARTS: constexpr = COLUMNS // (WARPS * COLUMNS_OF_WARP)  # of a tile
    STEPS: constexpr = (K + COLUMNS - 1) // COLUMNS  # tiles of a group
    LAST: constexpr = by_output(WARPS)
    let_next_start(PDL)
    first = gl.program_id(0) * N // gl.num_programs(0)
    outputs = (gl.program_id(0) + 1) * N // gl.num_programs(0) - first
    weights = weight_ptr + first.to(gl.int64) * K
    up_weights = weight_ptr + (first.to(gl.int64) + N) * K
    tiles: tensor = ()
    shape: constexpr = [STAGES, WARPS, OUTPUTS, COLUMNS_OF_WARP]
    for _ in gl.static_range(PARTS * MATRICES):
        tiles += (gl.allocate_shared_memory(weight_ptr.dtype.element_ty, shape, halves()),)
    for step in range(STAGES):
        first_row = step // STEPS * OUTPUTS
        _copy(tiles, weights, up_weights, step, first_row, outputs, K, MATRICES, OUTPUTS, WARPS, PARTS, STEPS, STAGES)
        async_copy.commit_group()
    gain = _row(gain_ptr, 1, K, 1, WARPS, PARTS * STEPS) if gain_ptr is not None else ()
    wait_for_previous(PDL)  # weights are on their way; x and the residual are the previous kernel's
    x: tensor = ()
    scale = 1.0
    if gain_ptr is not None:
        x, squares = normed(_row(x_ptr, M, K, ROWS, WARPS, PARTS * STEPS), gain, x_ptr.dtype.element_ty)
        scale = scale_of(squares, eps, K, LAST)
    else:
        x = _streamed_rows(x_ptr, M, K, ROWS, WARPS, PARTS, STEPS, STAGES)
    row = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(0, LAST)))
    for group in range(GROUPS):
        output = group * OUTPUTS + gl.arange(0, OUTPUTS, gl.SliceLayout(1, gl.SliceLayout(0, LAST)))
        mine = output < outputs
        output += first
        here = row[None, :] * N + output[:, None]
        inside = (row < M)[None, :] & mine[:, None]
        bias = vector(bias_ptr, output, mine)
        up_bias = vector(bias_ptr, N + output, mine) if MATRICES == 2 else bias
        onto = vector(residual_ptr, here, inside)
        sums, ups = _multiply(
            tiles, x, x_ptr, weights, up_weights, M, group, outputs,
            K, MATRICES, ROWS, OUTPUTS, WARPS, PARTS, STEPS, GROUPS, STAGES, gain_ptr is None,
        )  # fmt: skip
        parts = shared((sums,))
        up_parts = shared((ups,)) if MATRICES == 2 else parts
        out = gl.sum(parts.load(LAST), 0) * scale
        up = gl.sum(up_parts.load(LAST), 0) * scale if MATRICES == 2 else out
        finish(out, up, bias[:, None], up_bias[:, None], onto, out_ptr + here, inside, ACTIVATION, MATRICES == 2)


@gluon.jit
def _copy(
    tiles: tensor, weights: tensor, up_weights: tensor, step: tensor, first: tensor, rows: tensor,
    K: constexpr, MATRICES: constexpr, ROWS: constexpr, WARPS: constexpr, PARTS: constexpr, STEPS: constexpr,
    STAGES: constexpr,
) -> None:  # fmt: skip
    """Request that step's tile, of weights from row `first` on, or of x; zeros beyond `rows` and beyond K.

    Each part has its own allocation: after a write to one, even to another tile, the compiler would make all threads
    wait before a second write.
    """
    HERE: constexpr = copies(WARPS)
    row = first + indices(ROWS, 1, HERE)
    for part in gl.static_range(PARTS):
        warp = (step % STEPS * PARTS + part) * WARPS + indices(WARPS, 0, HERE)
        column = warp * COLUMNS_OF_WARP + indices(COLUMNS_OF_WARP, 2, HERE)
        inside = (row < rows) & (column < K)
        at = row * K + column
        for matrix in gl.static_range(MATRICES):
            async_copy.async_copy_global_to_shared(
                tiles[part * MATRICES + matrix].index(step % STAGES),
                (weights if matrix == 0 else up_weights) + at,
                inside,
            )


@gluon.jit
def _streamed_rows(
    x_ptr: tensor, M: int,
    K: constexpr, ROWS: constexpr, WARPS: constexpr, PARTS: constexpr, STEPS: constexpr, STAGES: constexpr,
) -> tensor:  # fmt: skip
    """Allocate the ring of x's tiles, and request the first ones."""
    x: tensor = ()
    shape: constexpr = [STAGES, WARPS, ROWS, COLUMNS_OF_WARP]
    for _ in gl.static_range(PARTS):
        x += (gl.allocate_shared_memory(x_ptr.dtype.element_ty, shape, halves()),)
    for step in range(STAGES):
        _copy(x, x_ptr, x_ptr, step, 0, M, K, 1, ROWS, WARPS, PARTS, STEPS, STAGES)
        async_copy.commit_group()
    return x


@gluon.jit
def _multiply(
    tiles: tensor, x: tensor, x_ptr: tensor, weights: tensor, up_weights: tensor, M: int, group: tensor,
    outputs: tensor,
    K: constexpr, MATRICES: constexpr, ROWS: constexpr, OUTPUTS: constexpr, WARPS: constexpr, PARTS: constexpr,
    STEPS: constexpr, GROUPS: constexpr, STAGES: constexpr, STREAMED: constexpr,
) -> tensor:  # fmt: skip
    """A group's sums, and up's, [WARPS, OUTPUTS, ROWS] each. STREAMED: x is, else it is in registers."""
    sums = gl.full([WARPS, OUTPUTS, ROWS], 0.0, gl.float32, products(WARPS))
    ups = sums
    if STREAMED:
        for i in range(STEPS):
            step = group * STEPS + i
            async_copy.wait_group(STAGES - 1)  # groups requested after it
            rows: tensor = ()
            for part in gl.static_range(PARTS):
                rows += (x[part].index(step % STAGES).permute((0, 2, 1)).load(x_side(WARPS)),)
            sums, ups = _added(sums, ups, tiles, rows, step % STAGES, MATRICES, WARPS, PARTS)
            if GROUPS * STEPS > STAGES:  # noqa: SIM102  # Triton 3.6 fails at an `if` that never holds
                if step + STAGES < GROUPS * STEPS:
                    _copy(
                        tiles, weights, up_weights, step + STAGES, (step + STAGES) // STEPS * OUTPUTS, outputs,
                        K, MATRICES, OUTPUTS, WARPS, PARTS, STEPS, STAGES,
                    )  # fmt: skip
                    _copy(x, x_ptr, x_ptr, step + STAGES, 0, M, K, 1, ROWS, WARPS, PARTS, STEPS, STAGES)
            async_copy.commit_group()  # of nothing, at the end: so that the count is right
    else:
        for i in gl.static_range(STEPS):
            step = group * STEPS + i
            async_copy.wait_group(STAGES - 1)
            rows = x[i * PARTS : (i + 1) * PARTS]
            sums, ups = _added(sums, ups, tiles, rows, step % STAGES, MATRICES, WARPS, PARTS)
            if i + STAGES < GROUPS * STEPS:  # noqa: SIM102  # where no group asks for more, nothing is compiled
                if step + STAGES < GROUPS * STEPS:
                    _copy(
                        tiles, weights, up_weights, step + STAGES, (step + STAGES) // STEPS * OUTPUTS, outputs,
                        K, MATRICES, OUTPUTS, WARPS, PARTS, STEPS, STAGES,
                    )  # fmt: skip
            async_copy.commit_group()
    return sums, ups


@gluon.jit
def _added(
    sums: tensor, ups: tensor, tiles: tensor, rows: tensor, place: tensor,
    MATRICES: constexpr, WARPS: constexpr, PARTS: constexpr,
) -> tensor:  # fmt: skip
    """Sums with the products of the tile in that place added, by a tile's parts of the rows."""
    for part in gl.static_range(PARTS):
        weight = tiles[part * MATRICES].index(place).load(weight_side(WARPS))
        sums = mma_v2(weight, rows[part], sums)
        if MATRICES == 2:
            up = tiles[part * MATRICES + 1].index(place).load(weight_side(WARPS))
            ups = mma_v2(up, rows[part], ups)
    return sums, ups


@gluon.jit
def _row(pointer: tensor, M: int, K: constexpr, ROWS: constexpr, WARPS: constexpr, COUNT: constexpr) -> tensor:
    """Rows' columns where each thread needs them: COUNT parts, [WARPS, COLUMNS_OF_WARP, ROWS] each."""
    SIDE: constexpr = x_side(WARPS)
    row = indices(ROWS, 2, SIDE)
    parts: tensor = ()
    for part in gl.static_range(COUNT):
        column = (part * WARPS + indices(WARPS, 0, SIDE)) * COLUMNS_OF_WARP + indices(COLUMNS_OF_WARP, 1, SIDE)
        parts += (gl.load(pointer + (row * K + column), mask=(row < M) & (column < K), other=0.0),)
    return parts


def streamed_rows(x: Tensor, weight: Tensor, launch: StreamedLaunch, **fusions: Unpack[Fusions]) -> Tensor:
    """Compute what `few_rows` does. K must be a multiple of 8; x and the matrix must be 16-byte aligned."""
    given, early = Operands.of(x, weight, MOST_STREAMED_ROWS, **fusions), starts_early()
    assert given.inner % VECTOR.value == 0 and weight.element_size() == 2
    assert weight.data_ptr() % 16 == 0 and x.data_ptr() % 16 == 0
    assert given.shift is None, "a LayerNorm needs the mean of all columns first"
    together = max(8, triton.next_power_of_2(given.rows))
    normed = fusions.get("norm") is not None
    slices = slices_on(x.device, launch, given.outputs, given.inner, given.gated, together, normed)
    streamed_rows_kernel[(slices.programs,)](
        *given.tensors, given.out, given.rows, given.outputs, given.eps,
        given.inner, given.activation, 2 if given.gated else 1, together, launch.outputs, launch.columns, launch.warps,
        slices.groups, slices.stages, early,
        num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return given.out
