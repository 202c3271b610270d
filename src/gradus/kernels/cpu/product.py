"""Products of a few rows: some rows of a matrix, times 1 to 128 rows of activations.

Reading the weights is the cost, so each weight is read from memory once. In registers it is multiplied with up to 8
rows of activations. More rows take turns of 8, while the few weight rows that a thread works on stay in the cache.
After the whole eights, a turn of 1, 2 or 4 rows may follow: eight sequences, one with a draft to verify, take nine
rows, not sixteen. `activations.py` prepares the rows for each kind of matrix.

The torch reference is `forward` of the matrix's class. Sums are taken in another order; integer sums are equal.
"""

from typing import Any

import numpy as np
from numba import njit

from gradus.kernels.cpu.activations import in_panels
from gradus.kernels.cpu.byte_products import BY_ROW_PAIRS, HAS_PRODUCT, int8_tile, row_pairs_tile
from gradus.kernels.cpu.gguf.product import multiply_blocks
from gradus.kernels.cpu.int4.product import multiply_int4
from gradus.kernels.cpu.machine import FLAGS, address, bytes_at, floats, halves, widen
from gradus.kernels.cpu.matrix import BFLOAT16, BLOCKS, FLOAT32, INT8
from gradus.kernels.cpu.outer import PANEL, multiply_panels
from gradus.kernels.cpu.vectors import (
    AHEAD,
    BESIDE_AHEAD,
    FLOAT_STEP,
    INT8_STEP,
    KEEP,
    READ_ONCE,
    TOGETHER,
    float_tile,
)

BYTES_TOGETHER = 8 if BY_ROW_PAIRS else TOGETHER
"""TOGETHER for int8. On ARM a register holds the sums of two rows, so 8 rows of activations fit into its 32."""

BYTES_BESIDE = 4 if BY_ROW_PAIRS else 2
"""int8 weight rows that are multiplied with several rows of activations at once."""

FLOATS_TOGETHER = 8
"""TOGETHER for float weights. With AVX2 too: a second turn of 4 rows takes longer than the first, in which the
weights come from memory."""

BESIDE = 3 if TOGETHER == FLOATS_TOGETHER else 1
"""Float weight rows that are multiplied with FLOATS_TOGETHER rows at once: AVX2's registers hold the sums of one."""

FLOATS_AT_A_TIME = 33
"""Float weight rows that stay in the cache while more than FLOATS_TOGETHER rows of activations take turns: a multiple
of 3, because three of them are multiplied with 8 rows at once."""

INTEGERS_AT_A_TIME = 32
TURN_BYTES = 96 << 10
"""The same for int8 and int4: multiples of 32 rows, up to 96 KB of them, in the second cache. Each turn
takes a moment to begin and to end: with AVX2, four rows of activations make 90 GMAC/s with 32 weight rows of 576
columns in int4 at a time, and 108 with 128."""

STREAM_BYTES = 40 << 10
"""Most bytes of float activations that stay in the first cache. Up to there they are multiplied with one weight row at
a time, because a single stream of weights is read fastest."""

f32 = np.float32


