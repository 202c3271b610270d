"""Two loops that must be vector instructions to be fast, written as such: rows of int8 and int4 times activations.

Each is a piece of LLVM code with `rows` weight rows and `count` rows of activations, both known when it is compiled, so
that all sums stay in registers. LLVM makes of a vector of 16 what the processor has; one instruction is looked for by
name: VNNI's, which multiplies and adds 64 bytes at once.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

LANES = 16
BYTE, HALF, SINGLE, WORD = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()
SUMS = ir.VectorType(SINGLE, LANES)
FUSED = ("reassoc", "contract", "nsz")
Generate = Callable[[Any, ir.IRBuilder, Any, Any], ir.Value]

HAS_VNNI = bool(binding.get_host_cpu_features().get("avx512vnni"))

INT8_STEP = 64
"""Values that one VNNI instruction takes: rows of other lengths are multiplied by plain loops."""


class Code:
    """A builder of LLVM code, with the few phrases that both loops need."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def whole(self, value: int) -> ir.Constant:
        return ir.Constant(WORD, value)

    def read(self, address: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
        """A value of a type at address + offset bytes, wherever that is."""
        place = self.builder.inttoptr(self.builder.add(address, offset), kind.as_pointer())
        return self.builder.load(place, align=1)

    def write(self, address: ir.Value, offset: ir.Value, value: ir.Value) -> None:
        place = self.builder.inttoptr(self.builder.add(address, offset), value.type.as_pointer())
        self.builder.store(value, place, align=1)

    def all_lanes(self, value: ir.Value, count: int) -> ir.Value:
        """A vector of `count` times the value."""
        kind = ir.VectorType(value.type, count)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(SINGLE, 0))
        zeros = ir.Constant(ir.VectorType(SINGLE, count), [0] * count)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def sum_of(self, vector: ir.Value) -> ir.Value:
        """All lanes added up, halves onto halves."""
        count = vector.type.count
        is_float = isinstance(vector.type.element, ir.FloatType)
        while count > 1:
            count //= 2
            low, high = (
                self.builder.shuffle_vector(
                    vector, vector, ir.Constant(ir.VectorType(SINGLE, count), list(range(first, first + count)))
                )
                for first in (0, count)
            )
            vector = self.builder.fadd(low, high, flags=FUSED) if is_float else self.builder.add(low, high)
        return self.builder.extract_element(vector, ir.Constant(SINGLE, 0))

    def loop(
        self, steps: ir.Value, sums: list[ir.Value], body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]]
    ) -> list[ir.Value]:
        """Run body(step, sums) → sums for each step, at least one."""
        builder = self.builder
        before, inside = builder.block, builder.append_basic_block("step")
        after = builder.append_basic_block("done")
        builder.branch(inside)
        builder.position_at_end(inside)
        step = builder.phi(WORD)
        step.add_incoming(self.whole(0), before)
        running = [builder.phi(each.type) for each in sums]
        for phi, start in zip(running, sums, strict=True):
            phi.add_incoming(start, before)
        result = body(step, running)
        following = builder.add(step, self.whole(1))
        step.add_incoming(following, builder.block)
        for phi, value in zip(running, result, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, steps), inside, after)
        builder.position_at_end(after)
        return result


@intrinsic
def int8_tile(
    typing: Any, rows: Any, count: Any, values: Any, width: Any, x: Any, x_stride: Any, corrections: Any, out: Any,
    out_stride: Any,
) -> Any:  # fmt: skip
    """`rows` rows of int8 weights by `count` rows of activations, both literal. All else: addresses, strides in bytes.

    values: rows of `width` each, a multiple of INT8_STEP; x: int8 rows; corrections: int32 [count], 128 Σ x of each.
    Writes int32 sums: out[r * out_stride + 4 w]. VNNI multiplies unsigned by signed bytes, so 128 is added to each
    weight, and what that adds to a sum is taken off at the end.
    """
    if not all(isinstance(each, types.IntegerLiteral) for each in (rows, count)):
        return None
    signature = types.void(rows, count, *[types.int64] * 7)
    return signature, _int8_code(rows.literal_value, count.literal_value)


