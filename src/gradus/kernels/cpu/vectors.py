"""Loops that must consist of vector instructions to be fast, generated as LLVM code: weight rows times activations.

A product's loop has `rows` weight rows and `count` rows of activations, both known at compile time, so that all sums
stay in registers. LLVM maps vectors to the processor's registers. The loops over bytes, int4 and GGUF's blocks are in
`byte_products.py`, `int4/` and `gguf/`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from gradus.device.processor import cpu_info
from gradus.kernels.cpu.machine import IS_X86, LINE

LANES = 16
BYTE, HALF, SINGLE, WORD = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()
SUMS = ir.VectorType(SINGLE, LANES)
FUSED = ("reassoc", "contract", "nsz")
Generate = Callable[[Any, ir.IRBuilder, Any, Any], ir.Value]


def features() -> set[str]:
    """The features of numba's target: this processor, unless NUMBA_CPU_NAME or NUMBA_CPU_FEATURES names another."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return {feature.removeprefix("+") for feature in features.split(",") if feature.startswith("+")}


HAS_AVX512 = "avx512f" in features()
HAS_AVX2 = "avx2" in features()
HAS_BF16 = HAS_AVX512 and "avx512bf16" in features()
BY_PAIRS = HAS_AVX2 and not HAS_AVX512
"""Whether int4 is multiplied with int16 activations, two columns at once. AVX-512 looks up floats as fast.

Each 32 activations have a scale of their own. A product differs from that of floats by 2e-5 of its length, or by 6e-5
if one activation in a hundred is 1,000 times as large as the others; with bfloat16 activations it is 2e-3."""

WIDENS_HALVES = not IS_X86 or "f16c" in features()  # otherwise LLVM calls a function that no library here provides

WIDE = 16 if HAS_AVX512 else 8
"""Floats of a vector in a product of floats. Registers are few without AVX-512: sums of 16 would not stay in them."""

TOGETHER = 8 if HAS_AVX512 else 4
"""Rows of activations that a weight is multiplied with while it is in registers: AVX-512 has 32 of them, AVX2 16."""

INT8_STEP = 64
"""Values per step of a product of bytes. Rows whose length is not a multiple are multiplied by plain loops."""

KEEP, SECOND = 3, 2
READ_ONCE = KEEP if cpu_info("vendor_id") == "GenuineIntel" else 0
"""Where a prefetched line goes: into every cache, into all but the first, or only into the first one, so that others
keep their lines. On an Intel Xeon the latter is slower: a decode in bfloat16 took 34 ms instead of 24 on one core."""