@njit(**FLAGS)
def multiply(matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Multiply rows low to high of the matrix with the activations, into y[:count, first + low : first + high], with
    bias.

    count: from `padded`. rows: from `prepare`. y: float32 [128, N].
    """
    if matrix.kind >= BLOCKS:
        multiply_blocks(matrix.kind - BLOCKS, matrix, first, low, high, count, rows, y)
    else:
        turn = _at_a_time(matrix)
        most = FLOATS_TOGETHER if matrix.kind <= BFLOAT16 else BYTES_TOGETHER if matrix.kind == INT8 else TOGETHER
        packed = _multiply_many(matrix, first, low, high, count, rows, y)
        block = high - low if _together(count, most) == count else turn
        for start in range(low, high if packed < count else low, block):
            top = packed
            while top < count:
                some = _together(count - top, most)
                _multiply_together(matrix, first, start, min(start + block, high), top, some, rows, y)
                top += some
    if matrix.bias:
        bias = floats(matrix.bias, (matrix.rows,))
        for r in range(count):
            for i in range(low, high):
                y[r, first + i] += bias[i]


@njit(**FLAGS)
def _at_a_time(matrix: Any) -> int:
    """How many weight rows a turn takes."""
    if matrix.kind <= BFLOAT16:
        return FLOATS_AT_A_TIME
    rows = (TURN_BYTES if matrix.kind == INT8 else 2 * TURN_BYTES) // matrix.width
    return max(rows // INTEGERS_AT_A_TIME, 1) * INTEGERS_AT_A_TIME


@njit(**FLAGS)
def _together(count: int, most: int) -> int:
    """How many of `count` rows of activations take the next turn: 8, 4, 2 or 1."""
    if count >= most:
        return most
    return min(count, 4)


@njit(**FLAGS)
def _multiply_together(matrix: Any, first: int, low: int, high: int, top: int, count: int, rows: Any, y: Any) -> None:
    """Multiply with rows top to top + count of the activations."""
    if matrix.kind == FLOAT32:
        weights = floats(matrix.values, (matrix.rows, matrix.width))
        _multiply_floats(0, weights, matrix, first, low, high, top, count, rows.x, y)
    elif matrix.kind == BFLOAT16:
        narrow_weights = halves(matrix.values, (matrix.rows, matrix.width))
        _multiply_floats(1, narrow_weights, matrix, first, low, high, top, count, rows.x, y)
    elif matrix.kind == INT8:
        _multiply_int8(matrix, first, low, high, top, count, rows, y)
    else:
        multiply_int4(matrix, first, low, high, top, count, rows, y)


@njit(**FLAGS)
def _multiply_many(matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> int:
    """Multiply with as many of the `count` rows as whole panels hold. Returns how many."""
    taken = in_panels(matrix, count)
    if taken:
        _multiply_panels(matrix, first, low, high, taken, rows, y)
    return taken


@njit(**FLAGS)
def _multiply_panels(matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Multiply float weights with the first `count` rows of activations, which are packed."""
    width, number, out_stride = matrix.width, count // PANEL, 4 * y.shape[1]
    out = address(y) + 4 * (first + low)
    if matrix.kind == FLOAT32:
        at, stride = matrix.values + 4 * low * width, 4 * width
        multiply_panels(0, at, stride, width, high - low, rows.panels, number, out, out_stride)
    else:
        at, stride = matrix.values + 2 * low * width, 2 * width
        multiply_panels(1, at, stride, width, high - low, rows.panels, number, out, out_stride)


@njit(**FLAGS)
def _multiply_floats(
    halves: Any, weights: Any, matrix: Any, first: int, low: int, high: int, top: int, count: int, x: Any, y: Any
) -> None:
    """Multiply float weights. halves: literal, 1 for bfloat16; weights: the matrix, for plain loops."""
    width, x_stride, out_stride = matrix.width, 4 * x.shape[1], 4 * y.shape[1]
    stride = width * weights.itemsize
    ahead = min(stride, BESIDE_AHEAD)  # at most into the next group of rows, not past it
    stream = width % (4 * FLOAT_STEP) == 0 and (count == 1 or (count <= 4 and 4 * count * width <= STREAM_BYTES))
    i, several = low, 1 if stream or count == 1 else _beside(count)
    if width % FLOAT_STEP:
        _multiply_plainly(weights, first, low, high, top, count, x, y)
        i = high
    while i < high:
        at, xs = matrix.values + i * stride, address(x) + top * x_stride
        out, whole = address(y) + top * out_stride + 4 * (first + i), i + several <= high
        if stream and count == 1:
            float_tile(halves, 1, 1, 4, READ_ONCE, at, stride, width, AHEAD, xs, x_stride, out, out_stride)
        elif stream and count == 2:
            float_tile(halves, 1, 2, 4, READ_ONCE, at, stride, width, AHEAD, xs, x_stride, out, out_stride)
        elif stream:
            float_tile(halves, 1, 4, 4, READ_ONCE, at, stride, width, AHEAD, xs, x_stride, out, out_stride)
        elif count == 1 or not whole:
            for r in range(count):
                row, to = xs + r * x_stride, out + r * out_stride
                float_tile(halves, 1, 1, 1, KEEP, at, stride, width, AHEAD, row, 0, to, 0)
        elif count == 2:
            float_tile(halves, 4, 2, 1, READ_ONCE, at, stride, width, ahead, xs, x_stride, out, out_stride)
        elif TOGETHER == 4 and count == 4:
            float_tile(halves, 3, 4, 1, READ_ONCE, at, stride, width, ahead, xs, x_stride, out, out_stride)
        elif count == 4:
            float_tile(halves, 4, 4, 1, READ_ONCE, at, stride, width, ahead, xs, x_stride, out, out_stride)
        else:
            float_tile(halves, BESIDE, 8, 1, KEEP, at, stride, width, ahead, xs, x_stride, out, out_stride)
        i += several if whole else 1


@njit(**FLAGS)
def _beside(count: int) -> int:
    """How many weight rows are multiplied at once with several rows of activations."""
    if count == FLOATS_TOGETHER:
        return BESIDE
    return 3 if count == TOGETHER else 4


@njit(**FLAGS)
def _multiply_plainly(weights: Any, first: int, low: int, high: int, top: int, count: int, x: Any, y: Any) -> None:
    for i in range(low, high):
        for r in range(top, top + count):
            total = f32(0)
            for j in range(weights.shape[1]):
                total += widen(weights[i, j]) * x[r, j]
            y[r, first + i] = total


# -- int8 --------------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _multiply_int8(matrix: Any, first: int, low: int, high: int, top: int, count: int, rows: Any, y: Any) -> None:
    if HAS_PRODUCT and matrix.width % INT8_STEP == 0:
        _multiply_bytes(matrix, first, low, high, top, count, rows, y)
        return
    weights, scales = bytes_at(matrix.values, (matrix.rows, matrix.width)), floats(matrix.scales, (matrix.rows,))
    for i in range(low, high):
        for r in range(top, top + count):
            y[r, first + i] = f32(_dot_integers(weights, i, rows.rounded, r)) * rows.scales[r] * scales[i]


@njit(**FLAGS)
def _dot_integers(weights: Any, i: int, rounded: Any, r: int) -> Any:
    total = np.int32(0)
    for j in range(weights.shape[1]):
        total += np.int32(weights[i, j]) * np.int32(rounded[r, j])
    return total


@njit(**FLAGS)
def _multiply_bytes(matrix: Any, first: int, low: int, high: int, top: int, count: int, rows: Any, y: Any) -> None:
    """Process BYTES_BESIDE weight rows at a time (one for a single row of activations, to keep one read stream), then
    the rest."""
    width, x_stride, out_stride = matrix.width, rows.rounded.shape[1], 4 * y.shape[1]
    x, pairs = address(rows.rounded) + top * x_stride, address(rows.narrow) + 2 * top * x_stride
    offsets, x_scales = address(rows.corrections) + 4 * top, address(rows.scales) + 4 * top
    i, several = low, 1 if count == 1 else BYTES_BESIDE
    while i < high:
        at, by, to = matrix.values + i * width, matrix.scales + 4 * i, address(y) + top * out_stride + 4 * (first + i)
        whole = i + several <= high
        if count == 1:
            int8_tile(1, 1, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        elif not whole:
            for r in range(count):
                int8_tile(
                    1, 1, at, by, width, x + r * x_stride, 0, x_scales + 4 * r, offsets + 4 * r, to + r * out_stride, 0
                )
        elif BY_ROW_PAIRS:
            _multiply_row_pairs(count, at, by, width, pairs, 2 * x_stride, x_scales, to, out_stride)
        elif count == 2:
            int8_tile(BYTES_BESIDE, 2, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        elif count == 4 or BYTES_TOGETHER == 4:
            int8_tile(BYTES_BESIDE, 4, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        else:
            int8_tile(BYTES_BESIDE, 8, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        i += several if whole else 1


@njit(**FLAGS)
def _multiply_row_pairs(
    count: int, values: int, scales: int, width: int, x: int, x_stride: int, x_scales: int, out: int, out_stride: int
) -> None:
    if count == 2:
        row_pairs_tile(BYTES_BESIDE, 2, values, scales, width, x, x_stride, x_scales, out, out_stride)
    elif count == 4:
        row_pairs_tile(BYTES_BESIDE, 4, values, scales, width, x, x_stride, x_scales, out, out_stride)
    else:
        row_pairs_tile(BYTES_BESIDE, 8, values, scales, width, x, x_stride, x_scales, out, out_stride)
