"""Products of int8 by int8, summed exactly in int32, by each processor's own instruction.

A processor's instruction takes a vector of weights and one of activations, and adds four products to each lane of 32
bits. They differ in the signs that they take:

    VNNI, AVX-VNNI    unsigned by signed bytes: weights have 128 added, and 128 Σ x is subtracted at the end
    AVX2              unsigned by signed bytes, added in twos to int16, which saturates: the weight's absolute value
                      times the activation with the weight's sign. 2 × 128 × 127 is less than 2¹⁵, so nothing does
    ARM's sdot        signed by signed bytes
    ARM's i8mm        the same for two rows of weights and two of activations at once (`smmla`), 8 bytes of each

All give the same integers. A weight may be -128 to 127; an activation -127 to 127, because -128 has no opposite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradus.kernels.cpu.machine import IS_X86
from gradus.kernels.cpu.vectors import (
    AHEAD,
    BYTE,
    FLOAT,
    HALF,
    INT8_STEP,
    SINGLE,
    WORD,
    Code,
    Generate,
    features,
)


class ByteProduct(NamedTuple):
    """lanes: sums of a vector; it takes 4 times as many bytes. biased: whether 128 is added to each weight.

    prepare(code, weights): once per vector of weights, i8 [4 lanes]. add(code, sums, prepared, x): adds the products
    to i32 [lanes].
    """

    lanes: int
    biased: bool
    prepare: Callable[[Code, ir.Value], ir.Value]
    add: Callable[[Code, ir.Value, Any, ir.Value], ir.Value]


def _vectors(lanes: int) -> tuple[ir.VectorType, ir.VectorType]:
    return ir.VectorType(SINGLE, lanes), ir.VectorType(BYTE, 4 * lanes)


def _vnni(lanes: int) -> ByteProduct:
    """AVX-512 VNNI with 16 lanes; AVX-VNNI with 8."""
    sums_kind, bytes_kind = _vectors(lanes)

    def prepare(code: Code, weights: ir.Value) -> ir.Value:
        biased = code.builder.xor(weights, ir.Constant(bytes_kind, [0x80 - 0x100] * bytes_kind.count))
        return code.builder.bitcast(biased, sums_kind)

    def add(code: Code, sums: ir.Value, prepared: Any, x: ir.Value) -> ir.Value:
        function = code.named(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", sums_kind, sums_kind, sums_kind, sums_kind)
        return code.builder.call(function, [sums, prepared, code.builder.bitcast(x, sums_kind)])

    return ByteProduct(lanes, True, prepare, add)


def _avx2() -> ByteProduct:
    sums_kind, bytes_kind = _vectors(8)
    shorts = ir.VectorType(HALF, 16)

    def prepare(code: Code, weights: ir.Value) -> Any:
        return weights, _with_signs_of(code, weights, weights)

    def add(code: Code, sums: ir.Value, prepared: Any, x: ir.Value) -> ir.Value:
        weights, magnitudes = prepared
        in_twos = code.named("llvm.x86.avx2.pmadd.ub.sw", shorts, bytes_kind, bytes_kind)
        in_fours = code.named("llvm.x86.avx2.pmadd.wd", sums_kind, shorts, shorts)
        twos = code.builder.call(in_twos, [magnitudes, _with_signs_of(code, x, weights)])
        fours = code.builder.call(in_fours, [twos, ir.Constant(shorts, [1] * 16)])
        return code.builder.add(sums, fours)

    return ByteProduct(8, False, prepare, add)


def _with_signs_of(code: Code, x: ir.Value, weights: ir.Value) -> ir.Value:
    """x, negative where weights are, and 0 where they are 0. With x = weights: their absolute values."""
    kind = x.type
    return code.builder.call(code.named("llvm.x86.avx2.psign.b", kind, kind, kind), [x, weights])


def _sdot() -> ByteProduct:
    return ByteProduct(4, False, lambda _, weights: weights, _add_by_sdot)


def _add_by_sdot(code: Code, sums: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    sums_kind, bytes_kind = _vectors(4)
    function = code.named("llvm.aarch64.neon.sdot.v4i32.v16i8", sums_kind, sums_kind, bytes_kind, bytes_kind)
    return code.builder.call(function, [sums, weights, x])


def chosen(found: set[str], is_x86: bool) -> str | None:
    """Name the best product that a target with these features has; None: only plain loops."""
    if not is_x86:
        return None if "dotprod" not in found else "i8mm" if "i8mm" in found else "sdot"
    if {"avx512f", "avx512vnni"} <= found:
        return "avx512vnni"
    if {"avx2", "avxvnni"} <= found:
        return "avxvnni"
    return "avx2" if "avx2" in found else None


class SmallProduct(NamedTuple):
    """Products of weights of 0 to 63 by int8, which need no help with signs.

    lanes: as in ByteProduct. start: the sums of nothing. add(code, sums, weights, x): adds the products of a vector.
    total(code, sums): as i32 [lanes], exact for 8 vectors of weights up to 15, or for one up to 63.
    """

    lanes: int
    start: ir.Constant
    add: Callable[[Code, ir.Value, ir.Value, ir.Value], ir.Value]
    total: Callable[[Code, ir.Value], ir.Value]


def _small_vnni(lanes: int) -> SmallProduct:
    sums_kind, _ = _vectors(lanes)

    def add(code: Code, sums: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
        function = code.named(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", sums_kind, sums_kind, sums_kind, sums_kind)
        return code.builder.call(function, [sums, *(code.builder.bitcast(each, sums_kind) for each in (weights, x))])

    return SmallProduct(lanes, ir.Constant(sums_kind, [0] * lanes), add, lambda _, sums: sums)


def _small_avx2() -> SmallProduct:
    """Sums stay int16: 8 times 2 × 15 × 127 is less than 2¹⁵, and so is 2 × 63 × 127."""
    sums_kind, bytes_kind = _vectors(8)
    shorts = ir.VectorType(HALF, 16)

    def add(code: Code, sums: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
        in_twos = code.named("llvm.x86.avx2.pmadd.ub.sw", shorts, bytes_kind, bytes_kind)
        return code.builder.add(sums, code.builder.call(in_twos, [weights, x]))

    def total(code: Code, sums: ir.Value) -> ir.Value:
        in_fours = code.named("llvm.x86.avx2.pmadd.wd", sums_kind, shorts, shorts)
        return code.builder.call(in_fours, [sums, ir.Constant(shorts, [1] * 16)])

    return SmallProduct(8, ir.Constant(shorts, [0] * 16), add, total)


def _small_sdot() -> SmallProduct:
    return SmallProduct(4, ir.Constant(_vectors(4)[0], [0] * 4), _add_by_sdot, lambda _, sums: sums)


def sums_of_fours(code: Code, weights: ir.Value, x: ir.Value, signed: bool, product: str) -> ir.Value:
    """The products of 32 weights by 32 activations, i8, added in fours: i32 [8].

    signed: whether weights are of -128 to 127, not of 0 to 31.
    """
    if product in ("sdot", "i8mm"):
        start = ir.Constant(_vectors(4)[0], [0] * 4)
        return code.joined([_add_by_sdot(code, start, code.part(weights, i, 16), code.part(x, i, 16)) for i in (0, 16)])
    found = _small_avx2() if product == "avx2" else _small_vnni(8)
    if signed:
        x, weights = _with_signs_of(code, x, weights), _with_signs_of(code, weights, weights)
    return found.total(code, found.add(code, found.start, weights, x))


PRODUCTS = {"avx512vnni": _vnni(16), "avxvnni": _vnni(8), "avx2": _avx2(), "sdot": _sdot(), "i8mm": _sdot()}
SMALL_PRODUCTS = {
    "avx512vnni": _small_vnni(16),
    "avxvnni": _small_vnni(8),
    "avx2": _small_avx2(),
    "sdot": _small_sdot(),
    "i8mm": _small_sdot(),
}
NAME = chosen(features(), IS_X86)
HAS_PRODUCT = NAME is not None
IN_BYTES = NAME == "avx512vnni"
"""Whether panels of rounded activations are multiplied with blocks as bytes, or as floats of the same values."""
BY_ROW_PAIRS = NAME == "i8mm"
"""Whether several rows of activations are multiplied two at a time, in the layout of `row_pairs_tile`. A lone row is
multiplied by sdot."""


@intrinsic
def int8_tile(
    typing: Any, rows: Any, count: Any, values: Any, scales: Any, width: Any, x: Any, x_stride: Any, x_scales: Any,
    corrections: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Multiply `rows` rows of int8 weights by `count` rows of activations, both literal. Others: addresses, strides in
    bytes.

    values: rows of `width` each, a multiple of INT8_STEP; x: int8 rows; scales, x_scales: float32, one per row;
    corrections: int32 [count], 128 Σ x of each row, for a product that adds 128 to weights. Writes float32
    out[r * out_stride + 4 w].
    """
    if NAME is None or not all(isinstance(each, types.IntegerLiteral) for each in (rows, count)):
        return None
    signature = types.void(rows, count, *[types.int64] * 9)
    return signature, _int8_code(PRODUCTS[NAME], rows.literal_value, count.literal_value)


