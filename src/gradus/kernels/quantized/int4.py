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
`product_in_pieces` then makes the matrix wide, piece by piece in memory that each piece uses again, and cuBLAS
multiplies: N K (1/2 + 2) bytes more, which a thousand rows hide. The weights are the same numbers.
"""

from typing import NamedTuple, Unpack

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, prefetch, starts_early, wait_for_previous
from gradus.kernels.linear.splits import finish_tile
from gradus.kernels.quantized.tile import Around, TileLaunch, multiply

TILE = 128  # columns of a word's four planes


def _magic(kind: str, one: str, less: str, exponent: str) -> constexpr:
    """PTX that unpacks two words, $4, into two weights of each plane, $0 … $3: see the head of this file.

    $5 … $8, $9 … $12: the planes' scales and offsets, twice each. one: 1. less: -128 or -1024. exponent: the bits that
    the mask is joined with. Each twice.
    """
    planes = range(4)
    lines = [".reg .b32 one, less, a, b, c;", f"mov.b32 one, {one};", f"mov.b32 less, {less};"]
    lines += ["shr.u32 a, $4, 4;", "shr.u32 b, $4, 8;", "shr.u32 c, $4, 12;"]
    lines += [f"lop3.b32 ${i}, {('$4', *'abc')[i]}, 0x000f000f, {exponent}, 0xea;" for i in planes]
    lines += [f"fma.rn.{kind} ${i}, ${i}, one, less;" for i in planes]
    lines += [f"fma.rn.{kind} ${i}, ${i}, ${5 + i}, ${9 + i};" for i in planes]
    return constexpr("\n".join(["{", *lines, "}"]))


MAGIC_BF16 = _magic("bf16x2", one="0x3f803f80", less="0xc300c300", exponent="0x43004300")
MAGIC_FP16 = _magic("f16x2", one="0x3c003c00", less="0xe400e400", exponent="0x64006400")
OPERANDS = constexpr("=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r")


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

    def widen(self, first: int, out: Tensor) -> None:
        """Write rows first, first + 1, … of the matrix to out, [rows, K], in its type."""
        count, k = out.shape
        early = starts_early()
        widen_kernel[(self.words.shape[0], triton.cdiv(count, 64))](
            self.words, self.pairs, out, first, count, self.rows, k, self.groups, KINDS[self.kind], 64, early,
            num_warps=4, launch_pdl=early,
        )  # fmt: skip


# -- unpacking -------------------------------------------------------------------------------------------------------


@triton.jit
def _sides(
    pairs_ptr: tensor, group: int, row: tensor, inside: tensor, like: tensor, ROWS: int, KIND: constexpr
) -> tensor:
    """Scales and offsets, of type KIND, of a group of some rows, each in the shape of the words."""
    pair = tl.load(pairs_ptr + group * ROWS + row, mask=inside, other=0)
    scale = (pair & 0xFFFF).to(tl.int16).to(KIND, bitcast=True)
    offset = (pair >> 16).to(tl.int16).to(KIND, bitcast=True)
    return tl.broadcast_to(scale[:, None], like.shape), tl.broadcast_to(offset[:, None], like.shape)


@triton.jit
def weights_of_planes(
    words: tensor, pairs_ptr: tensor, tile: int, row: tensor, inside: tensor, ROWS: int,
    GROUPS: constexpr, KIND: constexpr, PAIRED: constexpr, dtype: constexpr,
) -> tensor:  # fmt: skip
    """The weights of four planes, [BLOCK_N, 32] each in dtype. PAIRED: unpack them in pairs, which have type KIND."""
    s: tensor = ()
    o: tensor = ()
    for plane in tl.static_range(4):
        if plane * GROUPS % 4 == 0:
            scale, offset = _sides(pairs_ptr, tile * GROUPS + plane * GROUPS // 4, row, inside, words, ROWS, KIND)
        s = s + (scale,)  # noqa: RUF005  # Triton has no starred tuples
        o = o + (offset,)  # noqa: RUF005
    planes: tensor = ()
    if PAIRED:
        planes = tl.inline_asm_elementwise(
            MAGIC_FP16 if tl.float16 == KIND else MAGIC_BF16, OPERANDS,
            [words, s[0], s[1], s[2], s[3], o[0], o[1], o[2], o[3]],
            dtype=(KIND.value, KIND.value, KIND.value, KIND.value), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        for plane in tl.static_range(4):
            values = ((words >> (4 * plane)) & 15).to(tl.float32)
            planes = planes + ((values * s[plane].to(tl.float32) + o[plane].to(tl.float32)).to(dtype),)  # noqa: RUF005
    return planes


# -- few rows --------------------------------------------------------------------------------------------------------


@triton.jit
def _planes(x: tensor, column: tensor, start: int, inside_m: tensor, K: int, EVEN_K: constexpr) -> tensor:
    """The four planes of x, [32, BLOCK_M] each, from column `start` on."""
    planes: tensor = ()
    for plane in tl.static_range(4):
        inside = inside_m
        if not EVEN_K:
            inside = inside_m & (start + 32 * plane + column < K)[:, None]
        planes = planes + (tl.load(x + start + 32 * plane, mask=inside, other=0.0),)  # noqa: RUF005
    return planes


@triton.jit
def words_of_rows(words_ptr: tensor, row: tensor, inside: tensor) -> tensor:
    """Words of some rows, counted from the first tile on: [BLOCK_N, 32]."""
    return tl.load(words_ptr + row[:, None] * 32 + tl.arange(0, 32)[None, :], mask=inside[:, None], other=0)


@triton.jit
def _summed(
    sums: tensor, words: tensor, x: tensor, pairs_ptr: tensor, tile: int, row: tensor, inside: tensor, ROWS: int,
    GROUPS: constexpr, KIND: constexpr, PAIRED: constexpr,
) -> tensor:  # fmt: skip
    """sums, and the products of a tile's four planes."""
    weights = weights_of_planes(words, pairs_ptr, tile, row, inside, ROWS, GROUPS, KIND, PAIRED, x[0].dtype)
    for plane in tl.static_range(4):
        sums = tl.dot(weights[plane], x[plane], sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["M", "chunk", "ahead"])  # no kernel of its own for one row, or a multiple of 16
