"""A block of each GGUF format as vectors of floats: the loads, shifts and masks that unpack it in registers.

Every format is a scale times an integer, plus an offset in some of them, with these shared by 16 or 32 neighbors. A
format's function here reads one block and returns all of its weights in the order of columns, LANES to a vector. The
layouts are those of `gradus.quantization.gguf`, which is the reference: the weights are equal to the bit, where the
caller allows no fused operations.
"""

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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
    _rounded,
    _widened_half,
)
from gradus.quantization.gguf import FORMATS

WIDE = ir.VectorType(FLOAT, LANES)
CHAINS = 4  # independent sums


class Block(Code):
    """One block at an address, with the pieces that formats consist of. flags: of floating-point operations."""

    def __init__(self, builder: ir.IRBuilder, at: ir.Value, flags: tuple[str, ...]) -> None:
        super().__init__(builder)
        self.at, self.flags = at, flags

    def half(self, offset: int) -> ir.Value:
        """The float16 at a byte of the block, in all lanes."""
        bits = self.all_lanes(self.read(self.at, self.whole(offset), HALF), LANES)
        if WIDENS_HALVES:
            return self.builder.fpext(self.builder.bitcast(bits, ir.VectorType(ir.HalfType(), LANES)), WIDE)
        return _widened_half(self.builder, self.builder.zext(bits, SUMS), WIDE)

    def bytes(self, offset: int, signed: bool = False) -> ir.Value:
        """LANES bytes as integers of 32 bits."""
        found = self.read(self.at, self.whole(offset), ir.VectorType(BYTE, LANES))
        return self.builder.sext(found, SUMS) if signed else self.builder.zext(found, SUMS)

    def bits(self, vector: ir.Value, first: int, mask: int, to: int = 0) -> ir.Value:
        """The bits of each lane from `first` on, as many as `mask` has, moved to bit `to`."""
        shifted = self.builder.lshr(vector, _all(first)) if first else vector
        found = self.builder.and_(shifted, _all(mask))
        return self.builder.shl(found, _all(to)) if to else found

    def nibbles(self, offset: int) -> list[ir.Value]:
        """The lower halves of LANES bytes, and the upper halves."""
        found = self.bytes(offset)
        return [self.bits(found, 0, 15), self.builder.lshr(found, _all(4))]

    def fifth(self, offset: int) -> list[ir.Value]:
        """The bits of the 32-bit word at a byte, LANES and LANES, each as the fifth bit of an integer."""
        word = self.all_lanes(self.read(self.at, self.whole(offset), SINGLE), LANES)
        parts = []
        for first in (0, LANES):
            places = ir.Constant(SUMS, list(range(first, first + LANES)))
            parts.append(self.builder.shl(self.builder.and_(self.builder.lshr(word, places), _all(1)), _all(4)))
        return parts

    def weights(self, values: ir.Value, scale: ir.Value, *, less: int = 0, offset: ir.Value | None = None) -> ir.Value:
        """scale (values - less) + offset."""
        values = self.builder.sub(values, _all(less)) if less else values
        found = self.builder.fmul(self.builder.sitofp(values, WIDE), scale, flags=self.flags)
        return found if offset is None else self.builder.fadd(found, offset, flags=self.flags)

    def sixes(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """The scales and the offsets of a K-block's 8 groups, each in all lanes.

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

    def _spread(self, words: tuple[ir.Value, ir.Value], factor: ir.Value) -> list[ir.Value]:
        builder, pair = self.builder, ir.VectorType(SINGLE, 2)
        both = ir.Constant(pair, ir.Undefined)
        for i, word in enumerate(words):
            both = builder.insert_element(both, word, ir.Constant(SINGLE, i))
        return self.spread(
            builder.zext(builder.bitcast(both, ir.VectorType(BYTE, 8)), ir.VectorType(SINGLE, 8)), factor
        )

    def spread(self, integers: ir.Value, factor: ir.Value) -> list[ir.Value]:
        """Each of some integers times `factor`, in all lanes."""
        builder, count = self.builder, integers.type.count
        some = builder.shuffle_vector(factor, factor, ir.Constant(ir.VectorType(SINGLE, count), list(range(count))))
        floats = builder.fmul(builder.sitofp(integers, ir.VectorType(FLOAT, count)), some)
        return [builder.shuffle_vector(floats, floats, ir.Constant(SUMS, [i] * LANES)) for i in range(count)]


def _all(value: int) -> ir.Constant:
    return ir.Constant(SUMS, [value] * LANES)


# -- the formats -------------------------------------------------------------------------------------------------------


def _q4_0(block: Block) -> Iterator[ir.Value]:
    scale = block.half(0)
    for values in block.nibbles(2):
        yield block.weights(values, scale, less=8)


def _q4_1(block: Block) -> Iterator[ir.Value]:
    scale, offset = block.half(0), block.half(2)
    for values in block.nibbles(4):
        yield block.weights(values, scale, offset=offset)


def _q5_0(block: Block) -> Iterator[ir.Value]:
    scale = block.half(0)
    for values, high in zip(block.nibbles(6), block.fifth(2), strict=True):
        yield block.weights(block.builder.or_(values, high), scale, less=16)


def _q5_1(block: Block) -> Iterator[ir.Value]:
    scale, offset = block.half(0), block.half(2)
    for values, high in zip(block.nibbles(8), block.fifth(4), strict=True):
        yield block.weights(block.builder.or_(values, high), scale, offset=offset)


def _q8_0(block: Block) -> Iterator[ir.Value]:
    scale = block.half(0)
    for first in (2, 2 + LANES):
        yield block.weights(block.bytes(first, signed=True), scale)


def _q4_k(block: Block) -> Iterator[ir.Value]:
    scales, offsets = block.sixes()
    for pair in range(4):  # 32 bytes hold two groups
        low, high = block.nibbles(16 + 32 * pair), block.nibbles(32 + 32 * pair)
        for half in range(2):
            group = 2 * pair + half
            for values in (low[half], high[half]):
                yield block.weights(values, scales[group], offset=offsets[group])


def _q5_k(block: Block) -> Iterator[ir.Value]:
    scales, offsets = block.sixes()
    fifths = [block.bytes(16), block.bytes(16 + LANES)]
    for pair in range(4):
        low, high = block.nibbles(48 + 32 * pair), block.nibbles(64 + 32 * pair)
        for half in range(2):
            group = 2 * pair + half
            for values, bits in ((low[half], fifths[0]), (high[half], fifths[1])):
                whole = block.builder.or_(values, block.bits(bits, group, 1, to=4))
                yield block.weights(whole, scales[group], offset=offsets[group])


def _q6_k(block: Block) -> Iterator[ir.Value]:
    scales = block.spread(block.bytes(192, signed=True), block.half(208))
    for half in range(2):
        lower = [block.nibbles(64 * half + LANES * i) for i in range(4)]
        upper = [block.bytes(128 + 32 * half + LANES * i) for i in range(2)]
        for quarter in range(4):
            for i in range(2):
                values = lower[2 * (quarter % 2) + i][quarter // 2]
                whole = block.builder.or_(values, block.bits(upper[i], 2 * quarter, 3, to=4))
                yield block.weights(whole, scales[8 * half + 2 * quarter + i], less=32)


UNPACK: dict[str, Callable[[Block], Iterator[ir.Value]]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
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
            for i, weights in enumerate(unpack(block)):
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
            for i, weights in enumerate(unpack(Block(builder, builder.add(row, offset), ()))):
                place = builder.add(to, code.whole(size * LANES * i))
                code.write(out, place, _rounded(builder, weights) if narrow else weights)
            return sums

        code.loop(blocks, [], body)
        return context.get_dummy_value()

    return generate
