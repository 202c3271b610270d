"""Products of a few rows: some rows of a matrix, times 1 to 32 rows of activations.

Reading the weights is the cost, so each weight is read from memory once. In registers it is multiplied with up to 8
rows of activations. More rows take turns of 8, while the few weight rows that a thread works on stay in the cache.
After the whole eights, a turn of 1, 2 or 4 rows may follow: eight sequences, one with a draft to verify, take nine
rows, not sixteen. Each thread prepares activations once, on its own copy: int8 rounds them, int4 permutes them to the
order of its words.

The torch reference is `forward` of the matrix's class. Sums are taken in another order; integer sums are equal.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gradus.kernels.cpu.byte_products import BY_ROW_PAIRS, HAS_PRODUCT, int8_tile, row_pairs_tile
from gradus.kernels.cpu.gguf.product import MOST_WIDE, multiply_blocks
from gradus.kernels.cpu.machine import FLAGS, address, bytes_at, floats, halves, longs, narrow, widen, zeros
from gradus.kernels.cpu.matrix import BFLOAT16, BLOCKS, FLOAT32, INT4, INT8
from gradus.kernels.cpu.vectors import (
    AHEAD,
    BESIDE_AHEAD,
    BY_PAIRS,
    FLOAT_STEP,
    HAS_BF16,
    INT8_STEP,
    KEEP,
    LANES,
    PLANE,
    PLANES,
    READ_ONCE,
    TILE,
    TOGETHER,
    float_tile,
    int4_tile,
)

MOST_ROWS = 32
"""Rows of activations that a product takes."""

BYTES_TOGETHER = 8 if BY_ROW_PAIRS else TOGETHER
"""As TOGETHER, for int8: sums of two rows in one register leave room for 8 rows of activations in an ARM's 32."""

BYTES_BESIDE = 4 if BY_ROW_PAIRS else 2
"""int8 weight rows that are multiplied with several rows of activations at once."""

FLOATS_TOGETHER = 8
"""As TOGETHER, for float weights. With AVX2 too: a second turn of 4 rows takes longer than the first, in which the
weights come from memory."""

BESIDE = 3 if TOGETHER == FLOATS_TOGETHER else 1
"""Float weight rows that are multiplied with FLOATS_TOGETHER rows at once: AVX2's registers hold the sums of one."""

AT_A_TIME = 32
"""Weight rows that stay in the cache while more than TOGETHER rows of activations take turns."""

FLOATS_AT_A_TIME = 33
"""The same for float weights: a multiple of 3, because three of them are multiplied with 8 rows at once."""

STREAM_BYTES = 40 << 10
"""Most bytes of float activations that stay in the first cache. Up to there they are multiplied with one weight row at
a time, because a single stream of weights is read fastest."""

f32 = np.float32
LARGEST = f32(127)
LARGEST_SHORT = f32(32767)
TINY = f32(np.finfo(np.float32).tiny * 127)  # as in gradus.quantization.linear.row_scales


class Rows(NamedTuple):
    """A thread's copy of the activations, [32, K'] each, K' being the widest K rounded up to a multiple of 128.

    x: float32. rounded: int8. scales: float32 [32]. corrections: int32 [32], 128 times the sums of `rounded`. ordered:
    float32, x in the order of int4's columns; narrow: the same in bfloat16 or int16, or int8's rows in pairs; sums:
    float32 [32, K' / 32], one per plane; plane_scales: float32 [32, K' / 32], of int16.
    edge: float32 [8, LANES], the products of a block of weight rows if only some of them are wanted.
    wide: float32 [MOST_WIDE, K'], weight rows that are widened before they are multiplied.
    """

    x: NDArray[np.float32]
    rounded: NDArray[np.int8]
    scales: NDArray[np.float32]
    corrections: NDArray[np.int32]
    ordered: NDArray[np.float32]
    narrow: NDArray[np.uint16]
    sums: NDArray[np.float32]
    plane_scales: NDArray[np.float32]
    edge: NDArray[np.float32]
    wide: NDArray[np.float32]