def int4_kernel(
    x_ptr: tensor, words_ptr: tensor, pairs_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, out_ptr: tensor,
    partial_ptr: tensor, arrived_ptr: tensor, M: int, N: int, K: int, stride: int, chunk: int, ahead: int,
    EVEN_K: constexpr, GROUPS: constexpr, KIND: constexpr, PAIRED: constexpr, ACTIVATION: constexpr, GATED: constexpr,
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
        words = words_of_rows(words_ptr, tile * rows + n, inside_n)
        if GATED:
            up_words = words_of_rows(words_ptr, tile * rows + N + n, inside_n)
        planes = _planes(x, column, start, inside_m, K, EVEN_K)
        sums = _summed(sums, words, planes, pairs_ptr, tile, n, inside_n, rows, GROUPS, KIND, PAIRED)
        if GATED:
            ups = _summed(ups, up_words, planes, pairs_ptr, tile, N + n, inside_n, rows, GROUPS, KIND, PAIRED)

    finish_tile(
        sums, ups, n, m, inside_n, inside_m & inside_n[:, None],
        tl.program_id(2) * tl.num_programs(0) + tl.program_id(0), partial_ptr, arrived_ptr, None, None, bias_ptr,
        residual_ptr, out_ptr, M, N, stride, ACTIVATION, GATED,
    )  # fmt: skip


def int4_product(x: Tensor, weights: Int4Weights, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
    """See `multiply`. x: [M, K], contiguous, of any type: of `weights.kind`, a GPU unpacks weights in pairs.

    Returns [M, N] in x's dtype.
    """
    k = x.shape[1]
    assert x.is_contiguous() and len(x) > 0
    assert weights.words.shape[0] == triton.cdiv(k, TILE) and launch.columns == TILE
    more = {
        "ahead": launch.ahead, "EVEN_K": k % TILE == 0, "GROUPS": weights.groups, "KIND": KINDS[weights.kind],
        "PAIRED": x.is_cuda and x.dtype == weights.kind,
    }  # fmt: skip
    return multiply(int4_kernel, (x, weights.words, weights.pairs), x, weights.rows, x.dtype, launch, more, **around)


KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


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
    words = words_of_rows(words_ptr, tile * ROWS + first + n, inside)
    weights = weights_of_planes(
        words, pairs_ptr, tile, first + n, inside, ROWS, GROUPS, KIND, False, out_ptr.dtype.element_ty
    )
    at = tile * 128 + column
    here = out_ptr + n.to(tl.int64)[:, None] * K + at[None, :]
    for plane in tl.static_range(4):
        tl.store(here + 32 * plane, weights[plane], mask=inside[:, None] & (at + 32 * plane < K)[None, :])
