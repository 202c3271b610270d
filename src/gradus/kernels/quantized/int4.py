"""Rows through a matrix of 4-bit weights (`gradus.quantization.int4`), unpacked in registers on their way to a product.

Idea: a decode waits for weights, and here they are a quarter of the bytes. What is left to wait for is unpacking: on an
H200 a weight may take 3.3 instruction slots before arithmetic, and not memory, sets the pace. So weights stay packed
until registers, and are unpacked in pairs: a 32-bit register holds two words, and one `lop3` takes a nibble of each and
makes two floats of them.

    bfloat16:  word & 0x000f000f | 0x43004300  =  128 + q, exactly, for 128 has 7 bits of mantissa behind it
    float16:   word & 0x000f000f | 0x64006400  = 1024 + q

One fused multiply-add on the pair takes the 128 away again (exactly), another does q scale + offset and rounds once:
the scheme's weight to the bit, with less than two slots per weight. A word's nibble j belongs to plane j, 32 columns
side by side, so an unpacked register is an operand of the tensor cores as it is: four products per 128 columns, with
the four planes of x. As in `splitk.py` the weights are the high side of a tile, and x' the narrow one, from 8 tokens
on: one row is a product of 8 columns, 7 of them zeros, which costs nothing where memory sets the pace.

Bytes: N K / 2 of words and 4 N K / group of pairs, once per BLOCK_M rows of x; M (K + N) of activations.

Where there are many rows, tensor cores set the pace, and unpacking once per BLOCK_M of them is in their way.
`widened_product` then makes the matrix wide, piece by piece in memory that each piece uses again, and cuBLAS
multiplies: N K (1/2 + 2) bytes more, which a thousand rows hide. The weights are the same numbers.

With a gate, rows 0 … N - 1 are the gate's and rows N … 2 N - 1 are up's; a program owns both rows of an output.
"""

from functools import partial
from typing import NamedTuple, Unpack

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.counters import Counters
from gradus.kernels.core.overlap import let_next_start, prefetch, starts_early, wait_for_previous
from gradus.kernels.linear.epilogue import finish_tile
from gradus.kernels.quantized.pieces import Around, product_in_pieces
from gradus.kernels.quantized.tile import TOGETHER, TileLaunch, result, share, shared

TILE = 128  # columns of a word's four planes

# Ways to unpack. PLAIN is arithmetic in float32, for any type. MAGIC is what the head of this file describes. SUBNORMAL
# saves one instruction per pair: a bfloat16 with a nibble in bits 4 … 7, and nothing else, is the number q 2^-129.
# Scales times 2^65 and offsets times 2^-64 then give weights times 2^-64, rounded at the same bit. The sums are
# multiplied by 2^64 at the end.
PLAIN, MAGIC, SUBNORMAL = 0, 1, 2
UP, SCALED, SHRUNK = tl.constexpr(2.0**64), tl.constexpr(2.0**65), tl.constexpr(2.0**-64)

# $0 … $3: two weights of each plane; $4: two words; $5 … $8 and $9 … $12: the planes' scales and offsets, twice each
OPERANDS = tl.constexpr("=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r")
MAGIC_BF16 = tl.constexpr("""{
    .reg .b32 one, less, a, b, c;
    mov.b32 one, 0x3f803f80;
    mov.b32 less, 0xc300c300;
    shr.u32 a, $4, 4;
    shr.u32 b, $4, 8;
    shr.u32 c, $4, 12;
    lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $1, a, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $2, b, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $3, c, 0x000f000f, 0x43004300, 0xea;
    fma.rn.bf16x2 $0, $0, one, less;
    fma.rn.bf16x2 $1, $1, one, less;
    fma.rn.bf16x2 $2, $2, one, less;
    fma.rn.bf16x2 $3, $3, one, less;
    fma.rn.bf16x2 $0, $0, $5, $9;
    fma.rn.bf16x2 $1, $1, $6, $10;
    fma.rn.bf16x2 $2, $2, $7, $11;
    fma.rn.bf16x2 $3, $3, $8, $12;
}""")
SUBNORMAL_BF16 = tl.constexpr("""{
    .reg .b32 a, b, c;
    shl.b32 a, $4, 4;
    shr.u32 b, $4, 4;
    shr.u32 c, $4, 8;
    and.b32 $0, a, 0x00f000f0;
    and.b32 $1, $4, 0x00f000f0;
    and.b32 $2, b, 0x00f000f0;
    and.b32 $3, c, 0x00f000f0;
    fma.rn.bf16x2 $0, $0, $5, $9;
    fma.rn.bf16x2 $1, $1, $6, $10;
    fma.rn.bf16x2 $2, $2, $7, $11;
    fma.rn.bf16x2 $3, $3, $8, $12;
}""")
MAGIC_FP16 = tl.constexpr("""{
    .reg .b32 one, less, a, b, c;
    mov.b32 one, 0x3c003c00;
    mov.b32 less, 0xe400e400;
    shr.u32 a, $4, 4;
    shr.u32 b, $4, 8;
    shr.u32 c, $4, 12;
    lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 $1, a, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 $2, b, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 $3, c, 0x000f000f, 0x64006400, 0xea;
    fma.rn.f16x2 $0, $0, one, less;
    fma.rn.f16x2 $1, $1, one, less;
    fma.rn.f16x2 $2, $2, one, less;
    fma.rn.f16x2 $3, $3, one, less;
    fma.rn.f16x2 $0, $0, $5, $9;
    fma.rn.f16x2 $1, $1, $6, $10;
    fma.rn.f16x2 $2, $2, $7, $11;
    fma.rn.f16x2 $3, $3, $8, $12;
}""")


