"""Rows through a matrix of 4-bit floats with a power of two per 32, unpacked in registers (`quantization/mxfp4.py`).

Idea: a value of e2m1 is, bit for bit, the end of a bfloat16: sign, the last two bits of the exponent, the first of the
mantissa. Shifted there it is the value times 2^-126, subnormal where e2m1's is. So a product with 2^(e - 127 + 126)
makes the weight, exactly: two shifts, two logical operations and one product for two weights, as two words of 16 bits
that lie side by side are unpacked together. That needs an e of at most 128, for weights up to 12; `Mxfp4Linear` refuses
others. Activations of another type than bfloat16 take arithmetic of integers and float32.

A turn of the loop takes several tiles of 64 columns. Nibbles j of a tile's 16 words are 16 columns side by side, a
plane. Planes j of all tiles are multiplied together with those columns of x: a product's inner side is 16 per tile.

Few rows of x are multiplied so; for many, a kernel makes the matrix wide piece by piece, and cuBLAS multiplies.
"""

from typing import NamedTuple, Unpack

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.linear.splits import finish_tile
from gradus.kernels.quantized.tile import Around, TileLaunch, multiply

TILE = 64
COLUMNS = 256  # of a turn
MOST_ROWS = 64  # of x that unpack the matrix in their own tiles
MOST_SPLITS = 8  # programs that share a sum


def _unpacking() -> constexpr:
    """PTX that unpacks two words, $4, into two weights of each plane, $0 … $3. $5, $6: the factors of the first two
    planes and of the last two, twice each."""
    lines = [".reg .b32 a, b, signs;", "mov.b32 signs, 0x80008000;"]
    for plane, (to_value, to_sign) in enumerate(((6, 12), (2, 8), (-2, 4), (-6, 0))):
        shift = f"shl.b32 a, $4, {to_value};" if to_value > 0 else f"shr.u32 a, $4, {-to_value};"
        lines += [shift, f"shl.b32 b, $4, {to_sign};", "and.b32 b, b, signs;"]
        lines += [f"lop3.b32 ${plane}, a, 0x01c001c0, b, 0xea;"]
    lines += [f"fma.rn.bf16x2 ${plane}, ${plane}, ${5 + plane // 2}, signs;" for plane in range(4)]
    return constexpr("\n".join(["{", *lines, "}"]))


UNPACK = _unpacking()
OPERANDS = constexpr("=&r,=&r,=&r,=&r,r,r,r")


class Mxfp4Weights(NamedTuple):
    """words: int16 [N, 16 T]; scales: uint8 [N, 2 T], T = ⌈K / 64⌉. As in `Mxfp4Linear`."""

    words: Tensor
    scales: Tensor

    @property
    def rows(self) -> int:
        return self.words.shape[0]

    def widen(self, first: int, out: Tensor) -> None:
        """Write rows first, first + 1, … of the matrix to out, [rows, K], in its type."""
        (count, k), early = out.shape, starts_early()
        widen_kernel[(triton.cdiv(k, COLUMNS), triton.cdiv(count, 32))](
            self.words, self.scales, out, first, count, k, k % COLUMNS == 0, 32, COLUMNS, out.dtype == torch.bfloat16
            and out.is_cuda, early, num_warps=4, launch_pdl=early,
        )  # fmt: skip


# -- unpacking -------------------------------------------------------------------------------------------------------