def make_rows(width: int) -> Rows:
    """Allocate a thread's rows, for matrices up to this width."""
    shape = MOST_ROWS, -(-width // TILE) * TILE
    return Rows(
        zeros(shape, f32), zeros(shape, np.int8), np.zeros(MOST_ROWS, f32), np.zeros(MOST_ROWS, np.int32),
        zeros(shape, f32), zeros(shape, np.uint16), zeros((MOST_ROWS, shape[1] // PLANE), f32),
        zeros((MOST_ROWS, shape[1] // PLANE), f32), zeros((TOGETHER, LANES), f32), zeros((MOST_WIDE, shape[1]), f32),
    )  # fmt: skip


@njit(**FLAGS)
def padded(count: int) -> int:
    """Round `count` rows up to a number that a product can work on: a multiple of 8, plus 0, 1, 2 or 4."""
    rest = count % TOGETHER
    return count - rest + (rest if rest <= 2 else 4 if rest <= 4 else TOGETHER)


# -- activations, prepared for a matrix --------------------------------------------------------------------------------


@njit(**FLAGS)
def prepare(matrix: Any, count: int, rows: Any) -> None:
    """Prepare the activations in rows.x for the matrix: round them for int8, order them for int4."""
    if matrix.kind == INT8:
        for r in range(count):
            _round(rows, r, matrix.width)
        if BY_ROW_PAIRS:
            for r in range(0, count - 1, 2):
                _pair(rows, r)
    elif INT4 <= matrix.kind < BLOCKS:
        for r in range(count):
            _order(rows, r, matrix)


@njit(**FLAGS)
def _round(rows: Any, r: int, width: int) -> None:
    x, rounded = rows.x[r], rows.rounded[r]
    largest = f32(0)
    finite = True
    for j in range(width):
        largest = max(largest, abs(x[j]))
        finite &= abs(x[j]) < f32(np.inf)
    scale = max(largest, TINY) / LARGEST
    total = np.int32(0)
    if finite:
        for j in range(width):
            value = np.int32(np.rint(x[j] / scale))
            rounded[j] = np.int8(value)
            total += value
    rows.scales[r] = scale if finite else f32(np.nan)  # a row that is not finite stays so, and ends alone
    rows.corrections[r] = total * np.int32(128)


@njit(**FLAGS)
def _pair(rows: Any, r: int) -> None:
    """Copy rounded rows r and r + 1 into narrow[r], 8 bytes of each in turn."""
    size = rows.rounded.shape[1]
    shape = (size // 8,)
    first, second = longs(address(rows.rounded[r]), shape), longs(address(rows.rounded[r + 1]), shape)
    pairs = longs(address(rows.narrow[r]), (size // 4,))
    for j in range(size // 8):
        pairs[2 * j], pairs[2 * j + 1] = first[j], second[j]


@njit(**FLAGS)
def _order(rows: Any, r: int, matrix: Any) -> None:
    """Copy x in the order of the matrix's columns, rounded to bfloat16 where that is multiplied; sum each plane."""
    x, ordered, narrowed, sums = rows.x[r], rows.ordered[r], rows.narrow[r], rows.sums[r]
    width = matrix.width
    if matrix.order:
        order = longs(matrix.order, (width,))
        for j in range(width):
            ordered[j] = x[order[j]]
    else:
        for j in range(width):
            ordered[j] = x[j]
    if HAS_BF16 and matrix.kind == INT4:
        for j in range(width):
            narrowed[j] = narrow(ordered[j])
            ordered[j] = widen(narrowed[j])
    if BY_PAIRS:
        for step in range(width // PLANE):
            rows.plane_scales[r, step] = _to_shorts(ordered, narrowed, step * PLANE)
    for step in range(width // PLANE):
        total = f32(0)
        for j in range(PLANE):
            total += ordered[step * PLANE + j]
        sums[step] = total


@njit(**FLAGS)
def _to_shorts(ordered: Any, shorts: Any, first: int) -> Any:
    """Round a plane to int16, and `ordered` to the same values. Returns their scale; NaN if one is not finite."""
    largest = f32(0)
    finite = True
    for j in range(first, first + PLANE):
        largest = max(largest, abs(ordered[j]))
        finite &= abs(ordered[j]) < f32(np.inf)
    if not finite:
        for j in range(first, first + PLANE):
            shorts[j] = np.uint16(0)
        return f32(np.nan)
    scale = max(largest, TINY) / LARGEST_SHORT
    inverse = f32(1) / scale
    for j in range(first, first + PLANE):
        value = np.rint(ordered[j] * inverse)
        shorts[j] = np.uint16(np.int16(np.int32(value)))
        ordered[j] = value * scale
    return scale


# -- products ----------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def multiply(matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Multiply rows low to high of the matrix with the activations, into y[:count, first + low : first + high], with
    bias.

    count: from `padded`. rows: from `prepare`. y: float32 [32, N].
    """
    if matrix.kind >= BLOCKS:
        multiply_blocks(matrix.kind - BLOCKS, matrix, first, low, high, count, rows, y)
    else:
        turn = FLOATS_AT_A_TIME if matrix.kind <= BFLOAT16 else AT_A_TIME
        most = FLOATS_TOGETHER if matrix.kind <= BFLOAT16 else BYTES_TOGETHER if matrix.kind == INT8 else TOGETHER
        block = high - low if _together(count, most) == count else turn
        for start in range(low, high, block):
            r = 0
            while r < count:
                some = _together(count - r, most)
                together = Rows(
                    rows.x[r:], rows.rounded[r:], rows.scales[r:], rows.corrections[r:],
                    rows.ordered[r:], rows.narrow[r:], rows.sums[r:], rows.plane_scales[r:], rows.edge, rows.wide,
                )  # fmt: skip
                end = min(start + block, high)
                _multiply_together(matrix, first, start, end, some, together, y[r:])
                r += some


@njit(**FLAGS)
def _together(count: int, most: int) -> int:
    """How many of `count` rows of activations take the next turn: 8, 4, 2 or 1."""
    if count >= most:
        return most
    return min(count, 4)


@njit(**FLAGS)
def _multiply_together(matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    if matrix.kind == FLOAT32:
        weights = floats(matrix.values, (matrix.rows, matrix.width))
        _multiply_floats(0, weights, matrix, first, low, high, count, rows.x, y)
    elif matrix.kind == BFLOAT16:
        narrow_weights = halves(matrix.values, (matrix.rows, matrix.width))
        _multiply_floats(1, narrow_weights, matrix, first, low, high, count, rows.x, y)
    elif matrix.kind == INT8:
        _multiply_int8(matrix, first, low, high, count, rows, y)
    else:
        _multiply_int4(matrix, first, low, high, count, rows, y)
    if matrix.bias:
        bias = floats(matrix.bias, (matrix.rows,))
        for r in range(count):
            for i in range(low, high):
                y[r, first + i] += bias[i]


@njit(**FLAGS)
def _multiply_floats(
    halves: Any, weights: Any, matrix: Any, first: int, low: int, high: int, count: int, x: Any, y: Any
) -> None:
    """Multiply float weights. halves: literal, 1 for bfloat16; weights: the matrix, for plain loops."""
    width, x_stride, out_stride = matrix.width, 4 * x.shape[1], 4 * y.shape[1]
    stride = width * weights.itemsize
    ahead = min(stride, BESIDE_AHEAD)  # at most into the next group of rows, not past it
    stream = width % (4 * FLOAT_STEP) == 0 and (count == 1 or (count <= 4 and 4 * count * width <= STREAM_BYTES))
    i, several = low, 1 if stream or count == 1 else _beside(count)
    if width % FLOAT_STEP:
        _multiply_plainly(weights, first, low, high, count, x, y)
        i = high
    while i < high:
        at, xs = matrix.values + i * stride, address(x)
        out, whole = address(y) + 4 * (first + i), i + several <= high
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
def _multiply_plainly(weights: Any, first: int, low: int, high: int, count: int, x: Any, y: Any) -> None:
    for i in range(low, high):
        for r in range(count):
            total = f32(0)
            for j in range(weights.shape[1]):
                total += widen(weights[i, j]) * x[r, j]
            y[r, first + i] = total


# -- int8 --------------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _multiply_int8(matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    if HAS_PRODUCT and matrix.width % INT8_STEP == 0:
        _multiply_bytes(matrix, first, low, high, count, rows, y)
        return
    weights, scales = bytes_at(matrix.values, (matrix.rows, matrix.width)), floats(matrix.scales, (matrix.rows,))
    for i in range(low, high):
        for r in range(count):
            y[r, first + i] = f32(_dot_integers(weights, i, rows.rounded, r)) * rows.scales[r] * scales[i]


@njit(**FLAGS)
def _dot_integers(weights: Any, i: int, rounded: Any, r: int) -> Any:
    total = np.int32(0)
    for j in range(weights.shape[1]):
        total += np.int32(weights[i, j]) * np.int32(rounded[r, j])
    return total


@njit(**FLAGS)
def _multiply_bytes(matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Process BYTES_BESIDE weight rows at a time (one for a single row of activations, to keep one read stream), then
    the rest."""
    width, x, x_stride, offsets = matrix.width, address(rows.rounded), rows.x.shape[1], address(rows.corrections)
    x_scales, out_stride = address(rows.scales), 4 * y.shape[1]
    i, several = low, 1 if count == 1 else BYTES_BESIDE
    while i < high:
        at, by, to = matrix.values + i * width, matrix.scales + 4 * i, address(y) + 4 * (first + i)
        whole = i + several <= high
        if count == 1:
            int8_tile(1, 1, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        elif not whole:
            for r in range(count):
                int8_tile(
                    1, 1, at, by, width, x + r * x_stride, 0, x_scales + 4 * r, offsets + 4 * r, to + r * out_stride, 0
                )
        elif BY_ROW_PAIRS:
            _multiply_row_pairs(count, at, by, width, address(rows.narrow), 2 * x_stride, x_scales, to, out_stride)
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


# -- int4 --------------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _multiply_int4(matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Process a block of LANES weight rows at a time. If a chunk begins or ends inside a block, keep only its rows."""
    out_stride, edge = 4 * y.shape[1], address(rows.edge)
    for block in range(low // LANES, -(-high // LANES)):
        start = block * LANES
        if low <= start and start + LANES <= high:
            _multiply_block(matrix, block, count, rows, address(y) + 4 * (first + start), out_stride)
            continue
        _multiply_block(matrix, block, count, rows, edge, 4 * LANES)
        for r in range(count):
            for i in range(max(low, start), min(high, start + LANES)):
                y[r, first + i] = rows.edge[r, i - start]


@njit(**FLAGS)
def _multiply_block(matrix: Any, block: int, count: int, rows: Any, out: int, out_stride: int) -> None:
    steps, halves = matrix.width // PLANE, matrix.kind != INT4
    planes = matrix.group // (2 * PLANE)  # log2 of the planes in a group: 0, 1, 2
    words = matrix.values + block * -(-steps // PLANES) * 64 * LANES
    pairs = matrix.scales + block * matrix.pairs * 4 * LANES
    sums, sums_stride = address(rows.sums), 4 * rows.sums.shape[1]
    scales, narrow_stride = address(rows.plane_scales), 2 * rows.narrow.shape[1]
    if BY_PAIRS:
        _multiply_lanes(
            2, count, halves, words, pairs, planes, steps, address(rows.narrow), narrow_stride, sums, scales,
            sums_stride, out, out_stride,
        )  # fmt: skip
    elif HAS_BF16 and not halves:
        _multiply_lanes(
            1, count, halves, words, pairs, planes, steps, address(rows.narrow), narrow_stride, sums, scales,
            sums_stride, out, out_stride,
        )  # fmt: skip
    else:
        _multiply_lanes(
            0, count, halves, words, pairs, planes, steps, address(rows.ordered), 4 * rows.ordered.shape[1], sums,
            scales, sums_stride, out, out_stride,
        )  # fmt: skip


@njit(**FLAGS)
def _multiply_lanes(
    kind: Any, count: int, halves: Any, words: int, pairs: int, planes: int, steps: int, x: int,
    x_stride: int, sums: int, scales: int, sums_stride: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """Call the tile for `count` rows of activations. kind: literal, the type of activations, as for the tile."""
    if count == 1:
        int4_tile(kind, 1, halves, words, pairs, planes, steps, x, x_stride, sums, scales, sums_stride, out, out_stride)
    elif count == 2:
        int4_tile(kind, 2, halves, words, pairs, planes, steps, x, x_stride, sums, scales, sums_stride, out, out_stride)
    elif count == 4 or TOGETHER == 4:
        int4_tile(kind, 4, halves, words, pairs, planes, steps, x, x_stride, sums, scales, sums_stride, out, out_stride)
    else:
        int4_tile(kind, 8, halves, words, pairs, planes, steps, x, x_stride, sums, scales, sums_stride, out, out_stride)