class Int4Weights(NamedTuple):
    """words: int16 [T, N, 32]; pairs: int32 [128 T / group, N], of floats of type `kind`. As in `Int4Linear`."""

    words: Tensor
    pairs: Tensor
    kind: torch.dtype

    @property
    def rows(self) -> int:
        return self.words.shape[1]

    @property
    def groups(self) -> int:
        """Per 128 columns: 1, 2 or 4."""
        return self.pairs.shape[0] // self.words.shape[0]


# -- unpacking -------------------------------------------------------------------------------------------------------


@triton.jit
def _halves(pairs_ptr: tensor, group: int, row: tensor, inside: tensor, ROWS: int, KIND: constexpr) -> tensor:
    """Scales and offsets, of type KIND, of a group of some rows: [BLOCK_N, 1] each."""
    pair = tl.load(pairs_ptr + group * ROWS + row, mask=inside, other=0)
    scale = (pair & 0xFFFF).to(tl.int16).to(KIND, bitcast=True)
    offset = (pair >> 16).to(tl.int16).to(KIND, bitcast=True)
    return scale[:, None], offset[:, None]


@triton.jit
def _sides(
    pairs_ptr: tensor, tile: int, PLANE: constexpr, row: tensor, inside: tensor, like: tensor, ROWS: int,
    GROUPS: constexpr, KIND: constexpr, UNPACK: constexpr,
) -> tensor:  # fmt: skip
    """Scale and offset of a plane's weights, each in the shape of the words."""
    scale, offset = _halves(pairs_ptr, tile * GROUPS + PLANE * GROUPS // 4, row, inside, ROWS, KIND)
    if UNPACK == 2:
        scale = (scale.to(tl.float32) * SCALED).to(KIND)
        offset = (offset.to(tl.float32) * SHRUNK).to(KIND)
    return tl.broadcast_to(scale, like.shape), tl.broadcast_to(offset, like.shape)


@triton.jit
def _plane(words: tensor, scale: tensor, offset: tensor, PLANE: constexpr, dtype: constexpr) -> tensor:
    """Unpack one plane's weights by arithmetic."""
    return (((words >> (4 * PLANE)) & 15).to(tl.float32) * scale.to(tl.float32) + offset.to(tl.float32)).to(dtype)


@triton.jit
def _weights(
    words: tensor, pairs_ptr: tensor, tile: int, row: tensor, inside: tensor, ROWS: int,
    GROUPS: constexpr, KIND: constexpr, UNPACK: constexpr, dtype: constexpr,
) -> tensor:  # fmt: skip
    """The weights of four planes, [BLOCK_N, 32] each in dtype; with UNPACK 2 times 2^-64."""
    s0, o0 = _sides(pairs_ptr, tile, 0, row, inside, words, ROWS, GROUPS, KIND, UNPACK)
    s1, o1, s2, o2, s3, o3 = s0, o0, s0, o0, s0, o0
    if GROUPS == 4:
        s1, o1 = _sides(pairs_ptr, tile, 1, row, inside, words, ROWS, GROUPS, KIND, UNPACK)
    if GROUPS > 1:
        s2, o2 = _sides(pairs_ptr, tile, 2, row, inside, words, ROWS, GROUPS, KIND, UNPACK)
        s3, o3 = s2, o2
    if GROUPS == 4:
        s3, o3 = _sides(pairs_ptr, tile, 3, row, inside, words, ROWS, GROUPS, KIND, UNPACK)
    if UNPACK == 0:
        w0 = _plane(words, s0, o0, 0, dtype)
        w1 = _plane(words, s1, o1, 1, dtype)
        w2 = _plane(words, s2, o2, 2, dtype)
        w3 = _plane(words, s3, o3, 3, dtype)
    elif tl.float16 == KIND:
        w0, w1, w2, w3 = tl.inline_asm_elementwise(
            MAGIC_FP16, OPERANDS, [words, s0, s1, s2, s3, o0, o1, o2, o3],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        w0, w1, w2, w3 = tl.inline_asm_elementwise(
            MAGIC_BF16 if UNPACK == 1 else SUBNORMAL_BF16, OPERANDS, [words, s0, s1, s2, s3, o0, o1, o2, o3],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    return w0, w1, w2, w3


# -- few rows --------------------------------------------------------------------------------------------------------


@triton.jit
def _x(x: tensor, column: tensor, inside_m: tensor, K: int, EVEN_K: constexpr) -> tensor:
    """One plane of x, [32, BLOCK_M]."""
    if EVEN_K:
        return tl.load(x, mask=inside_m, other=0.0)
    return tl.load(x, mask=inside_m & (column < K)[:, None], other=0.0)


@triton.jit
def _words(words_ptr: tensor, row: tensor, inside: tensor) -> tensor:
    """Words of some rows, counted from the first tile on: [BLOCK_N, 32]."""
    return tl.load(words_ptr + row[:, None] * 32 + tl.arange(0, 32)[None, :], mask=inside[:, None], other=0)


@triton.jit
def _summed(
    sums: tensor, words: tensor, x0: tensor, x1: tensor, x2: tensor, x3: tensor, pairs_ptr: tensor, tile: int,
    row: tensor, inside: tensor, ROWS: int, GROUPS: constexpr, KIND: constexpr, UNPACK: constexpr,
) -> tensor:  # fmt: skip
    """sums, and the products of a tile's four planes."""
    w0, w1, w2, w3 = _weights(words, pairs_ptr, tile, row, inside, ROWS, GROUPS, KIND, UNPACK, x0.dtype)
    sums = tl.dot(w0, x0, sums, input_precision="ieee")
    sums = tl.dot(w1, x1, sums, input_precision="ieee")
    sums = tl.dot(w2, x2, sums, input_precision="ieee")
    return tl.dot(w3, x3, sums, input_precision="ieee")


@triton.jit(do_not_specialize=["M", "chunk", "ahead"])  # no kernel of its own for one row, or a multiple of 16
def int4_kernel(
    x_ptr: tensor, words_ptr: tensor, pairs_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, out_ptr: tensor,
    partial_ptr: tensor, arrived_ptr: tensor, M: int, N: int, K: int, stride: int, chunk: int, ahead: int,
    EVEN_K: constexpr, GROUPS: constexpr, KIND: constexpr, UNPACK: constexpr, ACTIVATION: constexpr, GATED: constexpr,
    BLOCK_M: constexpr, BLOCK_N: constexpr, GROUP_M: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """BLOCK_N outputs of BLOCK_M rows, and of their sum the `chunk` tiles of 128 columns that are program_id(1)'s.

    stride: from row to row of out and residual.
    """
    let_next_start(PDL)
    tile_m, tile_n = tl.swizzle2d(tl.program_id(2), tl.program_id(0), tl.num_programs(2), tl.num_programs(0), GROUP_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, 32)
    inside_n, inside_m = n < N, (m < M)[None, :]
    rows = 2 * N if GATED else N
    first = tl.program_id(1) * chunk
    end = min(first + chunk, (K + 127) // 128)
    if PDL:
        pairs_of_rows = tl.minimum(tile_n * BLOCK_N + 2 * tl.arange(0, BLOCK_N // 2), N - 1)  # 128 bytes of words
        for tile in range(first, min(first + ahead, end)):
            prefetch(words_ptr + (tile * rows + pairs_of_rows) * 32)
    wait_for_previous(PDL)
    x = x_ptr + m.to(tl.int64)[None, :] * K + column[:, None]
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    ups = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for tile in range(first, end):
        start = tile * 128
        words = _words(words_ptr, tile * rows + n, inside_n)
        if GATED:
            up_words = _words(words_ptr, tile * rows + N + n, inside_n)
        x0 = _x(x + start, start + column, inside_m, K, EVEN_K)
        x1 = _x(x + start + 32, start + 32 + column, inside_m, K, EVEN_K)
        x2 = _x(x + start + 64, start + 64 + column, inside_m, K, EVEN_K)
        x3 = _x(x + start + 96, start + 96 + column, inside_m, K, EVEN_K)
        sums = _summed(sums, words, x0, x1, x2, x3, pairs_ptr, tile, n, inside_n, rows, GROUPS, KIND, UNPACK)
        if GATED:
            ups = _summed(ups, up_words, x0, x1, x2, x3, pairs_ptr, tile, N + n, inside_n, rows, GROUPS, KIND, UNPACK)

    inside = inside_m & inside_n[:, None]
    last = True
    if partial_ptr is not None:
        last = share(sums, ups, n, m, inside, partial_ptr, arrived_ptr, M, N, GATED)
    if last:
        if partial_ptr is not None:
            sums, ups = shared(sums, ups, n, m, inside, partial_ptr, M, N, GATED)
        if UNPACK == 2:
            sums *= UP
            ups *= UP
        here = m.to(tl.int64)[None, :] * stride + n[:, None]
        finish_tile(sums, ups, n, here, inside_n, inside, bias_ptr, residual_ptr, out_ptr, N, ACTIVATION, GATED)


def int4_product(
    x: Tensor,
    weights: Int4Weights,
    launch: TileLaunch,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
    unpack: int | None = None,
    padded: bool = False,
    counters: Counters | None = None,
) -> Tensor:
    """residual + activation(x weightᵀ + bias); gated: activation(gate) * up of the product's two halves.

    x: [M, K], contiguous, of type `weights.kind`, or any where `unpack` is PLAIN; unpack: None is the fastest that is
    known to work. residual: [M, N], which takes the sum in place. padded: rows of the result begin at multiples of 16
    bytes. Returns [M, N] in x's dtype: `residual` itself if given.
    """
    m, k = x.shape
    assert x.is_contiguous() and m > 0 and weights.words.shape[0] == triton.cdiv(k, TILE)
    outputs = weights.rows // 2 if gated else weights.rows
    out = result(x, m, outputs, x.dtype, padded) if residual is None else residual
    tiles = weights.words.shape[0]
    sums = launch.shared_sums(m, weights.rows, outputs, tiles, torch.float32, x.device, counters)
    early = starts_early()
    int4_kernel[sums.grid](
        x, weights.words, weights.pairs, bias, residual, out, sums.partial, sums.arrived,
        m, outputs, k, out.stride(0), sums.chunk, launch.ahead,
        k % TILE == 0, weights.groups, KINDS[weights.kind], way_to_unpack(x, weights) if unpack is None else unpack,
        activation, gated, launch.tokens, launch.rows, TOGETHER, early,
        num_warps=launch.warps, num_stages=launch.stages, launch_pdl=early,
    )  # fmt: skip
    return out


KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def way_to_unpack(x: Tensor, weights: Int4Weights) -> int:
    """Instructions for pairs, on a GPU, where weights have the type of their scales."""
    return MAGIC if x.is_cuda and x.dtype == weights.kind else PLAIN


# -- many rows -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["first", "count"])
def widen_kernel(
    words_ptr: tensor, pairs_ptr: tensor, out_ptr: tensor, first: int, count: int, ROWS: int, K: int,
    GROUPS: constexpr, KIND: constexpr, BLOCK_N: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Tile program_id(0), of rows first, …, first + count - 1 those from program_id(1) * BLOCK_N on."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    tile = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < count
    column = tl.arange(0, 32)
    words = _words(words_ptr, tile * ROWS + first + n, inside)
    w0, w1, w2, w3 = _weights(
        words, pairs_ptr, tile, first + n, inside, ROWS, GROUPS, KIND, 0, out_ptr.dtype.element_ty
    )
    at = tile * 128 + column
    here = out_ptr + n.to(tl.int64)[:, None] * K + at[None, :]
    tl.store(here, w0, mask=inside[:, None] & (at < K)[None, :])
    tl.store(here + 32, w1, mask=inside[:, None] & (at + 32 < K)[None, :])
    tl.store(here + 64, w2, mask=inside[:, None] & (at + 64 < K)[None, :])
    tl.store(here + 96, w3, mask=inside[:, None] & (at + 96 < K)[None, :])


def widen(weights: Int4Weights, first: int, out: Tensor) -> None:
    """Write rows first, first + 1, … of the matrix to out, [rows, K], in its type."""
    count, k = out.shape
    early = starts_early()
    widen_kernel[(weights.words.shape[0], triton.cdiv(count, 64))](
        weights.words, weights.pairs, out, first, count, weights.rows, k,
        weights.groups, KINDS[weights.kind], 64, early, num_warps=4, launch_pdl=early,
    )  # fmt: skip


def widened_product(x: Tensor, weights: Int4Weights, **around: Unpack[Around]) -> Tensor:
    """residual + x weightᵀ + bias, the matrix wide piece by piece: see `product_in_pieces`."""
    return product_in_pieces(x, weights.rows, partial(widen, weights), **around)