def _int8_code(rows: int, count: int) -> Generate:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        values, width, x, x_stride, corrections, out, out_stride = args[2:]
        add_products = _vnni(builder)
        signs = ir.Constant(ir.VectorType(BYTE, INT8_STEP), [0x80 - 0x100] * INT8_STEP)

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            at = builder.mul(step, code.whole(INT8_STEP))
            bytes_kind = ir.VectorType(BYTE, INT8_STEP)
            xs = [
                builder.bitcast(code.read(x, builder.add(at, builder.mul(x_stride, code.whole(r))), bytes_kind), SUMS)
                for r in range(count)
            ]
            result = []
            for w in range(rows):
                place = builder.add(at, builder.mul(width, code.whole(w)))
                weights = builder.xor(code.read(values, place, bytes_kind), signs)
                weights = builder.bitcast(weights, SUMS)
                result += [builder.call(add_products, [sums[w * count + r], weights, xs[r]]) for r in range(count)]
            return result

        zero = ir.Constant(SUMS, [0] * LANES)
        sums = code.loop(builder.sdiv(width, code.whole(INT8_STEP)), [zero] * (rows * count), body)
        for r in range(count):
            correction = code.read(corrections, code.whole(4 * r), SINGLE)
            for w in range(rows):
                total = builder.sub(code.sum_of(sums[w * count + r]), correction)
                code.write(out, builder.add(builder.mul(out_stride, code.whole(r)), code.whole(4 * w)), total)
        return context.get_dummy_value()

    return generate


def _vnni(builder: ir.IRBuilder) -> ir.Function:
    name = "llvm.x86.avx512.vpdpbusd.512"
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(SUMS, [SUMS, SUMS, SUMS]), name)


TILE, PLANE, PLANES = 128, 32, 4  # of gradus.quantization.int4
BLOCK = 8
"""Rows of int4 weights that are worked on together: 64 bytes of each lie side by side, and their sums fit registers."""


@intrinsic
def int4_tile(
    typing: Any, planes: Any, rows: Any, count: Any, words: Any, words_stride: Any, scales: Any, tiles: Any, x: Any,
    x_stride: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """`rows` rows of int4 weights by `count` rows of activations, both literal. All else: addresses, strides in bytes.

    words: 64 bytes per weight row, one row after the other, for each tile of 128 columns. scales: float32 [groups,
    BLOCK], a group being `planes` planes of 32 columns. x: float32 rows of 128 values per tile.
    Adds to float32 out[r * out_stride + 4 w] the sum over groups of scale Σ q x. planes: literal, too.
    """
    if not all(isinstance(each, types.IntegerLiteral) for each in (planes, rows, count)):
        return None
    signature = types.void(planes, rows, count, *[types.int64] * 8)
    return signature, _int4_code(planes.literal_value, rows.literal_value, count.literal_value)


def _int4_code(planes: int, rows: int, count: int) -> Generate:
    wide, integers, words_kind = (ir.VectorType(kind, PLANE) for kind in (FLOAT, SINGLE, HALF))
    groups = PLANES // planes

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        words, words_stride, scales, tiles, x, x_stride, out, out_stride = args[3:]

        def values_of(word: ir.Value, plane: int) -> ir.Value:
            shifted = builder.lshr(word, ir.Constant(words_kind, [4 * plane] * PLANE)) if plane else word
            values = builder.and_(shifted, ir.Constant(words_kind, [15] * PLANE))
            return builder.sitofp(builder.zext(values, integers), wide)

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            result = list(sums)
            start, scale_row = builder.mul(step, words_stride), builder.mul(step, code.whole(4 * BLOCK * groups))
            xs = builder.add(x, builder.mul(step, code.whole(4 * TILE)))
            for w in range(rows):
                word = code.read(words, builder.add(start, code.whole(64 * w)), words_kind)
                for group in range(groups):
                    place = builder.add(scale_row, code.whole(4 * (group * BLOCK + w)))
                    scale = code.all_lanes(code.read(scales, place, FLOAT), PLANE)
                    values = [values_of(word, group * planes + each) for each in range(planes)]
                    for r in range(count):
                        part = ir.Constant(wide, [0.0] * PLANE)
                        for each, value in enumerate(values):
                            at = code.whole(4 * PLANE * (group * planes + each))
                            at = builder.add(at, builder.mul(x_stride, code.whole(r)))
                            product = builder.fmul(value, code.read(xs, at, wide), flags=FUSED)
                            part = builder.fadd(part, product, flags=FUSED) if each else product
                        scaled = builder.fmul(part, scale, flags=FUSED)
                        result[w * count + r] = builder.fadd(result[w * count + r], scaled, flags=FUSED)
            return result

        sums = code.loop(tiles, [ir.Constant(wide, [0.0] * PLANE)] * (rows * count), body)
        for w in range(rows):
            for r in range(count):
                at = builder.add(builder.mul(out_stride, code.whole(r)), code.whole(4 * w))
                total = builder.fadd(code.read(out, at, FLOAT), code.sum_of(sums[w * count + r]), flags=FUSED)
                code.write(out, at, total)
        return context.get_dummy_value()

    return generate
