"""Rows of activations, and how they are prepared for the kind of matrix that multiplies them.

Each thread has a copy, and prepares it once per stage: int8 rounds a row, int4 permutes it to the order of its columns,
and both int4 and GGUF's blocks may round each PLANE of a row. Many rows for float weights are packed into panels.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from gradus.kernels.cpu.byte_products import BY_ROW_PAIRS, IN_BYTES
from gradus.kernels.cpu.int4.tile import PLANE
from gradus.kernels.cpu.machine import FLAGS, address, floats, longs, narrow, singles, widen, zeros
from gradus.kernels.cpu.matrix import BLOCKS, INT4, INT8
from gradus.kernels.cpu.outer import BESIDE, PANEL, pack
from gradus.kernels.cpu.vectors import (
    BY_PAIRS,
    FLOAT,
    FLOAT_STEP,
    FUSED,
    HAS_BF16,
    LANES,
    SINGLE,
    SUMS,
    TOGETHER,
    Code,
    Generate,
)

MOST_ROWS = 128
"""Rows of activations that a product takes. Blocks of a GGUF file are unpacked once for all of them."""

MOST_WIDE = BESIDE
"""Weight rows of a GGUF file that are widened at a time: at least 4."""

TILE = 128  # as in gradus.quantization.int4

f32 = np.float32
LARGEST = f32(127)
INFINITY = 0x7F800000  # its bits: larger than those of every finite magnitude
TINY = f32(np.finfo(np.float32).tiny)  # the least scale, as in gradus.quantization.linear.row_scales


class Rows(NamedTuple):
    """A thread's copy of the activations, [R, K'] each, R being MOST_ROWS and K' the widest K rounded up to a multiple
    of 128. Memory that no step has written to is not taken from the machine.

    x: float32. rounded: int8. scales: float32 [R]. corrections: int32 [R], 128 times the sums of `rounded`. ordered:
    float32, x in the order of int4's columns, and with the values that it is rounded to; narrow: the same in bfloat16
    or int16, or int8's rows in pairs; sums: float32 [R, K' / 32], one per plane; plane_scales: float32 [R, K' / 32],
    of planes rounded to int16 or int8.
    edge: float32 [8, LANES], the products of a block of weight rows if only some of them are wanted.
    wide: float32 [MOST_WIDE, K'], weight rows that are widened before they are multiplied.
    panels: float32 [R / PANEL, K', PANEL], whole panels of rows, side by side; or in bytes, see `_pack_bytes`.
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
    panels: NDArray[np.float32]


def make_rows(width: int) -> Rows:
    """Allocate a thread's rows, for matrices up to this width."""
    shape = MOST_ROWS, -(-width // TILE) * TILE
    return Rows(
        zeros(shape, f32), zeros(shape, np.int8), np.zeros(MOST_ROWS, f32), np.zeros(MOST_ROWS, np.int32),
        zeros(shape, f32), zeros(shape, np.uint16), zeros((MOST_ROWS, shape[1] // PLANE), f32),
        zeros((MOST_ROWS, shape[1] // PLANE), f32), zeros((TOGETHER, LANES), f32), zeros((MOST_WIDE, shape[1]), f32),
        zeros((MOST_ROWS // PANEL, shape[1], PANEL), f32),
    )  # fmt: skip


@njit(**FLAGS)
def padded(count: int) -> int:
    """Round `count` rows up to a number that a product can work on: a multiple of 8, plus 0, 1, 2 or 4."""
    rest = count % TOGETHER
    return count - rest + (rest if rest <= 2 else 4 if rest <= 4 else TOGETHER)


@njit(**FLAGS)
def prepare(matrix: Any, count: int, rows: Any) -> None:
    """Prepare the activations in rows.x for the matrix."""
    if matrix.kind == INT8:
        for r in range(count):
            _round(rows, r, matrix.width)
        if BY_ROW_PAIRS:
            for r in range(0, count - 1, 2):
                _pair(rows, r)
    elif INT4 <= matrix.kind < BLOCKS:
        for r in range(count):
            _order(rows, r, matrix)
    elif matrix.rounds:
        for r in range(count):
            _copy(rows.x[r], rows.ordered[r], matrix.width)
            _to_bytes(rows, r, matrix.width)
        if IN_BYTES:
            _pack_bytes(rows, in_panels(matrix, count), matrix.width)
        else:
            _pack(rows.ordered, rows, in_panels(matrix, count), matrix.width)
    else:
        _pack(rows.x, rows, in_panels(matrix, count), matrix.width)


@njit(**FLAGS)
def in_panels(matrix: Any, count: int) -> int:
    """How many of `count` rows, from the first on, are multiplied in whole panels."""
    if matrix.kind == INT8 or INT4 <= matrix.kind < BLOCKS or matrix.width % FLOAT_STEP:
        return 0
    return count // PANEL * PANEL


@njit(**FLAGS)
def _pack(x: Any, rows: Any, count: int, width: int) -> None:
    """Pack rows of x, `count` of them, into panels."""
    stride, panel_bytes = 4 * x.shape[1], 4 * PANEL * rows.panels.shape[1]
    for r in range(0, count, PANEL):
        pack(address(x) + r * stride, stride, width, address(rows.panels) + r // PANEL * panel_bytes)


@njit(**FLAGS)
def _pack_bytes(rows: Any, count: int, width: int) -> None:
    """Pack rounded rows, `count` of them, into panels: words [width / 4, PANEL] of four neighbors each, with 128 added,
    and behind them the scales and the sums of planes, float32 [width / PLANE, PANEL] each."""
    words, planes, stride = width // 4, width // PLANE, rows.rounded.shape[1]
    for r in range(0, count, PANEL):
        panel = address(rows.panels[r // PANEL])
        pack(address(rows.rounded[r]), stride, words, panel)
        packed = singles(panel, (words * PANEL,))
        for i in range(words * PANEL):
            packed[i] ^= np.uint32(0x80808080)
        behind = floats(panel + 4 * words * PANEL, (2, planes, PANEL))
        for lane in range(PANEL):
            for plane in range(planes):
                behind[0, plane, lane] = rows.plane_scales[r + lane, plane]
                behind[1, plane, lane] = rows.sums[r + lane, plane]


@njit(**FLAGS)
def _round(rows: Any, r: int, width: int) -> None:
    x, rounded = rows.x[r], rows.rounded[r]
    largest = f32(0)
    finite = True
    for j in range(width):
        largest = max(largest, abs(x[j]))
        finite &= abs(x[j]) < f32(np.inf)
    scale = max(largest, TINY * LARGEST) / LARGEST
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


# -- planes ------------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _order(rows: Any, r: int, matrix: Any) -> None:
    """Copy x in the order of the matrix's columns, rounded as it is multiplied, with zeros up to a whole step."""
    x, ordered, width = rows.x[r], rows.ordered[r], matrix.width
    if matrix.order:
        order = longs(matrix.order, (width,))
        for j in range(width):
            ordered[j] = x[order[j]]
    else:
        _copy(x, ordered, width)
    while width % (2 * PLANE):
        ordered[width] = f32(0)
        width += 1
    if matrix.rounds:
        _to_bytes(rows, r, width)
        _exchange(rows.rounded[r], width)
    elif HAS_BF16 and matrix.kind == INT4:
        narrowed = rows.narrow[r]
        for j in range(width):
            narrowed[j] = narrow(ordered[j])
            ordered[j] = widen(narrowed[j])
        _sum_planes(rows, r, width)
    elif BY_PAIRS:
        x, integers = address(ordered), address(rows.narrow[r])
        for step in range(width // PLANE):
            at = step * PLANE
            rows.plane_scales[r, step], rows.sums[r, step] = round_plane(16, x + 4 * at, integers + 2 * at)
    else:
        _sum_planes(rows, r, width)


@njit(**FLAGS)
def _copy(x: Any, to: Any, width: int) -> None:
    for j in range(width):
        to[j] = x[j]


@njit(**FLAGS)
def _to_bytes(rows: Any, r: int, width: int) -> None:
    """Round each plane of `ordered` to int8, and add it up."""
    x, integers = address(rows.ordered[r]), address(rows.rounded[r])
    for step in range(width // PLANE):
        at = step * PLANE
        rows.plane_scales[r, step], rows.sums[r, step] = round_plane(8, x + 4 * at, integers + at)


@intrinsic
def round_plane(typing: Any, bits: Any, x: Any, integers: Any) -> Any:
    """Round a plane of float32 to integers of 8 or 16 bits (literal) with one scale, and the floats to the same values.

    x, integers: addresses. Returns the scale and the values' sum. If a value is not finite, the scale is NaN, the
    integers are zeros, and the floats stay.
    """
    if not isinstance(bits, types.IntegerLiteral):
        return None
    return types.UniTuple(types.float32, 2)(bits, types.int64, types.int64), _plane_code(bits.literal_value)


def _plane_code(bits: int) -> Generate:
    wide, narrow_kind = ir.VectorType(FLOAT, LANES), ir.VectorType(ir.IntType(bits), LANES)
    most = 2 ** (bits - 1) - 1

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        _, x, integers = args
        parts = range(PLANE // LANES)
        values = [code.read(x, code.whole(4 * LANES * part), wide) for part in parts]
        magnitudes = [
            builder.and_(builder.bitcast(each, SUMS), ir.Constant(SUMS, [0x7FFFFFFF] * LANES)) for each in values
        ]
        largest = magnitudes[0]
        for each in magnitudes[1:]:
            largest = builder.select(builder.icmp_unsigned(">", each, largest), each, largest)
        largest = builder.call(code.named(f"llvm.vector.reduce.umax.v{LANES}i32", SINGLE, SUMS), [largest])
        finite = builder.icmp_unsigned("<", largest, ir.Constant(SINGLE, INFINITY))
        largest, least = builder.bitcast(largest, FLOAT), ir.Constant(FLOAT, float(TINY * f32(most)))
        largest = builder.select(builder.fcmp_ordered(">", largest, least), largest, least)
        # by a constant, LLVM would multiply with the reciprocal, and one scale in 25 would differ from the reference's
        scale = builder.fdiv(largest, builder.sitofp(code.unknown(most), FLOAT))
        inverse = code.all_lanes(builder.fdiv(ir.Constant(FLOAT, 1.0), scale), LANES)
        total = ir.Constant(wide, [0.0] * LANES)
        for part, value in enumerate(values):
            nearest = builder.call(code.named(f"llvm.rint.v{LANES}f32", wide, wide), [builder.fmul(value, inverse)])
            nearest = builder.select(finite, nearest, ir.Constant(wide, [0.0] * LANES))
            whole = builder.trunc(builder.fptosi(nearest, SUMS), narrow_kind)
            code.write(integers, code.whole(bits // 8 * LANES * part), whole)
            value = builder.select(finite, builder.fmul(nearest, code.all_lanes(scale, LANES)), value)
            code.write(x, code.whole(4 * LANES * part), value)
            total = builder.fadd(total, value, flags=FUSED)
        scale = builder.select(finite, scale, ir.Constant(FLOAT, float("nan")))
        return context.make_tuple(builder, signature.return_type, [scale, code.sum_of(total)])

    return generate


@njit(**FLAGS)
def _exchange(rounded: Any, width: int) -> None:
    """Exchange the second and third of four bytes, as a word of int4 has its columns."""
    fours = singles(address(rounded), (width // 4,))
    for j in range(width // 4):
        four = fours[j]
        outer = four & np.uint32(0xFF0000FF)
        fours[j] = outer | ((four >> np.uint32(8)) & np.uint32(0xFF00)) | ((four & np.uint32(0xFF00)) << np.uint32(8))


@njit(**FLAGS)
def _sum_planes(rows: Any, r: int, width: int) -> None:
    ordered = rows.ordered[r]
    for step in range(width // PLANE):
        total = f32(0)
        for j in range(PLANE):
            total += ordered[step * PLANE + j]
        rows.sums[r, step] = total
