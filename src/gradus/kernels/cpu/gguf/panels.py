"""Panels of rounded activations times blocks, as sums of outer products of bytes: a prompt with `activations: int8`.

A row of blocks is unpacked to signed bytes, once for all panels, with a RECORD for each plane of 32 columns. An
instruction then multiplies four columns of 16 rows of activations, where one of floats multiplies a single column.
It takes activations without a sign, so panels hold them with 128 added; a record's starts take the surplus away.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from gradus.kernels.cpu.byte_products import IN_BYTES
from gradus.kernels.cpu.gguf.blocks import COLUMNS, UNPACK, Block
from gradus.kernels.cpu.machine import FLAGS, LINE, address, floats
from gradus.kernels.cpu.matrix import NAMES
from gradus.kernels.cpu.outer import PANEL, scatter
from gradus.kernels.cpu.vectors import AHEAD, BYTE, FLOAT, FUSED, SINGLE, WIDE, Code, Generate
from gradus.quantization.gguf import FORMATS

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4 = range(len(NAMES))  # literals, for the loops in LLVM code

TOGETHER = 4
"""Weight rows that are multiplied at once: with two vectors each, their sums and those of a plane fill 16 registers."""

FIELDS = 8
"""Words of a plane's record: two starts (int32), two scales, an offset; the others keep it aligned. A format with one
scale per plane leaves the second ones out."""

STARTS, SCALES, OFFSET = 0, 2, 4


# -- weights -----------------------------------------------------------------------------------------------------------


@intrinsic
def block_bytes(typing: Any, number: Any, row: Any, blocks: Any, out: Any, records: Any) -> Any:
    """Write a row's integers as int8, and a record for each plane. number: literal. row, out, records: addresses."""
    if not IN_BYTES or not isinstance(number, types.IntegerLiteral):
        return None
    return types.void(number, *[types.int64] * 4), _bytes_code(NAMES[number.literal_value])


