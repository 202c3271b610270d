"""Products of a few rows: some rows of a matrix, times 1 to 32 rows of activations.

Reading the weights is the cost, so each is read once from memory. It meets up to 8 rows of activations in registers,
and more of them from the cache, where the few rows of weights that a thread works on stay meanwhile. What a scheme does
to activations is done once per thread, on a copy: int8 rounds them, int4 puts them into the order of its words.

The torch reference is `forward` of the matrix's class. Sums are taken in another order; those of integers are the same.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gradus.kernels.cpu.machine import FLAGS, INLINED, address, bytes_at, floats, halves, longs, widen
from gradus.kernels.cpu.matrix import BFLOAT16, FLOAT32, INT4, INT8
from gradus.kernels.cpu.vectors import (
    BLOCK,
    FLOAT_STEP,
    HAS_VNNI,
    INT8_STEP,
    PLANE,
    TILE,
    column_of,
    float_tile,
    int4_tile,
    int8_tile,
)

MOST_ROWS = 32
"""Rows of activations that a product takes."""

TOGETHER = 8
"""Of them, so many meet a weight in registers."""

AT_A_TIME = 32
"""Rows of a matrix that stay in the cache for the turns of more."""

COLUMNS = np.array([column_of(place) for place in range(TILE)])

f32 = np.float32
LARGEST = f32(127)
TINY = f32(np.finfo(np.float32).tiny * 127)  # as in gradus.quantization.linear.row_scales


class Rows(NamedTuple):
    """A thread's copy of the activations, [32, K'] each, K' being the widest K up to a multiple of 128.

    x: float32. rounded: int8. scales: float32 [32]. corrections: int32 [32], 128 times the sums of `rounded`. ordered:
    float32, x as int4's tiles multiply it.
    """

    x: NDArray[np.float32]
    rounded: NDArray[np.int8]
    scales: NDArray[np.float32]
    corrections: NDArray[np.int32]
    ordered: NDArray[np.float32]


def make_rows(width: int) -> Rows:
    """For matrices up to this width."""
    shape = MOST_ROWS, -(-width // TILE) * TILE
    return Rows(
        np.zeros(shape, f32), np.zeros(shape, np.int8), np.zeros(MOST_ROWS, f32), np.zeros(MOST_ROWS, np.int32),
        np.zeros(shape, f32),
    )  # fmt: skip


@njit(**FLAGS)
def padded(count: int) -> int:
    """The number of rows that a product works on for `count` of them: 1, 2, 4, or multiples of 8."""
    return count if count <= 2 else 4 if count <= 4 else -(-count // TOGETHER) * TOGETHER


# -- activations, as a matrix wants them -------------------------------------------------------------------------------


@njit(**FLAGS)
def prepare(matrix: Any, count: int, rows: Any) -> None:
    """Make of rows.x what the matrix is multiplied with."""
    if matrix.kind == INT8:
        for r in range(count):
            _round(rows, r, matrix.width)
    elif matrix.kind >= INT4:
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
def _order(rows: Any, r: int, matrix: Any) -> None:
    """The order of the matrix's columns, and of a tile's nibbles."""
    x, ordered, width = rows.x[r], rows.ordered[r], matrix.width
    order = longs(matrix.order, (width,))
    for tile in range(-(-width // TILE)):
        for place in range(TILE):
            column = tile * TILE + COLUMNS[place]
            if column >= width:
                ordered[tile * TILE + place] = f32(0)
            elif matrix.order:
                ordered[tile * TILE + place] = x[order[column]]
            else:
                ordered[tile * TILE + place] = x[column]


# -- products ----------------------------------------------------------------------------------------------------------


@njit(**FLAGS, **INLINED)
def multiply(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Rows low to high of the matrix, times the activations: y[:count, first + low : first + high], with the bias.

    count: as `padded` has it. rows: as `prepare` left them. y: float32 [32, N].
    """
    block = high - low if count <= TOGETHER else AT_A_TIME
    for start in range(low, high, block):
        for first in range(0, count, TOGETHER):
            together = Rows(
                rows.x[first:], rows.rounded[first:], rows.scales[first:], rows.corrections[first:],
                rows.ordered[first:],
            )  # fmt: skip
            _multiply_together(
                matrix, start, min(start + block, high), min(TOGETHER, count - first), together, y[first:]
            )


