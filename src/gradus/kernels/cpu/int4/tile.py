"""Loops over int4 weights in lanes, generated as LLVM code: LANES weight rows, times 1 to 8 rows of activations.

A lane of a word has four columns of its row in the lower halves of its bytes, and four of the next plane in the upper
halves. What is multiplied with them, and how many columns at once, depends on the processor and on how activations are
rounded: floats one by one, pairs of bfloat16 or int16, or bytes in fours.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradus.kernels.cpu.byte_products import NAME, SMALL_PRODUCTS
from gradus.kernels.cpu.vectors import (
    BYTE,
    FLOAT,
    FUSED,
    HALF,
    HAS_AVX512,
    LANES,
    SECOND,
    SINGLE,
    SUMS,
    WIDENS_HALVES,
    Code,
    Generate,
    rounded,
    widened_half,
)

PLANE = 32  # as in gradus.quantization.linear
WORDS = PLANE // 4  # of a lane, for two planes
COLUMNS = 0, 2, 1, 3
"""The column, of four, that each byte of a word holds: neighbors lie 16 bits apart."""

WORDS_AHEAD = 8192
"""Bytes by which words are prefetched before they are read, to cover the latency of memory.

Into the second cache: a step asks for eight lines at once, and the first cache has too few places for lines on their
way from memory: arithmetic waited for them.
"""

FLOATS, BFLOATS, SHORTS, BYTES = range(4)
"""Types of the activations that int4 is multiplied with."""

SIZES = {FLOATS: 4, BFLOATS: 2, SHORTS: 2, BYTES: 1}

BIAS = 128.0
"""The value by which a bfloat16 with a nibble in its lower bits exceeds the nibble."""


@intrinsic
def int4_tile(
    typing: Any, kind: Any, count: Any, halves: Any, words: Any, pairs: Any, planes: Any, steps: Any, x: Any,
    x_stride: Any, sums: Any, x_scales: Any, sums_stride: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Multiply LANES rows of int4 weights, one per lane, by `count` (literal) rows of activations. Others: addresses,
    strides in bytes.

    words: from `gradus.quantization.int4.to_lanes`, 1 KB per tile of 128 columns; a step is two planes of a
    tile, 64 columns side by side. pairs: LANES times 4 bytes for each group of 2^planes planes: float16 if `halves`
    is 1, else bfloat16. x: rows of 64 values per step, zeros behind the last, in the type `kind` (literal). FLOATS:
    float32. BFLOATS: bfloat16, which a processor with HAS_BF16 multiplies in pairs; `halves` is then 0. SHORTS: int16,
    which one with BY_PAIRS multiplies in pairs. BYTES: int8, the second and third of four exchanged. sums: float32
    rows, the sum of each 32 values; x_scales: the scales of int16 and int8, likewise. Writes float32
    out[r * out_stride : … + 4 LANES].
    """
    if not all(isinstance(each, types.IntegerLiteral) for each in (kind, count)):
        return None
    signature = types.void(kind, count, *[types.int64] * 12)
    return signature, _int4_code(kind.literal_value, count.literal_value)


class Multiply(NamedTuple):
    """How words are multiplied with one type of activations.

    start: the vectors that add up a row's products of one plane. add(sums, word, x, places): the sums of all rows, with
    the products of four columns added; the word's lanes have them in the lower halves of their bytes, and places are
    where the rows' activations lie in x. total(sums): of one row, as vectors of floats [LANES] yet to be added.
    """

    start: list[ir.Value]
    add: Callable[[list[ir.Value], ir.Value, ir.Value, list[ir.Value]], list[ir.Value]]
    total: Callable[[list[ir.Value]], list[ir.Value]]


def _int4_code(kind: int, count: int, product: str | None = NAME) -> Generate:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        Loop(Code(builder), kind, count, product, args[2:]).generate()
        return context.get_dummy_value()

    return generate


