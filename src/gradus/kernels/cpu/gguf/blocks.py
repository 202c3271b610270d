"""A block of each GGUF format as vectors: the loads, shifts and masks that unpack it in registers.

Every format is a scale times an integer, plus an offset in some of them, with these shared by 16 or 32 neighbors. A
format's function here reads one block and returns its integers in the order of columns, COLUMNS to a vector, as bytes.
A product with rounded activations multiplies the bytes; for floats they are widened. The layouts are those of
`gradus.quantization.gguf`, which is the reference: widened weights are equal to the bit, where the caller allows no
fused operations.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradus.kernels.cpu.byte_products import NAME, sums_of_fours
from gradus.kernels.cpu.machine import LINE
from gradus.kernels.cpu.matrix import NAMES
from gradus.kernels.cpu.vectors import (
    AHEAD,
    BYTE,
    FLOAT,
    FUSED,
    HALF,
    LANES,
    SINGLE,
    SUMS,
    WIDENS_HALVES,
    Code,
    Generate,
    rounded,
    widened_half,
)
from gradus.quantization.gguf import FORMATS

WIDE = ir.VectorType(FLOAT, LANES)
COLUMNS = 32
INTEGERS = ir.VectorType(BYTE, COLUMNS)
CHAINS = 4  # independent sums


class Unpacked(NamedTuple):
    """A block's integers, i8 [COLUMNS] each; scales and offsets: float32 vectors, one for each `group` columns, or
    all lanes alike.

    A weight is scale (integer - less) + offset. signed: whether integers are; else they are less than 32.
    """

    integers: list[ir.Value]
    scales: ir.Value
    offsets: ir.Value | None = None
    group: int = COLUMNS
    less: int = 0
    signed: bool = False


class Block(Code):
    """One block at an address, with the pieces that formats consist of. flags: of floating-point operations."""

    def __init__(self, builder: ir.IRBuilder, at: ir.Value, flags: tuple[str, ...]) -> None:
        super().__init__(builder)
        self.at, self.flags = at, flags

    def half(self, offset: int, count: int = 8) -> ir.Value:
        """The float16 at a byte of the block, in `count` lanes.

        Not in one: LLVM would convert it in the register of a sum, which each block would then wait for.
        """
        bits = self.all_lanes(self.read(self.at, self.whole(offset), HALF), count)
        wide = ir.VectorType(FLOAT, count)
        if WIDENS_HALVES:
            return self.builder.fpext(self.builder.bitcast(bits, ir.VectorType(ir.HalfType(), count)), wide)
        return widened_half(self.builder, self.builder.zext(bits, ir.VectorType(SINGLE, count)), wide)

    def half_power(self, offset: int, count: int = 8) -> ir.Value:
        """Half the power of two whose exponent, 127 more, is the byte at an offset, in `count` lanes; NaN for 255."""
        builder = self.builder
        exponent = builder.zext(self.read(self.at, self.whole(offset), BYTE), SINGLE)

        def word(value: int) -> ir.Constant:
            return ir.Constant(SINGLE, value)

        usual = builder.shl(builder.sub(exponent, word(1)), word(23))
        tiny = builder.shl(word(1 << 21), exponent)  # no float32 of full precision is as small
        bits = builder.select(builder.icmp_unsigned("<", exponent, word(2)), tiny, usual)
        bits = builder.select(builder.icmp_unsigned("==", exponent, word(255)), word(0x7FC00000), bits)
        return builder.bitcast(self.all_lanes(bits, count), ir.VectorType(FLOAT, count))

    def bytes(self, offset: int, count: int = COLUMNS) -> ir.Value:
        return self.read(self.at, self.whole(offset), ir.VectorType(BYTE, count))

    def bits(self, vector: ir.Value, first: int, mask: int, to: int = 0) -> ir.Value:
        """The bits of each byte from `first` on, as many as `mask` has, moved to bit `to`."""
        builder, kind = self.builder, vector.type

        def all_of(value: int) -> ir.Constant:
            return ir.Constant(kind, [value] * kind.count)

        found = builder.and_(self.shifted(vector, first), all_of(mask))
        return builder.shl(found, all_of(to)) if to else found

    def nibbles(self, vector: ir.Value) -> list[ir.Value]:
        """The lower halves of bytes, and the upper halves."""
        return [self.bits(vector, 0, 15), self.shifted(vector, 4)]

    def simple(self, offset: int) -> ir.Value:
        """The COLUMNS nibbles of 16 bytes, the lower ones first."""
        return self.joined(self.nibbles(self.bytes(offset, COLUMNS // 2)))

    def fifth(self, offset: int) -> ir.Value:
        """The bits of the 32-bit word at a byte, each as the fifth bit of an integer."""
        builder, four = self.builder, ir.VectorType(BYTE, 4)
        word = builder.bitcast(self.read(self.at, self.whole(offset), SINGLE), four)
        lanes = ir.Constant(ir.VectorType(SINGLE, COLUMNS), [column // 8 for column in range(COLUMNS)])
        spread = builder.shuffle_vector(word, word, lanes)
        masks = ir.Constant(INTEGERS, [1 << column % 8 for column in range(COLUMNS)])
        found = builder.icmp_signed("!=", builder.and_(spread, masks), ir.Constant(INTEGERS, [0] * COLUMNS))
        return builder.select(found, ir.Constant(INTEGERS, [16] * COLUMNS), ir.Constant(INTEGERS, [0] * COLUMNS))

    def sixes(self) -> tuple[ir.Value, ir.Value]:
        """The scales and the offsets of a K-block's 8 groups.

        12 bytes from byte 4 on hold 16 integers of 6 bits, under one float16 for the scales and one for the minima.
        """
        builder, word = self.builder, [self.read(self.at, self.whole(4 + 4 * i), SINGLE) for i in range(3)]

        def masked(value: ir.Value, shift: int, mask: int, to: int = 0) -> ir.Value:
            shifted = builder.lshr(value, ir.Constant(SINGLE, shift))
            return builder.shl(builder.and_(shifted, ir.Constant(SINGLE, mask)), ir.Constant(SINGLE, to))

        scales = (
            masked(word[0], 0, 0x3F3F3F3F),
            builder.or_(masked(word[2], 0, 0x0F0F0F0F), masked(word[0], 6, 0x03030303, 4)),
        )
        minima = (
            masked(word[1], 0, 0x3F3F3F3F),
            builder.or_(masked(word[2], 4, 0x0F0F0F0F), masked(word[1], 6, 0x03030303, 4)),
        )
        return self._spread(scales, self.half(0)), self._spread(minima, builder.fneg(self.half(2)))

    def _spread(self, words: tuple[ir.Value, ir.Value], factor: ir.Value) -> ir.Value:
        """The 8 bytes of two words times `factor`."""
        builder, pair = self.builder, ir.VectorType(SINGLE, 2)
        both = ir.Constant(pair, ir.Undefined)
        for i, word in enumerate(words):
            both = builder.insert_element(both, word, ir.Constant(SINGLE, i))
        integers = builder.zext(builder.bitcast(both, ir.VectorType(BYTE, 8)), ir.VectorType(SINGLE, 8))
        return builder.fmul(builder.sitofp(integers, ir.VectorType(FLOAT, 8)), factor)

    def floats(self, found: Unpacked) -> Iterator[ir.Value]:
        """The weights of a block, LANES at a time."""
        builder = self.builder
        for first in range(0, COLUMNS * len(found.integers), LANES):
            few = self.part(found.integers[first // COLUMNS], first % COLUMNS, LANES)
            values = builder.sext(few, SUMS) if found.signed else builder.zext(few, SUMS)
            if found.less:
                values = builder.sub(values, ir.Constant(SUMS, [found.less] * LANES))
            scale = self.in_all(found.scales, first // found.group, LANES)
            weights = builder.fmul(builder.sitofp(values, WIDE), scale, flags=self.flags)
            if found.offsets is not None:
                offset = self.in_all(found.offsets, first // found.group, LANES)
                weights = builder.fadd(weights, offset, flags=self.flags)
            yield weights


# -- the formats -------------------------------------------------------------------------------------------------------


def _q4_0(block: Block) -> Unpacked:
    return Unpacked([block.simple(2)], block.half(0), less=8)


def _q4_1(block: Block) -> Unpacked:
    return Unpacked([block.simple(4)], block.half(0), block.half(2))


def _q5_0(block: Block) -> Unpacked:
    return Unpacked([block.builder.or_(block.simple(6), block.fifth(2))], block.half(0), less=16)


def _q5_1(block: Block) -> Unpacked:
    return Unpacked([block.builder.or_(block.simple(8), block.fifth(4))], block.half(0), block.half(2))


def _q8_0(block: Block) -> Unpacked:
    return Unpacked([block.bytes(2)], block.half(0), signed=True)


def _q4_k(block: Block) -> Unpacked:
    scales, offsets = block.sixes()
    integers = [half for pair in range(4) for half in block.nibbles(block.bytes(16 + COLUMNS * pair))]
    return Unpacked(integers, scales, offsets)


def _q5_k(block: Block) -> Unpacked:
    scales, offsets = block.sixes()
    fifths = block.bytes(16)
    lower = [half for pair in range(4) for half in block.nibbles(block.bytes(48 + COLUMNS * pair))]
    integers = [block.builder.or_(each, block.bits(fifths, group, 1, to=4)) for group, each in enumerate(lower)]
    return Unpacked(integers, scales, offsets)


def _q6_k(block: Block) -> Unpacked:
    builder, sixteen = block.builder, ir.VectorType(FLOAT, 16)
    scales = builder.sitofp(builder.sext(block.bytes(192, 16), ir.VectorType(SINGLE, 16)), sixteen)
    integers = []
    for half in range(2):
        lower = [block.nibbles(block.bytes(64 * half + COLUMNS * i)) for i in range(2)]
        upper = block.bytes(128 + COLUMNS * half)
        for quarter in range(4):
            own = block.bits(upper, 2 * quarter, 3, to=4)
            whole = builder.or_(lower[quarter % 2][quarter // 2], own)
            integers.append(builder.sub(whole, ir.Constant(INTEGERS, [32] * COLUMNS)))
    return Unpacked(integers, builder.fmul(scales, block.half(208, 16)), group=16, signed=True)


def _mxfp4(block: Block) -> Unpacked:
    """The floats of 4 bits are multiples of a half up to 6: integers up to 12, under half the block's power of two."""
    builder = block.builder

    def all_of(value: int) -> ir.Constant:
        return ir.Constant(INTEGERS, [value] * COLUMNS)

    codes = block.simple(1)
    small, mantissa = block.bits(codes, 0, 7), builder.or_(block.bits(codes, 0, 1), all_of(2))
    doubled = builder.shl(mantissa, all_of(1))
    large = builder.select(builder.icmp_unsigned(">=", small, all_of(6)), builder.shl(mantissa, all_of(2)), doubled)
    size = builder.select(builder.icmp_unsigned(">=", small, all_of(4)), large, small)
    negative = builder.icmp_unsigned(">=", codes, all_of(8))
    return Unpacked([builder.select(negative, builder.neg(size), size)], block.half_power(0), signed=True)


