"""Products of int4 matrices in lanes: a block of LANES weight rows at a time.

The torch reference is `Int4Linear.forward`; where activations are rounded to bytes, of the rounded ones.
"""

from typing import Any

from numba import njit

from gradus.kernels.cpu.byte_products import HAS_PRODUCT
from gradus.kernels.cpu.int4.tile import BFLOATS, BYTES, FLOATS, PLANE, SHORTS, int4_tile
from gradus.kernels.cpu.machine import FLAGS, address
from gradus.kernels.cpu.matrix import INT4
from gradus.kernels.cpu.vectors import BY_PAIRS, HAS_BF16, LANES, TOGETHER


@njit(**FLAGS)
def multiply_int4(matrix: Any, first: int, low: int, high: int, top: int, count: int, rows: Any, y: Any) -> None:
    """Process a block of LANES weight rows at a time. If a chunk begins or ends inside a block, keep only its rows.

    low, high: weight rows. top, count: the first row of activations, and how many: 1, 2, 4, or 8 with AVX-512.
    """
    out_stride, edge = 4 * y.shape[1], address(rows.edge)
    out = address(y) + top * out_stride + 4 * first
    for block in range(low // LANES, -(-high // LANES)):
        start = block * LANES
        if low <= start and start + LANES <= high:
            _multiply_block(matrix, block, top, count, rows, out + 4 * start, out_stride)
            continue
        _multiply_block(matrix, block, top, count, rows, edge, 4 * LANES)
        for r in range(count):
            for i in range(max(low, start), min(high, start + LANES)):
                y[top + r, first + i] = rows.edge[r, i - start]


@njit(**FLAGS)
def _multiply_block(matrix: Any, block: int, top: int, count: int, rows: Any, out: int, out_stride: int) -> None:
    steps, halves = -(-matrix.width // (2 * PLANE)), matrix.kind != INT4
    planes = matrix.group // (2 * PLANE)  # log2 of the planes in a group: 0, 1, 2
    words = matrix.values + block * -(-steps // 2) * 64 * LANES
    pairs = matrix.scales + block * matrix.pairs * 4 * LANES
    sums_stride = 4 * rows.sums.shape[1]
    sums, scales = address(rows.sums) + top * sums_stride, address(rows.plane_scales) + top * sums_stride
    ordered, narrow, rounded = _row(rows.ordered, 4, top), _row(rows.narrow, 2, top), _row(rows.rounded, 1, top)
    stride = rows.x.shape[1]
    if HAS_PRODUCT and matrix.rounds:
        _multiply_lanes(
            BYTES, count, halves, words, pairs, planes, steps, rounded, stride, sums, scales, sums_stride, out,
            out_stride,
        )  # fmt: skip
    elif BY_PAIRS:
        _multiply_lanes(
            SHORTS, count, halves, words, pairs, planes, steps, narrow, 2 * stride, sums, scales, sums_stride, out,
            out_stride,
        )  # fmt: skip
    elif HAS_BF16 and not halves:
        _multiply_lanes(
            BFLOATS, count, halves, words, pairs, planes, steps, narrow, 2 * stride, sums, scales, sums_stride, out,
            out_stride,
        )  # fmt: skip
    else:
        _multiply_lanes(
            FLOATS, count, halves, words, pairs, planes, steps, ordered, 4 * stride, sums, scales, sums_stride, out,
            out_stride,
        )  # fmt: skip


@njit(**FLAGS)
def _row(array: Any, size: int, row: int) -> int:
    """The address of a row. size: bytes of a value."""
    return address(array) + row * size * array.shape[1]


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