class Loop:
    """Generates the code of `int4_tile`, for a type and a number of rows of activations. args: its parameters from
    `halves` on."""

    def __init__(self, code: Code, kind: int, count: int, product: str | None, args: list[ir.Value]) -> None:
        self.code, self.builder, self.kind, self.count, self.size = code, code.builder, kind, count, SIZES[kind]
        # without AVX-512, more sums would not stay in registers
        self.lanes = LANES if HAS_AVX512 or count <= 2 else LANES // 2
        halves, self.words, self.pairs, self.planes, self.steps, self.x, self.x_stride, *others = args
        self.plane_sums, self.x_scales, self.sums_stride, self.out, self.out_stride = others
        self.are_halves = None if kind == BFLOATS else self.builder.icmp_signed("!=", halves, code.whole(0))
        self.own_pairs = self.builder.icmp_signed("==", self.planes, code.whole(0))  # whether each plane has its own
        self.multiply = _multiply(code, kind, self.lanes, count, product)
        self.vectors = len(self.multiply.start)
        # planes whose sums are in registers at once, and words to an iteration: LLVM loads all activations of an
        # iteration first, and would spill more
        self.at_once: list[tuple[int, ...]] = [(0, 1)] if count <= 2 else [(0,), (1,)]
        self.unroll = 2 if count <= 2 else 1

    def generate(self) -> None:
        zero = ir.Constant(ir.VectorType(FLOAT, self.lanes), [0.0] * self.lanes)
        for lane in range(0, LANES, self.lanes):
            totals = self.code.loop(self.steps, [zero] * self.count, partial(self._step, lane))
            for r, total in enumerate(totals):
                place = self.builder.mul(self.out_stride, self.code.whole(r))
                self.code.write(self.out, self.builder.add(place, self.code.whole(4 * lane)), total)

    def _step(self, lane: int, step: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """Add the products of a step's two planes, with the weight rows from `lane` on."""
        if lane == 0:
            self.code.fetch_ahead(self.words, step, 4 * LANES * WORDS, WORDS_AHEAD, SECOND)
        first = self.builder.mul(step, self.code.whole(2))
        pair = self._decoded(first, lane)
        for some in self.at_once:
            for upper, parts in zip(some, self._sums(some, step, lane), strict=True):
                plane = self.builder.add(first, self.code.whole(upper))
                if upper:
                    pair = self.code.either(self.own_pairs, partial(self._decoded, plane, lane), pair)
                totals = [self._added(total, r, plane, pair, parts) for r, total in enumerate(totals)]
        return totals

    def _sums(self, some: tuple[int, ...], step: ir.Value, lane: int) -> list[list[ir.Value]]:
        """Add up the products of some of a step's planes, in `vectors` vectors for each row of activations."""
        builder, code, mine = self.builder, self.code, self.count * self.vectors
        first = builder.add(self.words, builder.mul(step, code.whole(4 * LANES * WORDS)))
        begin = builder.add(self.x, builder.mul(step, code.whole(2 * PLANE * self.size)))

        def columns(few: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
            start = builder.mul(few, code.whole(4 * LANES * self.unroll))
            xs = builder.mul(few, code.whole(4 * self.size * self.unroll))
            parts = list(parts)
            for i in range(self.unroll):
                place = builder.add(start, code.whole(4 * (LANES * i + lane)))
                word = code.read(first, place, ir.VectorType(SINGLE, self.lanes))
                for number, plane in enumerate(some):
                    at = builder.add(xs, code.whole(self.size * (4 * i + PLANE * plane)))
                    places = [builder.add(at, builder.mul(self.x_stride, code.whole(r))) for r in range(self.count)]
                    own = slice(number * mine, (number + 1) * mine)
                    parts[own] = self.multiply.add(parts[own], code.shifted(word, 4 * plane), begin, places)
            return parts

        turns = WORDS // self.unroll
        turn_count = code.whole(turns) if self.count <= 2 else code.unknown(turns)
        found = code.loop(turn_count, self.multiply.start * self.count * len(some), columns)
        return [found[i * mine : (i + 1) * mine] for i in range(len(some))]

    def _decoded(self, plane: ir.Value, lane: int) -> tuple[ir.Value, ...]:
        """The scales and offsets of a plane's weights."""
        builder, wide = self.builder, ir.VectorType(FLOAT, self.lanes)
        pair = builder.mul(builder.ashr(plane, self.planes), self.code.whole(4 * LANES))
        pair = builder.add(pair, self.code.whole(4 * lane))
        scales, offsets = _decoded(self.code, self.pairs, pair, self.lanes, self.are_halves)
        if self.kind == BFLOATS:
            bias = builder.fmul(scales, ir.Constant(wide, [BIAS] * self.lanes), flags=FUSED)
            offsets = builder.fsub(offsets, bias, flags=FUSED)
        return scales, offsets

    def _added(
        self, total: ir.Value, r: int, plane: ir.Value, pair: tuple[ir.Value, ...], parts: list[ir.Value]
    ) -> ir.Value:
        """Add a plane's products with row r of activations."""
        builder, code, (scales, offsets) = self.builder, self.code, pair
        at = builder.add(builder.mul(self.sums_stride, code.whole(r)), builder.mul(plane, code.whole(4)))
        plane_sum = code.all_lanes(code.read(self.plane_sums, at, FLOAT), self.lanes)
        total = builder.fadd(total, builder.fmul(offsets, plane_sum, flags=FUSED), flags=FUSED)
        for each in self.multiply.total(parts[r * self.vectors : (r + 1) * self.vectors]):
            if self.kind in (SHORTS, BYTES):
                x_scale = code.all_lanes(code.read(self.x_scales, at, FLOAT), self.lanes)
                each = builder.fmul(each, x_scale, flags=FUSED)
            total = builder.fadd(total, builder.fmul(scales, each, flags=FUSED), flags=FUSED)
        return total


def _multiply(code: Code, kind: int, lanes: int, count: int, product: str | None) -> Multiply:
    chains = 2 if count <= 2 else 1  # independent sums
    if kind == BYTES:
        assert product is not None
        return _by_fours(code, lanes, product)
    if kind == SHORTS:
        return _by_pairs(code, lanes, chains, _pair_of_shorts(code, lanes), size=2, whole=True)
    if kind == BFLOATS:
        return _by_pairs(code, lanes, chains, _pair_of_bfloats(code), size=2)
    return _by_pairs(code, lanes, chains, _one_by_one(code, lanes), size=4)


def _by_fours(code: Code, lanes: int, product: str) -> Multiply:
    """Multiply four columns at once, exactly in integers."""
    builder, found = code.builder, SMALL_PRODUCTS[product]
    vectors, bytes_kind = lanes // found.lanes, ir.VectorType(BYTE, 4 * found.lanes)
    nibbles = ir.Constant(ir.VectorType(SINGLE, lanes), [0x0F0F0F0F] * lanes)

    def add(sums: list[ir.Value], word: ir.Value, x: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        masked = builder.and_(word, nibbles)
        weights = [builder.bitcast(code.part(masked, i * found.lanes, found.lanes), bytes_kind) for i in range(vectors)]
        result = []
        for r, place in enumerate(places):
            four = builder.bitcast(code.all_lanes(code.read(x, place, SINGLE), found.lanes), bytes_kind)
            for i, each in enumerate(weights):
                result.append(found.add(code, sums[r * vectors + i], each, four))
        return result

    def total(sums: list[ir.Value]) -> list[ir.Value]:
        whole = code.joined([found.total(code, each) for each in sums])
        return [builder.sitofp(whole, ir.VectorType(FLOAT, lanes))]

    return Multiply([found.start] * vectors, add, total)


AddPair = Callable[[list[ir.Value], ir.Value, ir.Value, list[ir.Value]], list[ir.Value]]
"""(sums, word, x, places) → the sums, one for each place, with the products of two columns added. The word's lowest
nibble and the one 16 bits higher are the columns' weights; at the places in x lie the columns' activations."""


def _by_pairs(code: Code, lanes: int, chains: int, add_pair: AddPair, size: int, whole: bool = False) -> Multiply:
    """Multiply four columns in two pairs. size: bytes of an activation. whole: whether sums are integers."""
    builder, wide = code.builder, ir.VectorType(FLOAT, lanes)

    def add(sums: list[ir.Value], word: ir.Value, x: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        sums = list(sums)
        for pair in range(2):
            mine = slice(pair % chains, None, chains)
            at = [builder.add(place, code.whole(2 * size * pair)) for place in places]
            sums[mine] = add_pair(sums[mine], code.shifted(word, 8 * pair), x, at)
        return sums

    def total(sums: list[ir.Value]) -> list[ir.Value]:
        return [builder.sitofp(reduce(builder.add, sums), wide)] if whole else sums

    zero = ir.Constant(ir.VectorType(SINGLE, lanes), [0] * lanes) if whole else ir.Constant(wide, [0.0] * lanes)
    return Multiply([zero] * chains, add, total)


def _pair_of_bfloats(code: Code) -> AddPair:
    """Multiply two columns at once. 0x4300 is 128 in bfloat16, and its lowest bit is worth one, so a nibble placed
    there makes 128 + q."""
    builder, wide = code.builder, ir.VectorType(FLOAT, LANES)
    function = code.named("llvm.x86.avx512bf16.dpbf16ps.512", wide, wide, SUMS, SUMS)
    nibbles, biased = (ir.Constant(SUMS, [bits] * LANES) for bits in (0x000F000F, 0x43004300))

    def add_pair(sums: list[ir.Value], word: ir.Value, x: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        weights = builder.or_(builder.and_(word, nibbles), biased)
        return [
            builder.call(function, [total, weights, code.all_lanes(code.read(x, place, SINGLE), LANES)])
            for total, place in zip(sums, places, strict=True)
        ]

    return add_pair


def _pair_of_shorts(code: Code, lanes: int) -> AddPair:
    """Multiply two columns at once, exactly: the sum of a plane's 32 products is at most 32 × 15 × 32767."""
    builder, eight, shorts = code.builder, ir.VectorType(SINGLE, 8), ir.VectorType(HALF, 16)
    function = code.named("llvm.x86.avx2.pmadd.wd", eight, shorts, shorts)
    nibbles = ir.Constant(ir.VectorType(SINGLE, lanes), [0x000F000F] * lanes)

    def add_pair(sums: list[ir.Value], word: ir.Value, x: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        masked = builder.and_(word, nibbles)
        weights = [builder.bitcast(code.part(masked, first, 8), shorts) for first in range(0, lanes, 8)]
        result = []
        for total, place in zip(sums, places, strict=True):
            both = builder.bitcast(code.all_lanes(code.read(x, place, SINGLE), 8), shorts)
            products = code.joined([builder.call(function, [each, both]) for each in weights])
            result.append(builder.add(total, products))
        return result

    return add_pair


def _one_by_one(code: Code, lanes: int) -> AddPair:
    """Multiply one column after the other: a nibble's float comes from a table in a register, or is converted."""
    builder, wide = code.builder, ir.VectorType(FLOAT, lanes)
    nibble, upper = (ir.Constant(ir.VectorType(SINGLE, lanes), [value] * lanes) for value in (15, 16))

    def numbers(word: ir.Value) -> ir.Value:
        if not HAS_AVX512:
            return builder.sitofp(builder.and_(word, nibble), wide)
        # uses only the lowest four bits of a lane
        permute = code.named("llvm.x86.avx512.permvar.sf.512", wide, wide, SUMS)
        return builder.call(permute, [ir.Constant(wide, [float(value) for value in range(LANES)]), word])

    def add_pair(sums: list[ir.Value], word: ir.Value, x: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        for column, weights in enumerate((numbers(word), numbers(builder.lshr(word, upper)))):
            activations = [
                code.all_lanes(code.read(x, builder.add(place, code.whole(4 * column)), FLOAT), lanes)
                for place in places
            ]
            products = [builder.fmul(weights, each, flags=FUSED) for each in activations]
            sums = [builder.fadd(*both, flags=FUSED) for both in zip(sums, products, strict=True)]
        return sums

    return add_pair


@intrinsic
def int4_widen(
    typing: Any, narrow: Any, halves: Any, words: Any, pairs: Any, plane: Any, out: Any, out_stride: Any
) -> Any:
    """Widen the weights of one plane of a tile, LANES rows of 32 columns.

    words, pairs: addresses of the tile's words and the group's pairs; `halves` as in `int4_tile`. Writes LANES values
    per column, out_stride bytes apart: float32, or bfloat16 if `narrow` (literal) is 1.
    """
    if not isinstance(narrow, types.IntegerLiteral):
        return None
    return types.void(narrow, *[types.int64] * 6), _widen_code(narrow.literal_value)


def _widen_code(narrow: int) -> Generate:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code, wide = Code(builder), ir.VectorType(FLOAT, LANES)
        halves, words, pairs, plane, out, out_stride = args[1:]
        are_halves = builder.icmp_signed("!=", halves, code.whole(0))
        scales, offsets = _decoded(code, pairs, code.whole(0), LANES, are_halves)
        first, shifts = _start_of(code, words, plane)

        def columns(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            word = builder.lshr(code.read(first, builder.mul(step, code.whole(4 * LANES)), SUMS), shifts)
            for byte, column in enumerate(COLUMNS):
                nibbles = builder.lshr(word, ir.Constant(SUMS, [8 * byte] * LANES))
                values = builder.sitofp(builder.and_(nibbles, ir.Constant(SUMS, [15] * LANES)), wide)
                weights = builder.fadd(builder.fmul(values, scales, flags=FUSED), offsets, flags=FUSED)
                number = builder.add(builder.mul(step, code.whole(4)), code.whole(column))
                place = builder.mul(number, out_stride)
                code.write(out, place, rounded(builder, weights) if narrow else weights)
            return sums

        code.loop(code.whole(WORDS), [], columns)
        return context.get_dummy_value()

    return generate


def _start_of(code: Code, tile: ir.Value, plane: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Find a plane in a tile: the address of its first words, and their shift in bits, in all lanes."""
    half = code.builder.lshr(plane, code.whole(1))
    shift = code.builder.mul(code.builder.and_(plane, code.whole(1)), code.whole(4))
    first = code.builder.add(tile, code.builder.mul(half, code.whole(4 * LANES * WORDS)))
    return first, code.all_lanes(code.builder.trunc(shift, SINGLE), LANES)


def _decoded(
    code: Code, pairs: ir.Value, offset: ir.Value, rows: int, are_halves: ir.Value | None
) -> tuple[ir.Value, ir.Value]:
    """Load scales and offsets of some rows as float32 vectors. are_halves: whether they are float16; None: bfloat16."""
    builder, kind = code.builder, ir.VectorType(SINGLE, rows)
    wide, narrow, half = (ir.VectorType(each, rows) for each in (FLOAT, HALF, ir.HalfType()))
    both = code.read(pairs, offset, kind)
    sixteen = ir.Constant(kind, [16] * rows)
    upper = builder.lshr(both, sixteen)
    decoded = []
    for part in (both, upper):
        from_bfloat = builder.bitcast(builder.shl(part, sixteen), wide)
        if are_halves is None:
            decoded.append(from_bfloat)
            continue
        from_half = (
            builder.fpext(builder.bitcast(builder.trunc(part, narrow), half), wide)
            if WIDENS_HALVES
            else widened_half(builder, part, wide)
        )
        decoded.append(builder.select(are_halves, from_half, from_bfloat))
    return decoded[0], decoded[1]
