"""Products of a few rows: some rows of a matrix, times 1 to 8 rows of activations.

Reading the weights is the cost, so each is read once and meets all rows of activations in registers. What a scheme does
to activations is done once per thread, on a copy: int8 rounds them, int4 takes their sums.

The torch reference is `forward` of the matrix's class. Sums are taken in another order; those of integers are the same.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gradus.kernels.cpu.machine import FLAGS, address, bytes_at, floats, halves, longs, widen, widen_half
from gradus.kernels.cpu.matrix import BFLOAT16, FLOAT32, INT4, INT8
from gradus.kernels.cpu.vectors import BLOCK, HAS_VNNI, INT8_STEP, PLANE, PLANES, TILE, int4_tile, int8_tile

MOST_ROWS = 8
"""Rows of activations that a product takes."""

f32 = np.float32
LARGEST = f32(127)
TINY = f32(np.finfo(np.float32).tiny * 127)  # as in gradus.quantization.linear.row_scales


class Rows(NamedTuple):
    """A thread's copy of the activations, [8, K'] each, K' being the widest K up to a multiple of 128.

    x: float32, zeros up to a multiple of 128. rounded: int8. scales: float32 [8]. corrections: int32 [8], 128 times the
    sums of `rounded`. sums: float32 [8, K' / 32], of each plane of x. spare: float32, for int4's decoded pairs.
    """

    x: NDArray[np.float32]
    rounded: NDArray[np.int8]
    scales: NDArray[np.float32]
    corrections: NDArray[np.int32]
    sums: NDArray[np.float32]
    spare: NDArray[np.float32]


def make_rows(width: int) -> Rows:
    """For matrices up to this width."""
    tiles = -(-width // TILE)
    shape = MOST_ROWS, tiles * TILE
    return Rows(
        np.zeros(shape, f32), np.zeros(shape, np.int8), np.zeros(MOST_ROWS, f32), np.zeros(MOST_ROWS, np.int32),
        np.zeros((MOST_ROWS, tiles * PLANES), f32), np.zeros((2, tiles * PLANES, BLOCK), f32),
    )  # fmt: skip


@njit(**FLAGS)
def padded(count: int) -> int:
    """The number of rows that a product works on for `count` of them: 1, 2, 4 or 8."""
    return 1 if count == 1 else 2 if count == 2 else 4 if count <= 4 else 8


# -- activations, as a matrix wants them -------------------------------------------------------------------------------


@njit(**FLAGS)
def prepare(matrix: Any, count: int, rows: Any) -> None:
    """Make of rows.x what the matrix is multiplied with."""
    if matrix.kind == INT8:
        for r in range(count):
            _round(rows, r, matrix.width)
    elif matrix.kind >= INT4:
        for r in range(count):
            _add_planes(rows, r, matrix)


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
def _add_planes(rows: Any, r: int, matrix: Any) -> None:
    x, sums = rows.x[r], rows.sums[r]
    if matrix.order:
        order = longs(matrix.order, (matrix.width,))
        x[: matrix.width] = x[order]
    planes = -(-matrix.width // TILE) * PLANES
    x[matrix.width : planes * PLANE] = f32(0)
    for plane in range(planes):
        total = f32(0)
        for j in range(plane * PLANE, (plane + 1) * PLANE):
            total += x[j]
        sums[plane] = total


# -- products ----------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def multiply(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Rows low to high of the matrix, times the activations: y[:count, first + low : first + high], with the bias.

    y: float32 [8, N], of which rows beyond `count` may be written too. rows: as `prepare` left them.
    """
    if matrix.kind == FLOAT32:
        weights = floats(matrix.values, (matrix.rows, matrix.width))
        _multiply_floats(weights, matrix.first, low, high, count, rows.x, y)
    elif matrix.kind == BFLOAT16:
        narrow_weights = halves(matrix.values, (matrix.rows, matrix.width))
        _multiply_floats(narrow_weights, matrix.first, low, high, count, rows.x, y)
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
def _multiply_floats(weights: Any, first: int, low: int, high: int, count: int, x: Any, y: Any) -> None:
    if count == 1:
        for i in range(low, high):
            y[0, first + i] = _dot(weights, i, x)
        return
    for i in range(low, high):
        for r in range(0, count, 4):
            sums = _dot4(weights, i, x, r)
            for each in range(4):
                y[r + each, first + i] = sums[each]


@njit(**FLAGS)
def _dot(weights: Any, i: int, x: Any) -> Any:
    total = f32(0)
    for j in range(weights.shape[1]):
        total += widen(weights[i, j]) * x[0, j]
    return total


@njit(**FLAGS)
def _dot4(weights: Any, i: int, x: Any, r: int) -> Any:
    """Written out, since the sums must stay in registers."""
    s0 = s1 = s2 = s3 = f32(0)
    for j in range(weights.shape[1]):
        w = widen(weights[i, j])
        s0 += w * x[r, j]
        s1 += w * x[r + 1, j]
        s2 += w * x[r + 2, j]
        s3 += w * x[r + 3, j]
    return s0, s1, s2, s3


# -- int8 --------------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _multiply_int8(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    width, scales = matrix.width, floats(matrix.scales, (matrix.rows,))
    sums = y.view(np.int32)  # where integers stand until they are scaled
    if HAS_VNNI and width % INT8_STEP == 0:
        _add_with_vnni(matrix, low, high, count, rows, y)
    else:
        weights = bytes_at(matrix.values, (matrix.rows, width))
        for i in range(low, high):
            for r in range(count):
                sums[r, matrix.first + i] = _dot_integers(weights, i, rows.rounded, r)
    for r in range(count):
        scale = rows.scales[r]
        for i in range(low, high):
            y[r, matrix.first + i] = f32(sums[r, matrix.first + i]) * scale * scales[i]


@njit(**FLAGS)
def _dot_integers(weights: Any, i: int, rounded: Any, r: int) -> Any:
    total = np.int32(0)
    for j in range(weights.shape[1]):
        total += np.int32(weights[i, j]) * np.int32(rounded[r, j])
    return total


@njit(**FLAGS)
def _add_with_vnni(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Several weight rows at once, and what is left one by one."""
    width, x, x_stride, corrections = matrix.width, address(rows.rounded), rows.x.shape[1], address(rows.corrections)
    out, out_stride = address(y) + 4 * matrix.first, 4 * y.shape[1]
    i, several = low, 4 if count == 1 else 2
    while i < high:
        at, to, whole = matrix.values + i * width, out + 4 * i, i + several <= high
        if count == 1 and whole:
            int8_tile(4, 1, at, width, x, x_stride, corrections, to, out_stride)
        elif count == 1:
            int8_tile(1, 1, at, width, x, x_stride, corrections, to, out_stride)
        elif count == 2 and whole:
            int8_tile(2, 2, at, width, x, x_stride, corrections, to, out_stride)
        elif count == 2:
            int8_tile(1, 2, at, width, x, x_stride, corrections, to, out_stride)
        elif count == 4 and whole:
            int8_tile(2, 4, at, width, x, x_stride, corrections, to, out_stride)
        elif count == 4:
            int8_tile(1, 4, at, width, x, x_stride, corrections, to, out_stride)
        elif whole:
            int8_tile(2, 8, at, width, x, x_stride, corrections, to, out_stride)
        else:
            int8_tile(1, 8, at, width, x, x_stride, corrections, to, out_stride)
        i += several if whole else 1


# -- int4 --------------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _multiply_int4(matrix: Any, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Eight weight rows at once; of what is left, one by one."""
    i = low
    while i < high:
        several = BLOCK if i + BLOCK <= high else 1
        _decode_pairs(matrix, i, several, rows.spare)
        for r in range(count):
            _add_offsets(matrix, i, several, rows.spare[1], rows.sums[r], y[r])
        planes = matrix.group // PLANE
        if planes == 1:
            _add_int4(1, matrix, i, several, count, rows, y)
        elif planes == 2:
            _add_int4(2, matrix, i, several, count, rows, y)
        else:
            _add_int4(4, matrix, i, several, count, rows, y)
        i += several


@njit(**FLAGS)
def _decode_pairs(matrix: Any, i: int, several: int, spare: Any) -> None:
    """Scales and offsets of some weight rows as float32: spare[0] and spare[1], [groups, 8]."""
    groups = -(-matrix.width // TILE) * TILE // matrix.group
    pairs = halves(matrix.scales, (groups, matrix.rows, 2))
    for part in range(2):
        for group in range(groups):
            for each in range(several):
                bits = pairs[group, i + each, part]
                spare[part, group, each] = widen(bits) if matrix.kind == INT4 else widen_half(bits)


@njit(**FLAGS)
def _add_offsets(matrix: Any, i: int, several: int, offsets: Any, sums: Any, y: Any) -> None:
    """Begin the result with what the offsets contribute: each group's, times the sum of its activations."""
    planes, first = matrix.group // PLANE, matrix.first + i
    for each in range(several):
        y[first + each] = f32(0)
    for group in range(-(-matrix.width // TILE) * PLANES // planes):
        total = f32(0)
        for plane in range(group * planes, (group + 1) * planes):
            total += sums[plane]
        for each in range(several):
            y[first + each] += offsets[group, each] * total


@njit(**FLAGS)
def _add_int4(planes: Any, matrix: Any, i: int, several: int, count: int, rows: Any, y: Any) -> None:
    tiles, stride = -(-matrix.width // TILE), 64 * matrix.rows
    x, x_stride, scales = address(rows.x), 4 * rows.x.shape[1], address(rows.spare)
    at, out, out_stride = matrix.values + 64 * i, address(y) + 4 * (matrix.first + i), 4 * y.shape[1]
    if several == 1:
        for r in range(count):
            int4_tile(planes, 1, 1, at, stride, scales, tiles, x + r * x_stride, 0, out + r * out_stride, 0)
        return
    together = BLOCK // count  # so that all sums fit the processor's registers
    for w in range(0, BLOCK, together):
        words, scale, to = at + 64 * w, scales + 4 * w, out + 4 * w
        if count == 1:
            int4_tile(planes, 8, 1, words, stride, scale, tiles, x, x_stride, to, out_stride)
        elif count == 2:
            int4_tile(planes, 4, 2, words, stride, scale, tiles, x, x_stride, to, out_stride)
        elif count == 4:
            int4_tile(planes, 2, 4, words, stride, scale, tiles, x, x_stride, to, out_stride)
        else:
            int4_tile(planes, 1, 8, words, stride, scale, tiles, x, x_stride, to, out_stride)