@intrinsic
def row_pairs_tile(
    typing: Any, rows: Any, count: Any, values: Any, scales: Any, width: Any, x: Any, x_stride: Any, x_scales: Any,
    out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Multiply as `int8_tile` does, an even number of rows of weights by an even number of rows of activations.

    x: rows r and r + 1, r even, as one row of twice the width from x + r * x_stride on: 8 bytes of each in turn.
    """
    if not all(isinstance(each, types.IntegerLiteral) for each in (rows, count)):
        return None
    return types.void(rows, count, *[types.int64] * 8), _row_pairs_code(rows.literal_value, count.literal_value)


def _row_pairs_code(rows: int, count: int) -> Generate:
    sums_kind, bytes_kind = _vectors(4)
    eights = ir.VectorType(WORD, 2)

    def halves(code: Code, first: ir.Value, second: ir.Value) -> list[ir.Value]:
        """The first 8 bytes of two vectors, and the last 8 of them."""
        both = [code.builder.bitcast(each, eights) for each in (first, second)]
        places = [ir.Constant(ir.VectorType(SINGLE, 2), [half, 2 + half]) for half in range(2)]
        return [code.builder.bitcast(code.builder.shuffle_vector(*both, place), bytes_kind) for place in places]

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        values, scales, width, x, x_stride, x_scales, out, out_stride = args[2:]
        multiply = code.named("llvm.aarch64.neon.smmla.v4i32.v16i8", sums_kind, sums_kind, bytes_kind, bytes_kind)

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            code.fetch_ahead(values, step, rows * INT8_STEP, AHEAD)
            sums = list(sums)
            for first in range(0, INT8_STEP, bytes_kind.count):
                at = builder.add(builder.mul(step, code.whole(INT8_STEP)), code.whole(first))
                places = [builder.add(at, builder.mul(width, code.whole(w))) for w in range(rows)]
                weights = [code.read(values, place, bytes_kind) for place in places]
                pairs = [halves(code, *weights[w : w + 2]) for w in range(0, rows, 2)]
                for half in range(2):
                    begin = builder.add(builder.mul(at, code.whole(2)), code.whole(half * bytes_kind.count))
                    for r in range(0, count, 2):
                        place = builder.add(begin, builder.mul(x_stride, code.whole(r)))
                        both = code.read(x, place, bytes_kind)
                        for i, pair in enumerate(pairs, r // 2 * len(pairs)):
                            sums[i] = builder.call(multiply, [sums[i], both, pair[half]])
            return sums

        zero = ir.Constant(sums_kind, [0] * 4)
        sums = code.loop(builder.sdiv(width, code.whole(INT8_STEP)), [zero] * (rows * count // 4), body)
        for r in range(count):
            x_scale = code.read(x_scales, code.whole(4 * r), FLOAT)
            for w in range(rows):  # a vector has the sums of two rows of activations, and in each of two of weights
                lane = ir.Constant(SINGLE, r % 2 * 2 + w % 2)
                total = builder.extract_element(sums[r // 2 * (rows // 2) + w // 2], lane)
                scaled = builder.fmul(builder.sitofp(total, FLOAT), x_scale)
                scaled = builder.fmul(scaled, code.read(scales, code.whole(4 * w), FLOAT))
                code.write(out, builder.add(builder.mul(out_stride, code.whole(r)), code.whole(4 * w)), scaled)
        return context.get_dummy_value()

    return generate


def _int8_code(product: ByteProduct, rows: int, count: int) -> Generate:
    sums_kind, bytes_kind = _vectors(product.lanes)
    size = bytes_kind.count

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        code = Code(builder)
        values, scales, width, x, x_stride, x_scales, corrections, out, out_stride = args[2:]

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            code.fetch_ahead(values, step, rows * INT8_STEP, AHEAD)
            for first in range(0, INT8_STEP, size):
                at = builder.add(builder.mul(step, code.whole(INT8_STEP)), code.whole(first))
                places = [builder.add(at, builder.mul(x_stride, code.whole(r))) for r in range(count)]
                xs = [code.read(x, place, bytes_kind) for place in places]
                result = []
                for w in range(rows):
                    place = builder.add(at, builder.mul(width, code.whole(w)))
                    weights = product.prepare(code, code.read(values, place, bytes_kind))
                    result += [product.add(code, sums[w * count + r], weights, xs[r]) for r in range(count)]
                sums = result
            return sums

        zero = ir.Constant(sums_kind, [0] * product.lanes)
        sums = code.loop(builder.sdiv(width, code.whole(INT8_STEP)), [zero] * (rows * count), body)
        for r in range(count):
            x_scale = code.read(x_scales, code.whole(4 * r), FLOAT)
            for w in range(rows):
                total = code.sum_of(sums[w * count + r])
                if product.biased:
                    total = builder.sub(total, code.read(corrections, code.whole(4 * r), SINGLE))
                total = builder.sitofp(total, FLOAT)
                scaled = builder.fmul(builder.fmul(total, x_scale), code.read(scales, code.whole(4 * w), FLOAT))
                code.write(out, builder.add(builder.mul(out_stride, code.whole(r)), code.whole(4 * w)), scaled)
        return context.get_dummy_value()

    return generate
