"""Rows through a matrix in GGUF's blocks (`gradus.quantization.gguf`), unpacked in registers on their way to a product.

Idea: a matrix is the file's own bytes, here as on a CPU, so there is one form of it and nothing to convert. A block of
18, 22, 34 or 210 bytes lets no load be wider than two of them, so weights are read a byte at a time, 32 neighbors of a
row by 32 lanes; what a warp asks for still lies side by side. A step of the loop is one group of 32 columns: its scale
and its offset are computed once per row, the weight is scale q + offset in float32, rounded once to the type of x. Four
groups are unrolled, so that their loads are under way together.

Few rows of x are multiplied so. For many, unpacking once per tile of them would cost more than it saves: a kernel
writes a piece of the matrix, wide, to memory that each piece uses again, and cuBLAS multiplies. A third kernel looks up
the rows of an embedding.
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
from gradus.quantization.gguf import FORMATS, Format
from gradus.quantization.schemes import MXFP4

UNROLLED = tl.constexpr(4)  # groups per turn of a program's loop
TILE = 32 * 4  # columns of a turn
MOST_ROWS = 64  # of x that unpack the matrix in their own tiles
MOST_SPLITS = 8  # programs that share a sum
NUMBERS = {name: number for number, name in enumerate(name for name in FORMATS if name != MXFP4)}  # in the kernels
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K = (tl.constexpr(number) for number in NUMBERS.values())


class Blocks(NamedTuple):
    """bytes: uint8 [N, bytes per row], of one format."""

    bytes: Tensor
    format: Format

    @property
    def rows(self) -> int:
        return self.bytes.shape[0]

    def widen(self, first: int, out: Tensor, ids: Tensor | None = None) -> None:
        """Write rows first, first + 1, … of the matrix, or those of some tokens, to out, [rows, K], in its type."""
        count, k = out.shape
        early = ids is None and starts_early()  # what follows a step's first launch relies on an ordinary one
        together = 8 if ids is None else 1
        widen_blocks_kernel[(triton.cdiv(k, TILE), triton.cdiv(count, together))](
            self.bytes, ids, out, first, count, k, self.bytes.shape[1], NUMBERS[self.format.name], together, early,
            num_warps=4, launch_pdl=early,
        )  # fmt: skip


# -- unpacking -------------------------------------------------------------------------------------------------------


@triton.jit
def _half(at: tensor, inside: tensor) -> tensor:
    """The float16 at some even addresses, as float32."""
    return tl.load(at.to(tl.pointer_type(tl.float16)), mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _byte(at: tensor, inside: tensor) -> tensor:
    return tl.load(at, mask=inside, other=0).to(tl.int32)


@triton.jit
def _sixes(block: tensor, group: int, inside: tensor) -> tensor:
    """A K-block's scale and offset of a group, [BLOCK_N] each. See `gradus.quantization.gguf` for the order of bits."""
    early, some = group < 4, inside & (group >= 4)
    low, middle = _byte(block + 4 + group % 4, inside), _byte(block + 8 + group % 4, inside)
    high = _byte(block + 8 + group, some)
    scale = tl.where(early, low & 63, (high & 15) | ((low >> 6) << 4))
    minimum = tl.where(early, middle & 63, (high >> 4) | ((middle >> 6) << 4))
    return _half(block, inside) * scale.to(tl.float32), -_half(block + 2, inside) * minimum.to(tl.float32)


