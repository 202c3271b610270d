"""Products of rows of GGUF blocks: few rows of activations in a decode step, and widened rows for torch's prompts.

One row of activations meets each weight in registers. Several would unpack it several times, so a few rows of weights
are widened to float32 first, in the first cache, and multiplied by the kernels for floats. The torch reference is
`GGUFLinear.forward`.
"""

from collections.abc import Callable
from typing import Any

import torch
from numba import njit

from gradus.kernels.cpu.activations import in_panels
from gradus.kernels.cpu.byte_products import HAS_PRODUCT, IN_BYTES
from gradus.kernels.cpu.gguf.blocks import block_dot, block_dot_bytes, block_widen
from gradus.kernels.cpu.gguf.panels import multiply_bytes
from gradus.kernels.cpu.kept.code import kept, sources
from gradus.kernels.cpu.machine import FLAGS, address
from gradus.kernels.cpu.matrix import NAMES
from gradus.kernels.cpu.outer import BESIDE, PANEL, multiply_panels
from gradus.kernels.cpu.vectors import AHEAD, KEEP, TOGETHER, float_tile
from gradus.quantization.gguf import GGUFLinear

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4 = range(len(NAMES))  # literals, for the loops in LLVM code


@njit(**FLAGS)
def dot(number: int, row: int, blocks: int, x: int) -> Any:
    """Multiply a row of blocks in format `number` with one row of activations."""
    if number == Q4_K:
        return block_dot(Q4_K, row, blocks, x)
    if number == Q6_K:
        return block_dot(Q6_K, row, blocks, x)
    if number == Q8_0:
        return block_dot(Q8_0, row, blocks, x)
    if number == Q5_0:
        return block_dot(Q5_0, row, blocks, x)
    if number == Q4_0:
        return block_dot(Q4_0, row, blocks, x)
    if number == Q4_1:
        return block_dot(Q4_1, row, blocks, x)
    if number == Q5_1:
        return block_dot(Q5_1, row, blocks, x)
    if number == MXFP4:
        return block_dot(MXFP4, row, blocks, x)
    return block_dot(Q5_K, row, blocks, x)


@njit(**FLAGS)
def dot_bytes(number: int, row: int, blocks: int, x: int, scales: int, sums: int) -> Any:
    """Multiply a row of blocks in format `number` with one row of activations that are rounded to int8."""
    if number == Q4_K:
        return block_dot_bytes(Q4_K, row, blocks, x, scales, sums)
    if number == Q6_K:
        return block_dot_bytes(Q6_K, row, blocks, x, scales, sums)
    if number == Q8_0:
        return block_dot_bytes(Q8_0, row, blocks, x, scales, sums)
    if number == Q5_0:
        return block_dot_bytes(Q5_0, row, blocks, x, scales, sums)
    if number == Q4_0:
        return block_dot_bytes(Q4_0, row, blocks, x, scales, sums)
    if number == Q4_1:
        return block_dot_bytes(Q4_1, row, blocks, x, scales, sums)
    if number == Q5_1:
        return block_dot_bytes(Q5_1, row, blocks, x, scales, sums)
    if number == MXFP4:
        return block_dot_bytes(MXFP4, row, blocks, x, scales, sums)
    return block_dot_bytes(Q5_K, row, blocks, x, scales, sums)


@njit(**FLAGS)
def _widen(number: int, narrow: Any, row: int, blocks: int, out: int) -> None:
    """Write a row of blocks as float32, or as bfloat16 if `narrow` (literal) is 1."""
    if number == Q4_K:
        block_widen(Q4_K, narrow, row, blocks, out)
    elif number == Q6_K:
        block_widen(Q6_K, narrow, row, blocks, out)
    elif number == Q8_0:
        block_widen(Q8_0, narrow, row, blocks, out)
    elif number == Q5_0:
        block_widen(Q5_0, narrow, row, blocks, out)
    elif number == Q4_0:
        block_widen(Q4_0, narrow, row, blocks, out)
    elif number == Q4_1:
        block_widen(Q4_1, narrow, row, blocks, out)
    elif number == Q5_1:
        block_widen(Q5_1, narrow, row, blocks, out)
    elif number == MXFP4:
        block_widen(MXFP4, narrow, row, blocks, out)
    else:
        block_widen(Q5_K, narrow, row, blocks, out)


@njit(**FLAGS)
def widen_row(number: int, row: int, blocks: int, out: int) -> None:
    """Write a row of blocks as float32. Compiled once for all its callers."""
    _widen(number, 0, row, blocks, out)