@triton.jit
def plane_columns(plane: constexpr, COLUMNS: constexpr) -> tensor:
    """The columns of a plane in a turn, [COLUMNS / 4]."""
    at = tl.arange(0, COLUMNS // 4)
    return at // 16 * 64 + 16 * plane + at % 16


@triton.jit
def mxfp4_planes(
    words_ptr: tensor, scales_ptr: tensor, row: tensor, start: tensor, K: int, COLUMNS: constexpr, EVEN: constexpr,
    PAIRED: constexpr, dtype: constexpr,
) -> tensor:  # fmt: skip
    """The weights of four planes from column `start` on, [rows, COLUMNS / 4] each in dtype.

    row: [rows], numbers of rows that exist. EVEN: turns divide K. PAIRED: dtype is bfloat16; unpack two at once.
    """
    tiles = (K + 63) // 64
    tile = start // 64 + tl.arange(0, COLUMNS // 64)
    word = tl.arange(0, 16)
    at = row.to(tl.int64)[:, None] * tiles + tile[None, :]  # [rows, tiles]
    here = words_ptr + at[:, :, None] * 16 + word[None, None, :]
    exponents_at = scales_ptr.to(tl.pointer_type(tl.int16)) + at[:, :, None]
    if EVEN:
        words, exponents = tl.load(here), tl.load(exponents_at)
    else:
        inside = (tile < tiles)[None, :, None]
        words, exponents = tl.load(here, mask=inside, other=0), tl.load(exponents_at, mask=inside, other=0)
    exponents = exponents.to(tl.int32)
    first, second = exponents & 255, (exponents >> 8) & 255
    planes: tensor = ()
    if PAIRED:
        low = ((first + 126) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
        high = ((second + 126) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
        planes = tl.inline_asm_elementwise(
            UNPACK, OPERANDS, [words, tl.broadcast_to(low, words.shape), tl.broadcast_to(high, words.shape)],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        low, high = (first << 23).to(tl.float32, bitcast=True), (second << 23).to(tl.float32, bitcast=True)
        for plane in tl.static_range(4):
            factor = low if plane < 2 else high
            planes = planes + ((_doubled(words.to(tl.int32) >> (4 * plane)) * (0.5 * factor)).to(dtype),)  # noqa: RUF005
    flat: tensor = ()
    for plane in tl.static_range(4):
        flat = flat + (tl.reshape(planes[plane], (row.shape[0], COLUMNS // 4)),)  # noqa: RUF005
    return flat


@triton.jit
def _doubled(codes: tensor) -> tensor:
    """Twice the values of codes, whose upper bits do not matter: integers as float32."""
    size = codes & 7
    magnitude = tl.where(size < 2, size, (2 + (size & 1)) << tl.maximum((size >> 1) - 1, 0))
    return tl.where((codes & 8) != 0, -magnitude, magnitude).to(tl.float32)


# -- few rows --------------------------------------------------------------------------------------------------------


@triton.jit
def mxfp4_summed(
    sums: tensor, words_ptr: tensor, scales_ptr: tensor, row: tensor, x: tensor, there: tensor, start: tensor, K: int,
    COLUMNS: constexpr, EVEN: constexpr, PAIRED: constexpr,
) -> tensor:  # fmt: skip
    """sums [rows, BLOCK_M], and the products of a turn's columns. x: addresses of its rows, [1, BLOCK_M]; there: which
    of them exist."""
    dtype: constexpr = x.dtype.element_ty
    weights = mxfp4_planes(words_ptr, scales_ptr, row, start, K, COLUMNS, EVEN, PAIRED, dtype)
    for plane in tl.static_range(4):
        column = start + plane_columns(plane, COLUMNS)[:, None]
        inside = there if EVEN else there & (column < K)
        some = tl.load(x + column, mask=inside, other=0.0)
        sums = tl.dot(weights[plane], some, sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["M", "chunk"])  # no kernel of its own for one row, or a multiple of 16
def mxfp4_kernel(
    x_ptr: tensor, words_ptr: tensor, scales_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, out_ptr: tensor,
    partial_ptr: tensor, arrived_ptr: tensor, M: int, N: int, K: int, stride: int, chunk: int,
    EVEN_K: constexpr, PAIRED: constexpr, BLOCK_K: constexpr, ACTIVATION: constexpr, GATED: constexpr,
    BLOCK_M: constexpr, BLOCK_N: constexpr, GROUP_M: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """BLOCK_N outputs of BLOCK_M rows, and of their sum the `chunk` turns of BLOCK_K columns that are program_id(1)'s.

    stride: from row to row of out and residual.
    """
    let_next_start(PDL)
    tile_m, tile_n = tl.swizzle2d(tl.program_id(2), tl.program_id(0), tl.num_programs(2), tl.num_programs(0), GROUP_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    inside_n, there = n < N, (m < M)[None, :]
    row = tl.minimum(n, N - 1)  # rows behind the last repeat it, and are not stored
    first = tl.program_id(1) * chunk
    end = min(first + chunk, (K + BLOCK_K - 1) // BLOCK_K)
    wait_for_previous(PDL)
    x = x_ptr + m.to(tl.int64)[None, :] * K
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    ups = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for turn in range(first, end):
        at = turn * BLOCK_K
        sums = mxfp4_summed(sums, words_ptr, scales_ptr, row, x, there, at, K, BLOCK_K, EVEN_K, PAIRED)
        if GATED:
            ups = mxfp4_summed(ups, words_ptr, scales_ptr, N + row, x, there, at, K, BLOCK_K, EVEN_K, PAIRED)

    finish_tile(
        sums, ups, n, m, inside_n, there & inside_n[:, None],
        tl.program_id(2) * tl.num_programs(0) + tl.program_id(0), partial_ptr, arrived_ptr, None, None, bias_ptr,
        residual_ptr, out_ptr, M, N, stride, ACTIVATION, GATED,
    )  # fmt: skip


def launch_for(m: int, outputs: int, k: int, processors: int) -> TileLaunch:
    """A tile that fits registers, and enough programs to have many loads under way. Not measured on any GPU."""
    tokens = min(max(16, 1 << (m - 1).bit_length()), MOST_ROWS)
    programs, turns, splits = -(-outputs // 32) * -(-m // tokens), -(-k // COLUMNS), 1
    while programs * splits < 4 * processors and splits < MOST_SPLITS and turns >= 4 * splits:
        splits *= 2
    return TileLaunch(rows=32, columns=COLUMNS, tokens=tokens, splits=splits, stages=2, warps=4)


def mxfp4_product(x: Tensor, weights: Mxfp4Weights, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
    """See `multiply`. x: [M, K], contiguous. Returns [M, N] in x's dtype."""
    assert x.is_contiguous() and len(x) > 0 and launch.columns % TILE == 0
    more = {
        "EVEN_K": x.shape[1] % launch.columns == 0, "PAIRED": x.is_cuda and x.dtype == torch.bfloat16,
        "BLOCK_K": launch.columns,
    }  # fmt: skip
    return multiply(mxfp4_kernel, (x, weights.words, weights.scales), x, weights.rows, x.dtype, launch, more, **around)


# -- many rows -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["first", "count"])
def widen_kernel(
    words_ptr: tensor, scales_ptr: tensor, out_ptr: tensor, first: int, count: int, K: int, EVEN_K: constexpr,
    BLOCK_N: constexpr, BLOCK_K: constexpr, PAIRED: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Turn program_id(0), of rows first, …, first + count - 1 those from program_id(1) * BLOCK_N on."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row, start = first + tl.minimum(n, count - 1), tl.program_id(0) * BLOCK_K
    weights = mxfp4_planes(
        words_ptr, scales_ptr, row, start, K, BLOCK_K, EVEN_K, PAIRED, out_ptr.dtype.element_ty
    )  # fmt: skip
    for plane in tl.static_range(4):
        column = start + plane_columns(plane, BLOCK_K)[None, :]
        here = out_ptr + n.to(tl.int64)[:, None] * K + column
        tl.store(here, weights[plane], mask=(n < count)[:, None] & (column < K))