@triton.jit
def weights_of_group(row: tensor, step: int, inside: tensor, FORMAT: constexpr) -> tensor:
    """The weights of 32 columns of some rows, float32 [BLOCK_N, 32]: columns 32 step and on.

    row: addresses of the rows, [BLOCK_N]. inside: which of them exist.
    """
    lane = tl.arange(0, 32)[None, :]
    every, half, group = inside[:, None], lane // 16, step % 8
    if FORMAT == Q4_K:
        block = row + (step // 8) * 144
        packed = _byte(block[:, None] + 16 + 32 * (group // 2) + lane, every)
        scale, offset = _sixes(block, group, inside)
        weights = scale[:, None] * ((packed >> (4 * (group % 2))) & 15).to(tl.float32) + offset[:, None]
    elif FORMAT == Q5_K:
        block = row + (step // 8) * 176
        packed = _byte(block[:, None] + 48 + 32 * (group // 2) + lane, every)
        fifth = ((_byte(block[:, None] + 16 + lane, every) >> group) & 1) << 4
        scale, offset = _sixes(block, group, inside)
        values = ((packed >> (4 * (group % 2))) & 15) | fifth
        weights = scale[:, None] * values.to(tl.float32) + offset[:, None]
    elif FORMAT == Q6_K:
        block, part = row + (step // 8) * 210, group % 4
        low = _byte(block[:, None] + 64 * (group // 4) + 32 * (part % 2) + lane, every)
        high = _byte(block[:, None] + 128 + 32 * (group // 4) + lane, every)
        values = (((low >> (4 * (part // 2))) & 15) | (((high >> (2 * part)) & 3) << 4)) - 32
        signed = tl.load((block[:, None] + 192 + 2 * group + half).to(tl.pointer_type(tl.int8)), mask=every, other=0)
        weights = _half(block + 208, inside)[:, None] * signed.to(tl.float32) * values.to(tl.float32)
    elif FORMAT == Q8_0:
        block = row + step * 34
        values = tl.load((block[:, None] + 2 + lane).to(tl.pointer_type(tl.int8)), mask=every, other=0)
        weights = _half(block, inside)[:, None] * values.to(tl.float32)
    elif FORMAT == Q4_0:
        block = row + step * 18
        values = ((_byte(block[:, None] + 2 + lane % 16, every) >> (4 * half)) & 15) - 8
        weights = _half(block, inside)[:, None] * values.to(tl.float32)
    elif FORMAT == Q4_1:
        block = row + step * 20
        values = (_byte(block[:, None] + 4 + lane % 16, every) >> (4 * half)) & 15
        weights = _half(block, inside)[:, None] * values.to(tl.float32) + _half(block + 2, inside)[:, None]
    elif FORMAT == Q5_0:
        block = row + step * 22
        weights = _half(block, inside)[:, None] * (_fives(block, 2, lane, every) - 16).to(tl.float32)
    else:
        tl.static_assert(FORMAT == Q5_1)
        block = row + step * 24
        values = _fives(block, 4, lane, every).to(tl.float32)
        weights = _half(block, inside)[:, None] * values + _half(block + 2, inside)[:, None]
    return weights


@triton.jit
def _fives(block: tensor, AT: constexpr, lane: tensor, every: tensor) -> tensor:
    """32 integers of 5 bits: their fifth bits from byte AT of a block on, and then their nibbles."""
    low = (_byte(block[:, None] + AT + 4 + lane % 16, every) >> (4 * (lane // 16))) & 15
    return low | (((_byte(block[:, None] + AT + lane // 8, every) >> (lane % 8)) & 1) << 4)


# -- few rows --------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["M", "chunk", "ROW"])  # no kernel of its own for one row, or a multiple of 16
def gguf_kernel(
    x_ptr: tensor, blocks_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, out_ptr: tensor,
    partial_ptr: tensor, arrived_ptr: tensor, M: int, N: int, K: int, stride: int, chunk: int,
    ROW: int, FORMAT: constexpr, ACTIVATION: constexpr, GATED: constexpr,
    BLOCK_M: constexpr, BLOCK_N: constexpr, GROUP_M: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """BLOCK_N outputs of BLOCK_M rows, and of their sum the `chunk` tiles of 128 columns that are program_id(1)'s.

    ROW: bytes of a row of blocks. stride: from row to row of out and residual.
    """
    let_next_start(PDL)
    tile_m, tile_n = tl.swizzle2d(tl.program_id(2), tl.program_id(0), tl.num_programs(2), tl.num_programs(0), GROUP_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, 32)
    inside_n, inside_m = n < N, (m < M)[None, :]
    first = tl.program_id(1) * chunk
    end = min(first + chunk, (K + 32 * UNROLLED - 1) // (32 * UNROLLED))
    row = blocks_ptr + n.to(tl.int64) * ROW
    up_row = blocks_ptr + (n + N).to(tl.int64) * ROW
    wait_for_previous(PDL)
    x = x_ptr + m.to(tl.int64)[None, :] * K + lane[:, None]
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    ups = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for tile in range(first, end):
        for group in tl.static_range(UNROLLED):
            step = tile * UNROLLED + group
            there = step * 32 < K  # a row may end inside a tile
            some = tl.load(x + step * 32, mask=inside_m & there, other=0.0)
            weights = weights_of_group(row, step, inside_n & there, FORMAT).to(some.dtype)
            sums = tl.dot(weights, some, sums, input_precision="ieee")
            if GATED:
                weights = weights_of_group(up_row, step, inside_n & there, FORMAT).to(some.dtype)
                ups = tl.dot(weights, some, ups, input_precision="ieee")

    finish_tile(
        sums, ups, n, m, inside_n, inside_m & inside_n[:, None],
        tl.program_id(2) * tl.num_programs(0) + tl.program_id(0), partial_ptr, arrived_ptr, None, None, bias_ptr,
        residual_ptr, out_ptr, M, N, stride, ACTIVATION, GATED,
    )  # fmt: skip


def launch_for(m: int, outputs: int, k: int, processors: int) -> TileLaunch:
    """A tile that fits registers, and enough programs to have many loads under way. Not measured on any GPU."""
    tokens = min(max(8, 1 << (m - 1).bit_length()), MOST_ROWS)
    programs, tiles, splits = -(-outputs // 32) * -(-m // tokens), -(-k // TILE), 1
    while programs * splits < 4 * processors and splits < MOST_SPLITS and tiles >= 4 * splits:
        splits *= 2
    return TileLaunch(rows=32, columns=TILE, tokens=tokens, splits=splits, stages=2, warps=4)


def gguf_product(x: Tensor, weights: Blocks, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
    """See `multiply`. x: [M, K], contiguous. Returns [M, N] in x's dtype."""
    assert x.is_contiguous() and len(x) > 0 and launch.columns == TILE
    more = {"ROW": weights.bytes.shape[1], "FORMAT": NUMBERS[weights.format.name]}
    return multiply(gguf_kernel, (x, weights.bytes), x, weights.rows, x.dtype, launch, more, **around)


# -- many rows, and rows of tokens -----------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["first", "count", "ROW"])
def widen_blocks_kernel(
    blocks_ptr: tensor, ids_ptr: tensor, out_ptr: tensor, first: int, count: int, K: int,
    ROW: int, FORMAT: constexpr, BLOCK_N: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Tile program_id(0) of BLOCK_N rows from program_id(1) * BLOCK_N on: rows first, …, first + count - 1, or those of
    `count` ids, int64."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    tile = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < count
    number = (first + n).to(tl.int64)
    if ids_ptr is not None:
        number = tl.load(ids_ptr + n, mask=inside, other=0).to(tl.int64)
    row = blocks_ptr + number * ROW
    here = out_ptr + n.to(tl.int64)[:, None] * K + tl.arange(0, 32)[None, :]
    for group in tl.static_range(UNROLLED):
        step = tile * UNROLLED + group
        there = inside & (step * 32 < K)
        weights = weights_of_group(row, step, there, FORMAT)
        tl.store(here + step * 32, weights.to(out_ptr.dtype.element_ty), mask=there[:, None])


def lookup(weights: Blocks, ids: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """The rows of some tokens, int64 [N] → [N, K] in dtype."""
    out = torch.empty(len(ids), k, dtype=dtype, device=ids.device)
    if len(ids):
        weights.widen(0, out, ids)
    return out