class Code:
    """A builder of LLVM code, with the few operations that all loops need."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def whole(self, value: int) -> ir.Constant:
        return ir.Constant(WORD, value)

    def read(self, address: ir.Value, offset: ir.Value, kind: ir.Type) -> ir.Value:
        """Load a value of a type at address + offset bytes, without alignment."""
        place = self.builder.inttoptr(self.builder.add(address, offset), kind.as_pointer())
        return self.builder.load(place, align=1)

    def read_wide(self, address: ir.Value, offset: ir.Value, halves: int, count: int = LANES) -> ir.Value:
        """Load `count` numbers as float32, from bfloat16 if `halves` is 1."""
        if not halves:
            return self.read(address, offset, ir.VectorType(FLOAT, count))
        whole = ir.VectorType(SINGLE, count)
        bits = self.builder.zext(self.read(address, offset, ir.VectorType(HALF, count)), whole)
        return self.builder.bitcast(
            self.builder.shl(bits, ir.Constant(whole, [16] * count)), ir.VectorType(FLOAT, count)
        )

    def named(self, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
        """An instruction by LLVM's name for it."""
        known = self.builder.module.globals.get(name)
        return known or ir.Function(self.builder.module, ir.FunctionType(result, arguments), name)

    def part(self, vector: ir.Value, first: int, count: int) -> ir.Value:
        """`count` lanes of a vector, from `first` on."""
        lanes = ir.Constant(ir.VectorType(SINGLE, count), list(range(first, first + count)))
        return self.builder.shuffle_vector(vector, vector, lanes)

    def in_all(self, vector: ir.Value, lane: int, count: int) -> ir.Value:
        """A vector with one lane of another in all of its `count` lanes."""
        lanes = ir.Constant(ir.VectorType(SINGLE, count), [lane] * count)
        return self.builder.shuffle_vector(vector, vector, lanes)

    def shifted(self, vector: ir.Value, bits: int) -> ir.Value:
        """Shift each lane right."""
        return self.builder.lshr(vector, ir.Constant(vector.type, [bits] * vector.type.count)) if bits else vector

    def either(
        self, condition: ir.Value, made: Callable[[], Sequence[ir.Value]], others: Sequence[ir.Value]
    ) -> tuple[ir.Value, ...]:
        """Return `made()` if the condition holds, otherwise `others` without calling it."""
        before = self.builder.block
        with self.builder.if_then(condition):
            found, inside = made(), self.builder.block
        phis = []
        for value, other in zip(found, others, strict=True):
            phis.append(self.builder.phi(value.type))
            phis[-1].add_incoming(value, inside)
            phis[-1].add_incoming(other, before)
        return tuple(phis)

    def joined(self, parts: Sequence[ir.Value]) -> ir.Value:
        """One vector of the lanes of 1, 2, 4, … equal ones, in their order."""
        while len(parts) > 1:
            lanes = ir.Constant(ir.VectorType(SINGLE, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.builder.shuffle_vector(low, high, lanes) for low, high in pairs]
        return parts[0]

    def write(self, address: ir.Value, offset: ir.Value, value: ir.Value) -> None:
        place = self.builder.inttoptr(self.builder.add(address, offset), value.type.as_pointer())
        self.builder.store(value, place, align=1)

    def fetch_ahead(self, address: ir.Value, step: ir.Value, size: int, ahead: int, locality: int = KEEP) -> None:
        """Prefetch the lines `ahead` bytes after this step's, at `size` bytes per step: in the order of memory, even if
        rows are read side by side."""
        first = self.builder.mul(step, self.whole(size))
        for line in range(0, size, LINE):
            self.fetch_line(address, self.builder.add(first, self.whole(line)), ahead, locality)

    def fetch_line(self, address: ir.Value, offset: ir.Value, ahead: int, locality: int = KEEP) -> None:
        """Prefetch the line `ahead` bytes after address + offset. It need not exist."""
        pointer = ir.IntType(8).as_pointer()
        name = "llvm.prefetch.p0i8"
        known = self.builder.module.globals.get(name)
        fetch = known or ir.Function(
            self.builder.module, ir.FunctionType(ir.VoidType(), [pointer, SINGLE, SINGLE, SINGLE]), name
        )
        place = self.builder.add(self.builder.add(address, offset), self.whole(ahead))
        reading, kept, data = (ir.Constant(SINGLE, value) for value in (0, locality, 1))
        self.builder.call(fetch, [self.builder.inttoptr(place, pointer), reading, kept, data])

    def all_lanes(self, value: ir.Value, count: int) -> ir.Value:
        """A vector with the value in all of its `count` lanes."""
        kind = ir.VectorType(value.type, count)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(SINGLE, 0))
        zeros = ir.Constant(ir.VectorType(SINGLE, count), [0] * count)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def sum_of(self, vector: ir.Value) -> ir.Value:
        """Add up all lanes, by halves."""
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

    def unknown(self, value: int) -> ir.Value:
        """Hide a number from LLVM, which would unroll a loop whose steps it can count."""
        return self.builder.asm(ir.FunctionType(WORD, [WORD]), "", "=r,0", [self.whole(value)], side_effect=False)

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


AHEAD = 4096
"""Bytes by which weights are prefetched before they are read, to cover the latency of memory."""

BESIDE_AHEAD = 2048
"""The same for each of several rows of floats that are read side by side."""

FLOAT_STEP = LANES
"""Floats per step. Rows whose length is not a multiple are multiplied by plain loops."""