# -- in a decode step --------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def multiply_blocks(number: int, matrix: Any, first: int, low: int, high: int, count: int, rows: Any, y: Any) -> None:
    """Multiply rows low to high of the matrix with `count` rows of activations, without bias: see `multiply`."""
    stride, blocks = matrix.stride, matrix.blocks
    if HAS_PRODUCT and matrix.rounds and count == 1:
        x, scales, sums = address(rows.rounded), address(rows.plane_scales), address(rows.sums)
        for i in range(low, high):
            y[0, first + i] = dot_bytes(number, matrix.values + i * stride, blocks, x, scales, sums)
    elif count == 1:
        xs = address(rows.ordered) if matrix.rounds else address(rows.x)
        for i in range(low, high):
            y[0, first + i] = dot(number, matrix.values + i * stride, blocks, xs)
    else:
        top = in_panels(matrix, count)
        panels = top // PANEL
        if IN_BYTES and matrix.rounds and panels:
            multiply_bytes(number, matrix, first, low, high, panels, rows, y)
            panels = 0
        if panels or top < count:
            _multiply_widened(number, matrix, first, low, high, panels, top, count, rows, y)


@njit(**FLAGS)
def _multiply_widened(
    number: int, matrix: Any, first: int, low: int, high: int, panels: int, top: int, count: int, rows: Any, y: Any
) -> None:
    """Widen a few weight rows at a time, and multiply them with `panels` panels of floats and with rows top to count of
    the activations."""
    wide, wide_stride, out_stride = address(rows.wide), 4 * rows.wide.shape[1], 4 * y.shape[1]
    xs, x_stride = address(rows.ordered) if matrix.rounds else address(rows.x), 4 * rows.x.shape[1]
    # the registers hold the sums of three weight rows with 8 rows of activations, or, behind panels, four with 4
    several = BESIDE if panels else 3 if top == 0 and count >= TOGETHER else 4
    turn = 4 if top else TOGETHER
    for i in range(low, high, several):
        some, out = min(several, high - i), address(y) + 4 * (first + i)
        for w in range(some):
            widen_row(number, matrix.values + (i + w) * matrix.stride, matrix.blocks, wide + w * wide_stride)
        if panels:
            multiply_panels(0, wide, wide_stride, matrix.width, some, rows.panels, panels, out, out_stride)
        for r in range(top, count, turn):
            for w in range(0, some, 4):
                _multiply_wide(
                    min(4, some - w), min(turn, count - r), wide + w * wide_stride, wide_stride, matrix.width,
                    xs + r * x_stride, x_stride, out + 4 * w + r * out_stride, out_stride,
                )  # fmt: skip


@njit(**FLAGS)
def _multiply_wide(
    some: int, count: int, wide: int, stride: int, width: int, x: int, x_stride: int, out: int, out_stride: int
) -> None:
    """Multiply `some` rows of float32 with 1, 2, 4 or 8 rows of activations."""
    if some == 4 and count == 2:
        float_tile(0, 4, 2, 1, KEEP, wide, stride, width, AHEAD, x, x_stride, out, out_stride)
    elif some == 4 and count == 4:
        float_tile(0, 4, 4, 1, KEEP, wide, stride, width, AHEAD, x, x_stride, out, out_stride)
    elif some == 3 and count == 8:
        float_tile(0, 3, 8, 1, KEEP, wide, stride, width, AHEAD, x, x_stride, out, out_stride)
    elif some == 3 and count == 4:
        float_tile(0, 3, 4, 1, KEEP, wide, stride, width, AHEAD, x, x_stride, out, out_stride)
    else:
        for w in range(some):
            for r in range(count):
                to = out + 4 * w + r * out_stride
                float_tile(0, 1, 1, 1, KEEP, wide + w * stride, stride, width, AHEAD, x + r * x_stride, 0, to, 0)


# -- for torch ---------------------------------------------------------------------------------------------------------


def _compiled(made_of: int) -> Callable[[int, bool, int, int, int, int, int, int], None]:
    @kept
    def widen_rows(
        number: int, narrow: bool, blocks: int, stride: int, count: int, rows: int, out: int, out_stride: int
    ) -> None:
        """Widen `rows` rows of `count` blocks each, `stride` bytes apart, to float32, or bfloat16 if `narrow`."""
        for i in range(rows + (made_of & 0)):  # puts the sources' number into the closure, for `kept`
            row, to = blocks + i * stride, out + i * out_stride
            if narrow:
                _widen(number, 1, row, count, to)
            else:
                widen_row(number, row, count, to)

    return widen_rows


widen_rows = _compiled(sources())


class Widened:
    """Widens rows of a matrix into memory that all matrices use in turn: PIECE values, or one row if that is longer."""

    def __init__(self, linear: GGUFLinear, room: torch.Tensor) -> None:
        self.blocks, self.width, self.room = linear.blocks.detach(), linear.in_features, room
        self.count = linear.in_features // linear.format.values
        self.number, self.narrow = NAMES.index(linear.format.name), room.dtype == torch.bfloat16

    def __call__(self, first: int, end: int) -> torch.Tensor:
        """Rows first to end, [end - first, K], valid until the next call."""
        size, stride = (end - first) * self.width, self.blocks.shape[1]
        out = self.room[:size] if size <= len(self.room) else self.room.new_empty(size)
        widen_rows(
            self.number, self.narrow, self.blocks.data_ptr() + first * stride, stride, self.count, end - first,
            out.data_ptr(), self.width * out.itemsize,
        )  # fmt: skip
        return out.view(end - first, self.width)
