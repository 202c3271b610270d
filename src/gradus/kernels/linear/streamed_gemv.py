"""One row through a matrix, with weights prefetched into shared memory before the row is ready.

Idea: at one row per step, a layer of a small model is four products, each a stream of weights of a few microseconds,
and each waits for the one before it. Its weights need not. So there is one program per multiprocessor, which owns a
slice of the outputs. Before it waits for the launch before it, it asks for as much of its slice as its share of shared
memory holds: for a small model, all of it. The launch behind it does the same while this one is at work: a program
leaves room for the next one on its multiprocessor, and lets it start at once. Memory is then read without a pause
through all launches, and a launch waits for its row, not for its weights.

- *Copies go to shared memory asynchronously* (`cp.async`), as no registers could hold so much. A ring of tiles, one
  group of copies each: where a slice is larger than its share, a tile that has been multiplied makes room for another.
- *A thread multiplies what it copied itself*: eight lanes are side by side on a row, 128 bytes, and four on the next
  rows, so that a warp reads 512 bytes of shared memory without a conflict of banks.
- *x stays in registers*, normalized, for all rows of the slice. RMSNorm's factor is put off to the end, as in
  `gemv.py`.
- *One exchange through shared memory*, of all sums of the slice and of the squares.

Products and sums are float32. Slices are balanced: they differ by one output. Bytes: N K of weights, once; x (K) and
the vectors come from the cache. Layout: weight [N, K] row-major, K a multiple of 8, x [1, K], out [1, N].
"""

from functools import cache
from typing import Unpack

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language import constexpr, tensor

from gradus.device.capability import capability, multiprocessors
from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.linear.epilogue import Fusions, Operands, finish, vector
from gradus.kernels.linear.launches import LANES as LANES_SIDE_BY_SIDE
from gradus.kernels.linear.launches import VECTOR as VALUES_AT_ONCE
from gradus.kernels.linear.launches import Slices, StreamedLaunch
from gradus.kernels.linear.layouts import indices, normed, one_by_one

LANES = constexpr(LANES_SIDE_BY_SIDE)
VECTOR = constexpr(VALUES_AT_ONCE)

# -- layouts of tiles [ROWS, column warps, LANES, VECTOR] ----------------------------------------------------