UNPACK: dict[str, Callable[[Block], Unpacked]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "mxfp4": _mxfp4,
}


# -- loops over the blocks of a row ------------------------------------------------------------------------------------


@intrinsic
def block_dot(typing: Any, number: Any, row: Any, blocks: Any, x: Any) -> Any:
    """The dot product of a row of blocks with float32 activations. number: literal, a format's place in NAMES. row, x:
    addresses. blocks: their count, at least one."""
    if not isinstance(number, types.IntegerLiteral):
        return None
    return types.float32(number, *[types.int64] * 3), _dot_code(NAMES[number.literal_value])


def _dot_code(name: str) -> Generate:
    form, unpack = FORMATS[name], UNPACK[name]

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        row, blocks, x = args[1:]

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            sums, offset = list(sums), builder.mul(step, code.whole(form.size))
            for line in range(0, form.size, LINE):
                code.fetch_line(row, builder.add(offset, code.whole(line)), AHEAD)
            xs = builder.mul(step, code.whole(4 * form.values))
            block = Block(builder, builder.add(row, offset), FUSED)
            for i, weights in enumerate(block.floats(unpack(block))):
                activations = code.read(x, builder.add(xs, code.whole(4 * LANES * i)), WIDE)
                product = builder.fmul(weights, activations, flags=FUSED)
                sums[i % CHAINS] = builder.fadd(sums[i % CHAINS], product, flags=FUSED)
            return sums

        total, *others = code.loop(blocks, [ir.Constant(WIDE, [0.0] * LANES)] * CHAINS, body)
        for other in others:
            total = builder.fadd(total, other, flags=FUSED)
        return code.sum_of(total)

    return generate


