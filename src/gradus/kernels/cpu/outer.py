"""Products of many rows as sums of outer products (Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix
Multiplication").

The kernels for few rows multiply along the columns that both sides share, and add up a register's lanes at the end of
each weight row. With many rows, that end and reading the activations cost more than the products. Here a register's
lanes are PANEL rows of activations, packed side by side, and each weight is multiplied with all of them at once.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from gradus.kernels.cpu.elementary import LN_2, LOG2_E, LOWEST, TAYLOR
from gradus.kernels.cpu.machine import FLAGS, address
from gradus.kernels.cpu.vectors import FLOAT, FUSED, HAS_AVX512, SINGLE, WIDE, WORD, Code, Generate

PANEL = 2 * WIDE
"""Rows side by side in a panel: the lanes of two vectors."""

BESIDE = 8 if HAS_AVX512 else 4
"""Rows of single numbers that are multiplied at once. The sums of each fill two registers, so eight are independent: as
many as two fused multiplications per cycle, of four cycles each, need. AVX-512 has registers for 16, and then reads the
panel half as often: from the second cache, four rows made three quarters of eight rows' rate."""

SQUARE = 8
"""Rows and columns that `transpose` exchanges at once."""

ADDS, WRITES, SCATTERS = range(3)
"""The ways `outer_tile` stores its sums: add to those in memory, row by row; write them; or write them transposed."""


