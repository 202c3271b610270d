"""Keys and values in 8 bits, in registers: the arithmetic of `gradus.quantization.kv`, bit for bit.

Values become bytes by integer arithmetic. GPUs have an instruction for it, but Triton's interpreter rounds otherwise,
and a step stores few values. They are widened by the GPU, since that is done to all that is read: from Ada on, where
Triton knows the type.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from gradus.quantization import kv

EXPONENT, BEYOND_MANTISSA = constexpr(kv.EXPONENT), constexpr(kv.BEYOND_MANTISSA)
EIGHT, LEAST, INVERSE = constexpr(kv.EIGHT), constexpr(kv.LEAST), constexpr(kv.INVERSE)
MAGNITUDE = constexpr(0x7FFFFFFF)  # the bits of a number but its sign
NORMAL = constexpr(121 << 23)  # the bits of 2^-6: below, e4m3 counts in steps of 2^-9
STEPS = constexpr(16384.0)  # 2^14: from here on, float32 counts in such steps
STEPS_BITS = constexpr((127 + 14) << 23)
REBIASED = constexpr((127 - 7) << 3)  # from float32's exponent to e4m3's, in bits of e4m3
NAN = constexpr(0x7F)
FAINT = constexpr((127 - 64) << 23)  # the bits of 2^-64: vectors below it are nothing next to any other
ROOM = constexpr(15.0)  # float16 holds 2^15, and all of its precision down to 2^-14

# Two words, each of two numbers in e4m3, as bfloat16: the lower bytes', then the upper bytes'. Exponent and mantissa
# are moved to their places, which makes numbers 2^-120 times as large, subnormal ones too. NaN becomes 480: a vector
# with one has a scale that is NaN.
TO_BFLOAT16 = constexpr("""
{
    .reg .b32 word, sign, larger, nothing;
    mov.b32 larger, 0x7B807B80;
    mov.b32 nothing, 0x80008000;
    shl.b32 word, $2, 8;
    and.b32 sign, word, 0x80008000;
    shr.u32 word, word, 4;
    lop3.b32 word, word, 0x07F007F0, sign, 0xEA;
    fma.rn.bf16x2 $0, word, larger, nothing;
    and.b32 sign, $2, 0x80008000;
    shr.u32 word, $2, 4;
    lop3.b32 word, word, 0x07F007F0, sign, 0xEA;
    fma.rn.bf16x2 $1, word, larger, nothing;
}
""")

# The same to float16, which holds every number of e4m3: from Ada on, one instruction widens two neighbors.
TO_FLOAT16 = constexpr("""
{
    .reg .b32 word;
    .reg .b16 low, high;
    prmt.b32 word, $2, 0, 0x3120;
    mov.b32 {low, high}, word;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}
""")


@triton.jit
def widened(words: tensor, dtype: constexpr, PACKED: constexpr) -> tuple[tensor, tensor]:
    """int16, two numbers of e4m3 in each, none NaN: those of the lower bytes and of the upper bytes, in dtype.

    Words, because tensor cores take their operands from shared memory in pieces of 16 bits. PACKED: to bfloat16 or
    float16, two at a time; Triton's own conversion goes by float16 and float32, one at a time, and would take longer
    than the reading.
    """
    if PACKED and dtype == tl.float16:
        low, high = tl.inline_asm_elementwise(
            TO_FLOAT16, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )
    elif PACKED:
        low, high = tl.inline_asm_elementwise(
            TO_BFLOAT16, "=r,=r,r", [words], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    else:
        low = (words & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(dtype)
        high = ((words >> 8) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(dtype)
    return low, high


@triton.jit
def in_float16(queries: tensor) -> tuple[tensor, tensor]:
    """Bring queries [R, C] into float16's range. Returns them, and the power of two [R] that restores each row.

    Exact, except for numbers below 2^-22 of a row's largest, which lose bits.
    """
    wide = queries.to(tl.float32)
    unit, inverse = scales_of(tl.maximum(largest_of(wide), FAINT))
    return (wide * inverse[:, None]).to(tl.float16), unit


@triton.jit
def reach_of(scale: tensor) -> tensor:
    """log2 of the scales [K] of values, less the ROOM that float16 has above 1.

    A softmax whose peak is at least score + reach has no weight that exceeds float16 once multiplied by its scale.
    """
    exponent = tl.maximum(scale.to(tl.int32, bitcast=True), FAINT) >> 23
    return exponent.to(tl.float32) - (127 + ROOM)


@triton.jit
def largest_of(x: tensor) -> tensor:
    """The bits of each row's largest magnitude, int32 [R], for float32 [R, C]. A NaN is larger than anything."""
    return tl.max(x.to(tl.int32, bitcast=True) & MAGNITUDE, 1)


@triton.jit
def scales_of(largest: tensor) -> tensor:
    """The scales of rows with these largest magnitudes, and their inverses, float32 [R] each."""
    bits = tl.maximum(((largest + BEYOND_MANTISSA) & EXPONENT) - EIGHT, LEAST)
    broken = largest >= EXPONENT
    scale = tl.where(broken, float("nan"), bits.to(tl.float32, bitcast=True))
    return scale, tl.where(broken, float("nan"), (-(bits - INVERSE)).to(tl.float32, bitcast=True))


@triton.jit
def to_e4m3(x: tensor) -> tensor:
    """float32, within ±448 or NaN, rounded to nearest, ties to even."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - REBIASED
    counted = (magnitude.to(tl.float32, bitcast=True) + STEPS).to(tl.int32, bitcast=True)
    found = tl.where(magnitude < NORMAL, counted - STEPS_BITS, normal)
    found = tl.where(magnitude > EXPONENT, NAN, found) | ((bits >> 24) & 0x80)
    return found.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