@intrinsic
def block_widen(typing: Any, number: Any, narrow: Any, row: Any, blocks: Any, out: Any) -> Any:
    """Write a row's weights as float32, or as bfloat16 if `narrow` (literal) is 1. Others: as in `block_dot`."""
    if not all(isinstance(each, types.IntegerLiteral) for each in (number, narrow)):
        return None
    generate = _widen_code(NAMES[number.literal_value], narrow.literal_value)
    return types.void(number, narrow, *[types.int64] * 3), generate


def _widen_code(name: str, narrow: int) -> Generate:
    form, unpack, size = FORMATS[name], UNPACK[name], 2 if narrow else 4

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        row, blocks, out = args[2:]

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(step, code.whole(form.size))
            for line in range(0, form.size, LINE):
                code.fetch_line(row, builder.add(offset, code.whole(line)), AHEAD)
            to = builder.mul(step, code.whole(size * form.values))
            block = Block(builder, builder.add(row, offset), ())
            for i, weights in enumerate(block.floats(unpack(block))):
                place = builder.add(to, code.whole(size * LANES * i))
                code.write(out, place, rounded(builder, weights) if narrow else weights)
            return sums

        code.loop(blocks, [], body)
        return context.get_dummy_value()

    return generate


@intrinsic
def block_dot_bytes(typing: Any, number: Any, row: Any, blocks: Any, x: Any, scales: Any, sums: Any) -> Any:
    """The dot product of a row of blocks with activations rounded to int8, COLUMNS of them with one scale.

    number, row, blocks: as in `block_dot`. x: the address of int8; scales, sums: of float32, the scale of each COLUMNS
    activations and their sum.
    """
    if NAME is None or not isinstance(number, types.IntegerLiteral):
        return None
    return types.float32(number, *[types.int64] * 5), _bytes_code(NAMES[number.literal_value], NAME)