@intrinsic
def outer_tile(
    typing: Any, halves: Any, rows: Any, ends: Any, fetches: Any, values: Any, stride: Any, step: Any, depth: Any,
    panel: Any, panel_stride: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Multiply `rows` (literal) rows of single numbers with PANEL rows side by side. Others: addresses, strides in
    bytes.

    values: number k of a row at k * step, a row every `stride`; bfloat16 if `halves` (literal) is 1, and then `step` is
    2 and `depth` even, else float32. panel: float32 [depth, PANEL], every panel_stride.
    fetches: literal, 1 if values come from memory, where another group of `rows` rows follows: it is prefetched.
    ends: literal. ADDS, WRITES: float32 out[row * out_stride + 4 lane]; SCATTERS: out[lane * out_stride + 4 row].
    """
    literal = halves, rows, ends, fetches
    if not all(isinstance(each, types.IntegerLiteral) for each in literal):
        return None
    return types.void(*literal, *[types.int64] * 8), _outer_code(*(each.literal_value for each in literal))


def _outer_code(halves: int, rows: int, ends: int, fetches: int) -> Generate:
    wide, words = ir.VectorType(FLOAT, WIDE), ir.VectorType(SINGLE, WIDE)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        values, stride, between, depth, panel, panel_stride, out, out_stride = args[4:]
        starts = [builder.mul(stride, code.whole(row)) for row in range(rows)]
        vectors = [4 * WIDE * vector for vector in range(2)]

        def add(sums: list[ir.Value], k: ir.Value, singles: list[ir.Value]) -> list[ir.Value]:
            row = builder.mul(k, panel_stride)
            lanes = [code.read(panel, builder.add(row, code.whole(at)), wide) for at in vectors]
            products = [builder.fmul(single, each, flags=FUSED) for single in singles for each in lanes]
            return [builder.fadd(total, one, flags=FUSED) for total, one in zip(sums, products, strict=True)]

        def fetch(step: ir.Value) -> None:
            """Prefetch as many bytes as a step reads, in the order of memory."""
            if fetches:
                following = builder.add(builder.mul(step, code.whole(4 * rows)), builder.mul(stride, code.whole(rows)))
                code.fetch_line(values, following, 0)

        def one(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            fetch(k)
            column = builder.mul(k, between)
            read = [code.read(values, builder.add(start, column), FLOAT) for start in starts]
            return add(sums, k, [code.all_lanes(each, WIDE) for each in read])

        def two(pair: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            """Read two bfloat16 at once; shifted or masked, each is a float."""
            fetch(pair)
            column, k = builder.mul(pair, code.whole(4)), builder.mul(pair, code.whole(2))
            read = [code.all_lanes(code.read(values, builder.add(start, column), SINGLE), WIDE) for start in starts]
            low = [builder.shl(each, ir.Constant(words, [16] * WIDE)) for each in read]
            high = [builder.and_(each, ir.Constant(words, [0xFFFF0000] * WIDE)) for each in read]
            sums = add(sums, k, [builder.bitcast(each, wide) for each in low])
            return add(sums, builder.add(k, code.whole(1)), [builder.bitcast(each, wide) for each in high])

        places = [builder.mul(out_stride, code.whole(row)) for row in range(rows)]
        places = [builder.add(place, code.whole(at)) for place in places for at in vectors]
        zero = ir.Constant(wide, [0.0] * WIDE)
        sums = [code.read(out, place, wide) if ends == ADDS else zero for place in places]
        steps = builder.sdiv(depth, code.whole(2)) if halves else depth
        sums = code.loop(steps, sums, two if halves else one)
        if ends != SCATTERS:
            for place, total in zip(places, sums, strict=True):
                code.write(out, place, total)
            return context.get_dummy_value()
        scatter(code, [sums[2 * row : 2 * row + 2] for row in range(rows)], out, out_stride)
        return context.get_dummy_value()

    return generate


def scatter(code: Code, sums: list[list[ir.Value]], out: ir.Value, out_stride: ir.Value) -> None:
    """Write the two vectors of each row transposed: float32 out[lane * out_stride + 4 row]. Four rows leave together,
    if their number allows it."""
    fours = len(sums) % 4 == 0
    for lane in range(PANEL):
        place = code.builder.mul(out_stride, code.whole(lane))
        vector, own = divmod(lane, WIDE)
        if own == 0:
            some = [[row[vector] for row in sums[first : first + 4]] for first in range(0, len(sums), 4)]
            turned = [_fours(code, each) for each in some] if fours else []
        if fours:
            values = [code.part(each[own % 4], own // 4 * 4, 4) for each in turned]
        else:
            values = [code.builder.extract_element(row[vector], ir.Constant(SINGLE, own)) for row in sums]
        for number, value in enumerate(values):
            code.write(out, code.builder.add(place, code.whole((16 if fours else 4) * number)), value)


def _fours(code: Code, rows: list[ir.Value]) -> list[ir.Value]:
    """Exchange rows and columns of each 4 lanes of four vectors: lanes 4 q to 4 q + 3 of vector j are then column
    4 q + j."""

    def zipped(first: ir.Value, second: ir.Value, lanes: tuple[int, ...]) -> ir.Value:
        """Four lanes for each four of the vectors: 0 to 3 are those of the first, 4 to 7 of the second."""
        places = [at + lane % 4 + lane // 4 * WIDE for at in range(0, WIDE, 4) for lane in lanes]
        return code.builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(SINGLE, WIDE), places))

    pairs = [[zipped(rows[i], rows[i + 1], lanes) for i in (0, 2)] for lanes in ((0, 4, 1, 5), (2, 6, 3, 7))]
    return [zipped(low, high, lanes) for low, high in pairs for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))]


@intrinsic
def exponentials(typing: Any, panel: Any, rows: Any, largest: Any, totals: Any, factors: Any) -> Any:
    """Turn the scores of a panel into exponentials against the largest of each lane so far, and add them up.

    All: addresses; panel: float32 [rows, PANEL], `rows` a multiple of 4; others: float32 [PANEL]. largest, totals:
    updated. factors: set to what earlier sums are multiplied with. Returns 0 if these are all 1, else another number.
    """
    return types.int64(*[types.int64] * 5), _exponentials_code


def _exponentials_code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    code, wide = Code(builder), ir.VectorType(FLOAT, WIDE)
    panel, rows, largest, totals, factors = args
    places = [code.whole(4 * WIDE * vector) for vector in range(2)]

    def each(step: ir.Value, count: int) -> list[ir.Value]:
        """The offsets of the vectors of `count` rows."""
        first = builder.mul(step, code.whole(4 * PANEL * count))
        return [builder.add(first, code.whole(4 * WIDE * vector)) for vector in range(2 * count)]

    def compare(step: ir.Value, kept: list[ir.Value]) -> list[ir.Value]:
        found = [code.read(panel, place, wide) for place in each(step, 4)]
        return [_larger(builder, *pair) for pair in zip(found, kept, strict=True)]

    def add(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        result = []
        for number, (place, total) in enumerate(zip(each(step, 2), sums, strict=True)):
            score = code.read(panel, place, wide)
            value = _exp(code, builder.fsub(score, most[number % 2], flags=FUSED))
            code.write(panel, place, value)
            result.append(builder.fadd(total, value, flags=FUSED))
        return result

    before = [code.read(largest, place, wide) for place in places]
    most = code.loop(builder.sdiv(rows, code.whole(4)), before * 4, compare)
    while len(most) > 2:
        half = len(most) // 2
        most = [_larger(builder, *pair) for pair in zip(most[:half], most[half:], strict=True)]
    sums = code.loop(builder.sdiv(rows, code.whole(2)), [ir.Constant(wide, [0.0] * WIDE)] * 4, add)
    changed = ir.Constant(ir.IntType(WIDE), 0)
    for vector, place in enumerate(places):
        factor = _exp(code, builder.fsub(before[vector], most[vector], flags=FUSED))
        total = builder.fmul(code.read(totals, place, wide), factor, flags=FUSED)
        total = builder.fadd(total, builder.fadd(*sums[vector::2], flags=FUSED), flags=FUSED)
        for kept, value in ((largest, most[vector]), (factors, factor), (totals, total)):
            code.write(kept, place, value)
        other = builder.fcmp_unordered("!=", before[vector], most[vector])
        changed = builder.or_(changed, builder.bitcast(other, ir.IntType(WIDE)))
    return builder.zext(changed, WORD)


def _larger(builder: ir.IRBuilder, value: ir.Value, kept: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", value, kept), value, kept)


def _exp(code: Code, x: ir.Value) -> ir.Value:
    """`elementary.exp` of a vector; NaN stays."""
    builder, wide, words = code.builder, x.type, ir.VectorType(SINGLE, WIDE)

    def all_of(value: np.float32) -> ir.Constant:
        return ir.Constant(wide, [float(value)] * WIDE)

    x = builder.select(builder.fcmp_ordered("<", x, all_of(LOWEST)), all_of(LOWEST), x)
    rounds = code.named(f"llvm.rint.v{WIDE}f32", wide, wide)
    n = builder.call(rounds, [builder.fmul(x, all_of(LOG2_E), flags=FUSED)])
    z = builder.fsub(x, builder.fmul(n, all_of(LN_2), flags=FUSED), flags=FUSED)
    series = all_of(TAYLOR[-1])
    for factor in reversed(TAYLOR[:-1]):
        series = builder.fadd(builder.fmul(series, z, flags=FUSED), all_of(factor), flags=FUSED)
    power = builder.add(builder.fptosi(n, words), ir.Constant(words, [127] * WIDE))
    power = builder.shl(power, ir.Constant(words, [23] * WIDE))
    return builder.fmul(series, builder.bitcast(power, wide), flags=FUSED)


@intrinsic
def scale_rows(typing: Any, panel: Any, rows: Any, factors: Any) -> Any:
    """Multiply each row of float32 [rows, PANEL] with float32 [PANEL]. panel, factors: addresses; rows: at least one.

    A loop of numba's would take the lanes through memory, in single numbers.
    """
    return types.void(*[types.int64] * 3), _scale_code


def _scale_code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    code, wide = Code(builder), ir.VectorType(FLOAT, WIDE)
    panel, rows, factors = args
    places = [code.whole(4 * WIDE * vector) for vector in range(2)]
    kept = [code.read(factors, place, wide) for place in places]

    def body(row: ir.Value, nothing: list[ir.Value]) -> list[ir.Value]:
        for place, factor in zip(places, kept, strict=True):
            at = builder.add(builder.mul(row, code.whole(4 * PANEL)), place)
            code.write(panel, at, builder.fmul(code.read(panel, at, wide), factor, flags=FUSED))
        return nothing

    code.loop(rows, [], body)
    return context.get_dummy_value()


@intrinsic
def transpose(typing: Any, x: Any, x_stride: Any, out: Any, out_stride: Any) -> Any:
    """Write SQUARE rows of SQUARE float32 as columns. All: addresses, and strides in bytes."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        x, x_stride, out, out_stride = args
        square = ir.VectorType(FLOAT, SQUARE)
        rows = [code.read(x, builder.mul(x_stride, code.whole(row)), square) for row in range(SQUARE)]
        lower, upper = (
            ir.Constant(ir.VectorType(SINGLE, SQUARE), [first + half for half in range(4) for first in (at, at + 8)])
            for at in (0, 4)
        )
        for _ in range(3):  # each round moves one bit of a value's row into its column, and one back
            pairs = list(zip(rows[:4], rows[4:], strict=True))
            rows = [builder.shuffle_vector(*pair, lanes) for pair in pairs for lanes in (lower, upper)]
        for column, row in enumerate(rows):
            code.write(out, builder.mul(out_stride, code.whole(column)), row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit(**FLAGS)
def pack(x: int, x_stride: int, width: int, panel: int) -> None:
    """Write PANEL rows of `width` float32, a multiple of SQUARE, side by side: [width, PANEL]."""
    for first in range(0, PANEL, SQUARE):
        for column in range(0, width, SQUARE):
            transpose(
                x + first * x_stride + 4 * column, x_stride, panel + 4 * (column * PANEL + first), 4 * PANEL
            )  # fmt: skip


@njit(**FLAGS)
def multiply_panels(
    halves: Any, weights: int, stride: int, width: int, count: int, panels: Any, number: int, out: int, out_stride: int
) -> None:
    """Multiply `count` weight rows with `number` panels of activations.

    halves: literal, 1 for weights in bfloat16, else float32. weights, out: addresses of the first row and of its
    result; strides in bytes. panels: float32 [at least `number`, at least `width`, PANEL].
    """
    size, first, panel_bytes = 2 if halves else 4, address(panels), 4 * PANEL * panels.shape[1]
    i = 0
    while i < count:
        several = i + BESIDE <= count
        for panel in range(number):
            at, packed, to = weights + i * stride, first + panel * panel_bytes, out + 4 * i + panel * PANEL * out_stride
            if several:
                outer_tile(
                    halves, BESIDE, SCATTERS, 1, at, stride, size, width, packed, 4 * PANEL, to, out_stride
                )  # fmt: skip
            else:
                outer_tile(halves, 1, SCATTERS, 0, at, stride, size, width, packed, 4 * PANEL, to, out_stride)
        i += BESIDE if several else 1