@intrinsic
def float_tile(
    typing: Any, halves: Any, rows: Any, count: Any, unroll: Any, locality: Any, values: Any, stride: Any, width: Any,
    ahead: Any, x: Any, x_stride: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Multiply `rows` rows of weights by `count` rows of activations, both literal. Others: addresses, strides in
    bytes.

    values: bfloat16 if `halves` (literal) is 1, else float32: one row of `width` every `stride` bytes, a multiple of
    `unroll` (literal) times FLOAT_STEP; x: float32 rows. Writes float32 out[r * out_stride + 4 w].
    ahead: bytes by which each row is prefetched; past a row's end, the prefetch continues in the row `rows` further on.
    locality: literal, READ_ONCE or KEEP.
    """
    literal = halves, rows, count, unroll, locality
    if not all(isinstance(each, types.IntegerLiteral) for each in literal):
        return None
    return types.void(*literal, *[types.int64] * 8), _float_code(*(each.literal_value for each in literal))


def _float_code(halves: int, rows: int, count: int, unroll: int, locality: int) -> Generate:
    wide = ir.VectorType(FLOAT, WIDE)
    size = 2 if halves else 4

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        values, stride, width, ahead, x, x_stride, out, out_stride = args[5:]
        row_end = builder.mul(width, code.whole(size))
        to_next = builder.sub(builder.mul(stride, code.whole(rows)), row_end)

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            column = builder.add(builder.mul(step, code.whole(unroll * size * WIDE)), ahead)
            beyond = builder.icmp_signed(">=", column, row_end)
            column = builder.add(column, builder.select(beyond, to_next, code.whole(0)))
            for w in range(rows):
                for line in range(0, unroll * size * WIDE, LINE):
                    code.fetch_line(values, builder.add(column, builder.mul(stride, code.whole(w))), line, locality)
            result: list[ir.Value] = []
            for u in range(unroll):
                number = builder.add(builder.mul(step, code.whole(unroll)), code.whole(u))
                at, xs = builder.mul(number, code.whole(size * WIDE)), builder.mul(number, code.whole(4 * WIDE))
                places = [builder.add(at, builder.mul(stride, code.whole(w))) for w in range(rows)]
                weights = [code.read_wide(values, place, halves, WIDE) for place in places]
                for r in range(count):
                    activations = code.read(x, builder.add(xs, builder.mul(x_stride, code.whole(r))), wide)
                    for w in range(rows):
                        product = builder.fmul(weights[w], activations, flags=FUSED)
                        result.append(builder.fadd(sums[len(result)], product, flags=FUSED))
            return result

        zero = ir.Constant(wide, [0.0] * WIDE)
        steps = builder.sdiv(width, code.whole(unroll * WIDE))
        sums = code.loop(steps, [zero] * (unroll * rows * count), body)
        for r in range(count):
            for w in range(rows):
                total, *others = sums[r * rows + w :: rows * count]
                for other in others:
                    total = builder.fadd(total, other, flags=FUSED)
                at = builder.add(builder.mul(out_stride, code.whole(r)), code.whole(4 * w))
                code.write(out, at, code.sum_of(total))
        return context.get_dummy_value()

    return generate


SUM_STEP = 2 * LANES
"""Columns that `sum_tile` adds up at once."""


@intrinsic
def sum_tile(
    typing: Any, halves: Any, count: Any, values: Any, stride: Any, rows: Any, weights: Any, weights_stride: Any,
    out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Add up SUM_STEP columns of some rows, `count` (literal) times, each time with other weights.

    Others: addresses, strides in bytes. values: bfloat16 if `halves` (literal) is 1, else float32: a row every
    `stride` bytes; rows: their number, at least one; weights: float32 [rows] every `weights_stride` bytes. Adds to
    float32 out[r * out_stride : … + 4 SUM_STEP].
    """
    literal = halves, count
    if not all(isinstance(each, types.IntegerLiteral) for each in literal):
        return None
    return types.void(*literal, *[types.int64] * 7), _sum_code(*(each.literal_value for each in literal))


def _sum_code(halves: int, count: int) -> Generate:
    wide, parts = ir.VectorType(FLOAT, LANES), SUM_STEP // LANES
    size = 2 if halves else 4

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        values, stride, rows, weights, weights_stride, out, out_stride = args[2:]
        places = [
            builder.add(builder.mul(out_stride, code.whole(r)), code.whole(4 * LANES * part))
            for r in range(count)
            for part in range(parts)
        ]

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            result: list[ir.Value] = []
            row = builder.mul(step, stride)
            numbers = [
                code.read_wide(values, builder.add(row, code.whole(size * LANES * part)), halves)
                for part in range(parts)
            ]
            for r in range(count):
                at = builder.add(builder.mul(weights_stride, code.whole(r)), builder.mul(step, code.whole(4)))
                weight = code.all_lanes(code.read(weights, at, FLOAT), LANES)
                for part in range(parts):
                    product = builder.fmul(weight, numbers[part], flags=FUSED)
                    result.append(builder.fadd(sums[len(result)], product, flags=FUSED))
            return result

        sums = code.loop(rows, [code.read(out, place, wide) for place in places], body)
        for place, total in zip(places, sums, strict=True):
            code.write(out, place, total)
        return context.get_dummy_value()

    return generate


def rounded(builder: ir.IRBuilder, values: ir.Value) -> ir.Value:
    """Round finite float32 to the bits of the nearest bfloat16, ties to even."""
    bits = builder.bitcast(values, SUMS)
    sixteen, one, half = (ir.Constant(SUMS, [value] * LANES) for value in (16, 1, 0x7FFF))
    odd = builder.and_(builder.lshr(bits, sixteen), one)
    upper = builder.lshr(builder.add(bits, builder.add(odd, half)), sixteen)
    return builder.trunc(upper, ir.VectorType(HALF, LANES))


def widened_half(builder: ir.IRBuilder, bits: ir.Value, wide: ir.VectorType) -> ir.Value:
    """Widen float16 in the lower half of each lane to float32 with integers: exponents move from bias 15 to 127.

    Scales and offsets are finite, so only finite values are handled. The factor 2¹¹² also scales subnormals correctly.
    """

    def all_of(value: int) -> ir.Constant:
        return ir.Constant(bits.type, [value] * bits.type.count)

    magnitude = builder.shl(builder.and_(bits, all_of(0x7FFF)), all_of(13))
    scaled = builder.fmul(builder.bitcast(magnitude, wide), ir.Constant(wide, [2.0**112] * wide.count))
    sign = builder.shl(builder.and_(bits, all_of(0x8000)), all_of(16))
    return builder.bitcast(builder.or_(builder.bitcast(scaled, bits.type), sign), wide)