def _bytes_code(name: str, product: str) -> Generate:
    form, unpack = FORMATS[name], UNPACK[name]
    planes, eight = form.values // COLUMNS, ir.VectorType(FLOAT, 8)
    some = ir.VectorType(FLOAT, planes)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        row, blocks, x, scales, sums = args[1:]

        def body(step: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            *totals, constant = totals
            offset = builder.mul(step, code.whole(form.size))
            for line in range(0, form.size, LINE):
                code.fetch_line(row, builder.add(offset, code.whole(line)), AHEAD)
            first = builder.mul(step, code.whole(4 * planes))
            found = unpack(Block(builder, builder.add(row, offset), FUSED))
            x_scales, x_sums = (code.read(each, first, some) for each in (scales, sums))
            for plane, weights in enumerate(found.integers):
                at = builder.add(builder.mul(step, code.whole(form.values)), code.whole(COLUMNS * plane))
                whole = sums_of_fours(code, weights, code.read(x, at, INTEGERS), found.signed, product)
                scale = builder.fmul(_scales(code, found, plane), code.in_all(x_scales, plane, 8), flags=FUSED)
                scaled, chain = builder.fmul(builder.sitofp(whole, eight), scale, flags=FUSED), plane % len(totals)
                totals[chain] = builder.fadd(totals[chain], scaled, flags=FUSED)
            offsets = found.offsets
            if found.less:
                less = ir.Constant(found.scales.type, [-float(found.less)] * found.scales.type.count)
                offsets = builder.fmul(found.scales, less, flags=FUSED)
            if offsets is not None:
                shared = builder.fmul(code.part(offsets, 0, planes), x_sums, flags=FUSED)
                constant = builder.fadd(constant, shared, flags=FUSED)
            return [*totals, constant]

        zeros = [ir.Constant(eight, [0.0] * 8)] * min(CHAINS, planes) + [ir.Constant(some, [0.0] * planes)]
        first, *others = [code.sum_of(each) for each in code.loop(blocks, zeros, body)]
        for other in others:
            first = builder.fadd(first, other, flags=FUSED)
        return first

    return generate


def _scales(code: Code, found: Unpacked, plane: int) -> ir.Value:
    """The scales of a plane's sums of four columns, float32 [8]."""
    lanes = [(COLUMNS * plane + 4 * lane) // found.group for lane in range(8)]
    return code.builder.shuffle_vector(found.scales, found.scales, ir.Constant(ir.VectorType(SINGLE, 8), lanes))