@njit(**FLAGS, **INLINED)
def _multiply_together(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    if matrix.kind == FLOAT32:
        weights = floats(matrix.values, (matrix.rows, matrix.width))
        _multiply_floats(0, weights, matrix, low, high, count, rows.x, y)
    elif matrix.kind == BFLOAT16:
        narrow_weights = halves(matrix.values, (matrix.rows, matrix.width))
        _multiply_floats(1, narrow_weights, matrix, low, high, count, rows.x, y)
    elif matrix.kind == INT8:
        _multiply_int8(matrix, low, high, count, rows, y)
    else:
        _multiply_int4(matrix, low, high, count, rows, y)
    if matrix.bias:
        bias = floats(matrix.bias, (matrix.rows,))
        for r in range(count):
            for i in range(low, high):
                y[r, matrix.first + i] += bias[i]


@njit(**FLAGS)
def _multiply_floats(halves: Any, weights: Any, matrix: Any, low: int, high: int, count: int, x: Any, y: Any) -> None:
    """halves: literal, 1 for bfloat16; weights: the matrix, for plain loops."""
    width, x_stride, out_stride = matrix.width, 4 * x.shape[1], 4 * y.shape[1]
    stride = width * weights.itemsize
    i, several = low, 1 if count == 1 else 2 if count == 8 else 4
    if width % FLOAT_STEP:
        _multiply_plainly(weights, matrix.first, low, high, count, x, y)
        i = high
    while i < high:
        at, xs = matrix.values + i * stride, address(x)
        out, whole = address(y) + 4 * (matrix.first + i), i + several <= high
        if count == 1 and width % (4 * FLOAT_STEP) == 0:  # one row is one stream: nothing is faster
            float_tile(halves, 1, 1, 4, at, stride, width, xs, x_stride, out, out_stride)
        elif count == 1 or not whole:
            for r in range(count):
                float_tile(halves, 1, 1, 1, at, stride, width, xs + r * x_stride, 0, out + r * out_stride, 0)
        elif count == 2:
            float_tile(halves, 4, 2, 1, at, stride, width, xs, x_stride, out, out_stride)
        elif count == 4:
            float_tile(halves, 4, 4, 1, at, stride, width, xs, x_stride, out, out_stride)
        else:
            float_tile(halves, 2, 8, 1, at, stride, width, xs, x_stride, out, out_stride)
        i += several if whole else 1


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
def _multiply_int8(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    if HAS_VNNI and matrix.width % INT8_STEP == 0:
        _multiply_with_vnni(matrix, low, high, count, rows, y)
        return
    weights, scales = bytes_at(matrix.values, (matrix.rows, matrix.width)), floats(matrix.scales, (matrix.rows,))
    for i in range(low, high):
        for r in range(count):
            y[r, matrix.first + i] = f32(_dot_integers(weights, i, rows.rounded, r)) * rows.scales[r] * scales[i]


@njit(**FLAGS)
def _dot_integers(weights: Any, i: int, rounded: Any, r: int) -> Any:
    total = np.int32(0)
    for j in range(weights.shape[1]):
        total += np.int32(weights[i, j]) * np.int32(rounded[r, j])
    return total


@njit(**FLAGS)
def _multiply_with_vnni(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Two weight rows at once, for a lone row of activations one, which is one stream; what is left one by one."""
    width, x, x_stride, offsets = matrix.width, address(rows.rounded), rows.x.shape[1], address(rows.corrections)
    x_scales, out_stride = address(rows.scales), 4 * y.shape[1]
    i, several = low, 1 if count == 1 else 2
    while i < high:
        at, by, to = matrix.values + i * width, matrix.scales + 4 * i, address(y) + 4 * (matrix.first + i)
        whole = i + several <= high
        if count == 1:
            int8_tile(1, 1, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        elif count == 2 and whole:
            int8_tile(2, 2, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        elif count == 2:
            int8_tile(1, 2, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        elif count == 4 and whole:
            int8_tile(2, 4, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        elif count == 4:
            int8_tile(1, 4, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        elif whole:
            int8_tile(2, 8, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        else:
            int8_tile(1, 8, at, by, width, x, x_stride, x_scales, offsets, to, out_stride)
        i += several if whole else 1


# -- int4 --------------------------------------------------------------------------------------------------------------


@njit(**FLAGS, **INLINED)
def _multiply_int4(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    planes = matrix.group // PLANE
    if planes == 1:
        _multiply_words(1, matrix, low, high, count, rows, y)
    elif planes == 2:
        _multiply_words(2, matrix, low, high, count, rows, y)
    else:
        _multiply_words(4, matrix, low, high, count, rows, y)


@njit(**FLAGS)
def _multiply_words(planes: Any, matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Eight weight rows at once; of what is left, one by one."""
    tiles, words_stride, pairs_stride = -(-matrix.width // TILE), 64 * matrix.rows, 4 * matrix.rows
    x, x_stride, out_stride = address(rows.ordered), 4 * rows.ordered.shape[1], 4 * y.shape[1]
    i, together, halves = low, BLOCK // count if count < 8 else 2, matrix.kind != INT4
    while i < high:
        words, pairs, out = matrix.values + 64 * i, matrix.scales + 4 * i, address(y) + 4 * (matrix.first + i)
        if i + together > high:
            for r in range(count):
                int4_tile(
                    planes, 1, 1, halves, words, words_stride, pairs, pairs_stride, tiles, x + r * x_stride, 0,
                    out + r * out_stride, 0,
                )  # fmt: skip
            i += 1
            continue
        if count == 1:
            int4_tile(
                planes, 8, 1, halves, words, words_stride, pairs, pairs_stride, tiles, x, x_stride, out, out_stride
            )
        elif count == 2:
            int4_tile(
                planes, 4, 2, halves, words, words_stride, pairs, pairs_stride, tiles, x, x_stride, out, out_stride
            )
        elif count == 4:
            int4_tile(
                planes, 2, 4, halves, words, words_stride, pairs, pairs_stride, tiles, x, x_stride, out, out_stride
            )
        else:
            int4_tile(
                planes, 2, 8, halves, words, words_stride, pairs, pairs_stride, tiles, x, x_stride, out, out_stride
            )
        i += together