def _bytes_code(name: str) -> Generate:
    form, unpack = FORMATS[name], UNPACK[name]
    eight, integers = ir.VectorType(SINGLE, COLUMNS // 4), ir.VectorType(BYTE, COLUMNS)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        row, blocks, out, records = args[1:]
        multiply = code.named("llvm.x86.avx512.vpdpbusd.256", eight, eight, eight, eight)
        surplus = builder.bitcast(ir.Constant(integers, [-128] * COLUMNS), eight)  # 128, as the instruction reads it

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(step, code.whole(form.size))
            for line in range(0, form.size, LINE):
                code.fetch_line(row, builder.add(offset, code.whole(line)), AHEAD)
            found = unpack(Block(builder, builder.add(row, offset), FUSED))
            first = builder.mul(step, code.whole(form.values // COLUMNS))
            for plane, weights in enumerate(found.integers):
                if found.less:
                    weights = builder.sub(weights, ir.Constant(integers, [found.less] * COLUMNS))
                number = builder.add(first, code.whole(plane))
                code.write(out, builder.mul(number, code.whole(COLUMNS)), weights)
                fours = builder.call(multiply, [ir.Constant(eight, [0] * 8), surplus, builder.bitcast(weights, eight)])
                groups, record = COLUMNS // found.group, builder.mul(number, code.whole(4 * FIELDS))
                for group in range(groups):
                    added = code.sum_of(code.part(fours, 8 // groups * group, 8 // groups))
                    scale = ir.Constant(SINGLE, plane * groups + group)
                    for field, value in (
                        (STARTS, builder.sub(ir.Constant(SINGLE, 0), added)),
                        (SCALES, builder.extract_element(found.scales, scale)),
                    ):
                        code.write(records, builder.add(record, code.whole(4 * (field + group))), value)
                if found.offsets is not None:
                    value = builder.extract_element(found.offsets, ir.Constant(SINGLE, plane))
                    code.write(records, builder.add(record, code.whole(4 * OFFSET)), value)
            return sums

        code.loop(blocks, [], body)
        return context.get_dummy_value()

    return generate


@njit(**FLAGS)
def _unpack(number: int, row: int, blocks: int, out: int, records: int) -> None:
    if number == Q4_K:
        block_bytes(Q4_K, row, blocks, out, records)
    elif number == Q6_K:
        block_bytes(Q6_K, row, blocks, out, records)
    elif number == Q8_0:
        block_bytes(Q8_0, row, blocks, out, records)
    elif number == Q5_0:
        block_bytes(Q5_0, row, blocks, out, records)
    elif number == Q4_0:
        block_bytes(Q4_0, row, blocks, out, records)
    elif number == Q4_1:
        block_bytes(Q4_1, row, blocks, out, records)
    elif number == Q5_1:
        block_bytes(Q5_1, row, blocks, out, records)
    elif number == MXFP4:
        block_bytes(MXFP4, row, blocks, out, records)
    else:
        block_bytes(Q5_K, row, blocks, out, records)


# -- products ----------------------------------------------------------------------------------------------------------


@intrinsic
def bytes_tile(
    typing: Any, groups: Any, offsets: Any, weights: Any, stride: Any, records: Any, planes: Any, panel: Any, out: Any,
    out_stride: Any,
) -> Any:  # fmt: skip
    """Multiply TOGETHER unpacked rows with a panel: float32 out[lane * out_stride + 4 row].

    groups: literal, scales per plane; offsets: literal, 1 if planes have one. weights, records, panel, out: addresses,
    with `stride` bytes from a row's weights, and from its records, to the next row's. panel: see `_pack_bytes`
    in `activations.py`.
    """
    if not IN_BYTES or not all(isinstance(each, types.IntegerLiteral) for each in (groups, offsets)):
        return None
    return types.void(groups, offsets, *[types.int64] * 7), _tile_code(groups.literal_value, offsets.literal_value)


def _tile_code(groups: int, offsets: int) -> Generate:
    wide, sums_kind = ir.VectorType(FLOAT, WIDE), ir.VectorType(SINGLE, WIDE)
    vectors, fours = range(PANEL // WIDE), COLUMNS // 4

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        weights, stride, records, planes, panel, out, out_stride = args[2:]
        multiply = code.named(f"llvm.x86.avx512.vpdpbusd.{32 * WIDE}", sums_kind, sums_kind, sums_kind, sums_kind)
        rows = [builder.mul(stride, code.whole(row)) for row in range(TOGETHER)]
        scales = builder.mul(planes, code.whole(4 * PANEL * fours))  # where they begin in the panel
        added = builder.add(scales, builder.mul(planes, code.whole(4 * PANEL)))

        def lanes(offset: ir.Value, kind: ir.Type) -> list[ir.Value]:
            return [code.read(panel, builder.add(offset, code.whole(4 * WIDE * each)), kind) for each in vectors]

        def field(plane: ir.Value, row: ir.Value, number: int, kind: ir.Type) -> ir.Value:
            place = builder.add(builder.mul(plane, code.whole(4 * FIELDS)), code.whole(4 * number))
            return code.all_lanes(code.read(records, builder.add(row, place), kind), WIDE)

        def body(plane: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            totals, own = list(totals), builder.mul(plane, code.whole(4 * PANEL))
            x_scales = lanes(builder.add(scales, own), wide)
            for group in range(groups):
                sums = [each for row in rows for each in [field(plane, row, STARTS + group, SINGLE)] * len(vectors)]
                for four in range(fours // groups * group, fours // groups * (group + 1)):
                    column = builder.add(builder.mul(plane, code.whole(COLUMNS)), code.whole(4 * four))
                    xs = lanes(builder.mul(column, code.whole(PANEL)), sums_kind)
                    for number, row in enumerate(rows):
                        bytes_of_row = code.all_lanes(code.read(weights, builder.add(row, column), SINGLE), WIDE)
                        for vector, x in enumerate(xs, number * len(vectors)):
                            sums[vector] = builder.call(multiply, [sums[vector], x, bytes_of_row])
                for number, row in enumerate(rows):
                    scale = field(plane, row, SCALES + group, FLOAT)
                    for vector, x_scale in enumerate(x_scales, number * len(vectors)):
                        factor = builder.fmul(scale, x_scale, flags=FUSED)
                        product = builder.fmul(builder.sitofp(sums[vector], wide), factor, flags=("contract",))
                        totals[vector] = builder.fadd(totals[vector], product, flags=("contract",))
            if offsets:
                x_sums = lanes(builder.add(added, own), wide)
                for number, row in enumerate(rows):
                    offset = field(plane, row, OFFSET, FLOAT)
                    for vector, x_sum in enumerate(x_sums, number * len(vectors)):
                        product = builder.fmul(offset, x_sum, flags=FUSED)
                        totals[vector] = builder.fadd(totals[vector], product, flags=FUSED)
            return totals

        zero = ir.Constant(wide, [0.0] * WIDE)
        totals = code.loop(planes, [zero] * (TOGETHER * len(vectors)), body)
        scatter(code, [totals[len(vectors) * row :][: len(vectors)] for row in range(TOGETHER)], out, out_stride)
        return context.get_dummy_value()

    return generate


@njit(**FLAGS)
def multiply_bytes(number: int, matrix: Any, first: int, low: int, high: int, panels: int, rows: Any, y: Any) -> None:
    """Multiply rows low to high of the matrix with the first `panels` panels, into y[:, first + low : first + high]."""
    width, out_stride, stride = matrix.width, 4 * y.shape[1], 4 * rows.wide.shape[1]
    weights, edge, panel_bytes = address(rows.wide), address(rows.edge), 4 * PANEL * rows.panels.shape[1]
    records, planes = weights + width, width // COLUMNS
    for i in range(low, high, TOGETHER):
        some = min(TOGETHER, high - i)
        for w in range(some):
            row = matrix.values + (i + w) * matrix.stride
            _unpack(number, row, matrix.blocks, weights + w * stride, records + w * stride)
        for panel in range(panels):
            x, out = (
                address(rows.panels) + panel * panel_bytes,
                address(y) + 4 * (first + i) + panel * PANEL * out_stride,
            )
            to, to_stride = (out, out_stride) if some == TOGETHER else (edge, 4 * TOGETHER)
            if number == Q6_K:
                bytes_tile(2, 0, weights, stride, records, planes, x, to, to_stride)
            elif number in (Q4_K, Q5_K, Q4_1, Q5_1):
                bytes_tile(1, 1, weights, stride, records, planes, x, to, to_stride)
            else:
                bytes_tile(1, 0, weights, stride, records, planes, x, to, to_stride)
            if some < TOGETHER:
                found = floats(edge, (PANEL, TOGETHER))
                for lane in range(PANEL):
                    for w in range(some):
                        y[panel * PANEL + lane, first + i + w] = found[lane, w]