@gluon.constexpr_function
def places(row_warps: int, column_warps: int) -> gl.BlockedLayout:
    """One load of 16 bytes is one row's in a thread."""
    return gl.BlockedLayout(
        [1, 1, 1, VECTOR.value], [32 // LANES.value, 1, LANES.value, 1], [row_warps, column_warps, 1, 1], [3, 2, 1, 0]
    )


@gluon.constexpr_function
def by_output(warps: int, column_warps: int) -> gl.BlockedLayout:
    """[outputs, column warps]: all sums of an output in one thread."""
    return gl.BlockedLayout([1, column_warps], [32, 1], [warps, 1], [1, 0])


# -- the kernel --------------------------------------------------------------------------------------------------------


@gluon.jit
def streamed_gemv_kernel(
    x_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, gain_ptr: tensor, out_ptr: tensor,
    N: int, eps: float,
    K: constexpr, ACTIVATION: constexpr, MATRICES: constexpr, ROWS: constexpr, COLUMNS: constexpr,
    ROW_WARPS: constexpr, COLUMN_WARPS: constexpr, GROUPS: constexpr, PLACES: constexpr, STAGES: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    """The outputs of slice program_id(0). Pointers may be None: that part is then not compiled.

    MATRICES: 2 with a gate. GROUPS: of ROWS outputs, that cover the longest slice; PLACES: the next power of two.
    STAGES: tiles in shared memory, of ROWS outputs (of each matrix) and COLUMNS columns.
    """
    PARTS: constexpr = COLUMNS // (COLUMN_WARPS * LANES * VECTOR)  # per tile: a thread has one load per row of each
    STEPS: constexpr = (K + COLUMNS - 1) // COLUMNS  # tiles of a group
    LAST: constexpr = by_output(ROW_WARPS * COLUMN_WARPS, COLUMN_WARPS)
    let_next_start(PDL)
    first = gl.program_id(0) * N // gl.num_programs(0)
    outputs = (gl.program_id(0) + 1) * N // gl.num_programs(0) - first
    weights = weight_ptr + first.to(gl.int64) * K
    up_weights = weight_ptr + (first.to(gl.int64) + N) * K
    tiles: tensor = ()
    shape: constexpr = [STAGES, ROWS, COLUMN_WARPS, LANES, VECTOR]
    for _ in gl.static_range(PARTS * MATRICES):
        tiles += (gl.allocate_shared_memory(weight_ptr.dtype.element_ty, shape, one_by_one(4)),)
    for step in range(STAGES):
        _copy(
            tiles, weights, up_weights, step, outputs, K, MATRICES, ROWS, ROW_WARPS, COLUMN_WARPS, PARTS, STEPS, STAGES
        )
        async_copy.commit_group()
    output = gl.arange(0, PLACES * ROWS, gl.SliceLayout(1, LAST))
    inside = output < outputs
    output += first
    bias = vector(bias_ptr, output, inside)
    up_bias = vector(bias_ptr, N + output, inside) if MATRICES == 2 else bias
    gain = row_in_parts(gain_ptr, K, ROW_WARPS, COLUMN_WARPS, PARTS * STEPS) if gain_ptr is not None else ()
    wait_for_previous(PDL)  # weights are on their way; x and the residual are the previous kernel's
    x = row_in_parts(x_ptr, K, ROW_WARPS, COLUMN_WARPS, PARTS * STEPS)
    onto = vector(residual_ptr, output, inside)
    squares = gl.allocate_shared_memory(gl.float32, [COLUMN_WARPS], one_by_one(1))
    if gain_ptr is not None:
        x, square = normed(x, gain, gl.float32)
        squares.store(gl.sum(gl.sum(gl.sum(square, 3), 2), 0))
    sums = gl.allocate_shared_memory(gl.float32, [MATRICES * PLACES, ROWS, COLUMN_WARPS], one_by_one(2))
    for group in range(GROUPS):
        _multiply(
            sums, tiles, x, weights, up_weights, group, outputs,
            K, MATRICES, ROWS, ROW_WARPS, COLUMN_WARPS, PARTS, STEPS, GROUPS, PLACES, STAGES,
        )  # fmt: skip
    scale = 1.0
    if gain_ptr is not None:
        scale = gl.rsqrt(gl.sum(squares.load(gl.SliceLayout(0, LAST)), 0) / K + eps)
    of_slice = sums._reinterpret(gl.float32, [MATRICES, PLACES * ROWS, COLUMN_WARPS], one_by_one(2))
    out = gl.sum(of_slice.index(0).load(LAST), 1) * scale
    up = gl.sum(of_slice.index(1).load(LAST), 1) * scale if MATRICES == 2 else out
    finish(out, up, bias, up_bias, onto, out_ptr + output, inside, ACTIVATION, MATRICES == 2)


@gluon.jit
def _copy(
    tiles: tensor, weights: tensor, up_weights: tensor, step: tensor, outputs: tensor,
    K: constexpr, MATRICES: constexpr, ROWS: constexpr, ROW_WARPS: constexpr, COLUMN_WARPS: constexpr,
    PARTS: constexpr, STEPS: constexpr, STAGES: constexpr,
) -> None:  # fmt: skip
    """Request that step's tile; zeros beyond the slice and beyond K.

    Each part has its own allocation: after a write to one, even to another tile, the compiler would make all threads
    wait before a second write.
    """
    HERE: constexpr = places(ROW_WARPS, COLUMN_WARPS)
    row = step // STEPS * ROWS + indices(ROWS, 0, HERE, 4)
    for part in gl.static_range(PARTS):
        warp = (step % STEPS * PARTS + part) * COLUMN_WARPS + indices(COLUMN_WARPS, 1, HERE, 4)
        column = (warp * LANES + indices(LANES, 2, HERE, 4)) * VECTOR
        inside = (row < outputs) & (column < K)
        at = row * K + (column + indices(VECTOR, 3, HERE, 4))
        for matrix in gl.static_range(MATRICES):
            async_copy.async_copy_global_to_shared(
                tiles[part * MATRICES + matrix].index(step % STAGES),
                (weights if matrix == 0 else up_weights) + at,
                inside,
            )


@gluon.jit
def _multiply(
    sums: gl.shared_memory_descriptor, tiles: tensor, x: tensor, weights: tensor, up_weights: tensor, group: tensor,
    outputs: tensor,
    K: constexpr, MATRICES: constexpr, ROWS: constexpr, ROW_WARPS: constexpr, COLUMN_WARPS: constexpr,
    PARTS: constexpr, STEPS: constexpr, GROUPS: constexpr, PLACES: constexpr, STAGES: constexpr,
) -> None:  # fmt: skip
    """Multiply a group's tiles by x, and sum for each of the warps that share columns."""
    HERE: constexpr = places(ROW_WARPS, COLUMN_WARPS)
    gates = gl.full([ROWS, COLUMN_WARPS, LANES, VECTOR], 0.0, gl.float32, HERE)
    ups = gates
    for i in gl.static_range(STEPS):
        step = group * STEPS + i
        async_copy.wait_group(STAGES - 1)  # groups requested after it
        for part in gl.static_range(PARTS):
            wide = x[i * PARTS + part].to(gl.float32)
            gates += tiles[part * MATRICES].index(step % STAGES).load(HERE).to(gl.float32) * wide
            if MATRICES == 2:
                ups += tiles[part * MATRICES + 1].index(step % STAGES).load(HERE).to(gl.float32) * wide
        if i + STAGES < GROUPS * STEPS:  # noqa: SIM102  # where no group asks for more, nothing is compiled
            if step + STAGES < GROUPS * STEPS:
                _copy(
                    tiles, weights, up_weights, step + STAGES, outputs,
                    K, MATRICES, ROWS, ROW_WARPS, COLUMN_WARPS, PARTS, STEPS, STAGES,
                )  # fmt: skip
        async_copy.commit_group()  # of nothing, at the end: so that the count is right
    sums.index(group).store(gl.sum(gl.sum(gates, 3), 2))
    if MATRICES == 2:
        sums.index(PLACES + group).store(gl.sum(gl.sum(ups, 3), 2))


@gluon.jit
def row_in_parts(pointer: tensor, K: constexpr, ROW_WARPS: constexpr, COLUMN_WARPS: constexpr, COUNT: constexpr) -> tensor:
    """Load a vector's columns where each thread needs them: COUNT parts, [1, COLUMN_WARPS, LANES, VECTOR] each."""
    HERE: constexpr = places(ROW_WARPS, COLUMN_WARPS)
    parts: tensor = ()
    for part in gl.static_range(COUNT):
        warp = part * COLUMN_WARPS + indices(COLUMN_WARPS, 1, HERE, 4)
        column = (warp * LANES + indices(LANES, 2, HERE, 4)) * VECTOR
        parts += (gl.load(pointer + (column + indices(VECTOR, 3, HERE, 4)), mask=column < K, other=0.0),)
    return parts


def streamed_gemv(x: Tensor, weight: Tensor, launch: StreamedLaunch, **fusions: Unpack[Fusions]) -> Tensor:
    """Multiply one row of 16-bit values, K a multiple of 8, with an RMSNorm: see `Operands`. Returns [1, N].

    The matrix begins at a multiple of 16 bytes.
    """
    given, early = Operands.of(x, weight, 1, **fusions), starts_early()
    assert given.inner % VECTOR.value == 0 and weight.element_size() == 2 and weight.data_ptr() % 16 == 0
    assert given.shift is None, "a LayerNorm needs the mean of all columns first"
    slices = slices_on(x.device, launch, given.outputs, given.inner, given.gated)
    streamed_gemv_kernel[(slices.programs,)](
        *given.tensors, given.out, given.outputs, given.eps,
        given.inner, given.activation, 2 if given.gated else 1, launch.outputs, launch.columns, launch.row_warps,
        launch.column_warps, slices.groups, triton.next_power_of_2(slices.groups), slices.stages, early,
        num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return given.out


@cache
def slices_on(
    device: torch.device, launch: StreamedLaunch, outputs: int, k: int, gated: bool, rows: int = 1, normed: bool = True
) -> Slices:
    """Divide outputs among a GPU's multiprocessors; a CPU, where Triton interprets, counts as two.

    Cached, because every layer of a step asks.
    """
    processors = 2 if device.type == "cpu" else multiprocessors(device)
    return launch.slices(outputs, k, gated, processors, capability(device).shared_memory, rows, normed)
