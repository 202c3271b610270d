"""Rows sorted by expert: which rows each expert has to multiply.

A pair is a row and one of the experts that it chose; pair p is row p // k and place p % k. Sorted by expert, the pairs
of each are one range, which a product takes in tiles of rows.

Idea: a counting sort. Of few pairs, in one launch and with no histogram to share: the program of expert e reads all
choices, counts those of lower experts, which is where its own range begins, and then writes its pairs there, in their
order. Of many, in two: programs count the choices of each expert in a block of pairs, then each places its block behind
those before it. Either way the result is the same every time, and its size depends on N and E alone, as a CUDA graph
needs.

Bytes: each of E programs reads 4 N k bytes, twice, from the L2 cache; that takes 2 µs for 1,024 pairs and 128 experts
on an H200, but 44 µs for 65,536. In two launches, each of N k / BLOCK programs reads all 4 E N k / BLOCK bytes of
counts.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous

FEWEST_AT_ONCE, MOST_AT_ONCE = 256, 2048  # choices that a program reads together
MOST_IN_ONE_LAUNCH = 4096  # pairs
BLOCK_OF_PAIRS = 512  # in two launches
TOGETHER = constexpr(32)  # experts, blocks or pairs that a block's pairs are compared with at a time


class Dispatch(NamedTuple):
    """Pairs by expert. pairs: int32 [N k], sorted, those of an expert in ascending order. starts: int32 [E + 1], where
    each expert's begin, and where the last one's end. chosen: k.
    """

    pairs: Tensor
    starts: Tensor
    chosen: int

    @property
    def experts(self) -> int:
        return len(self.starts) - 1

    def tiles(self, rows: int) -> int:
        """Return how many places for tiles there are, of at most `rows` rows of one expert; see `tile_at`."""
        return len(self.pairs) // rows + self.experts


@triton.jit(do_not_specialize=["count"])
def dispatch_kernel(
    chosen_ptr: tensor, pairs_ptr: tensor, starts_ptr: tensor, count: int, BLOCK: constexpr, PDL: constexpr
) -> None:
    """Sort the pairs of expert program_id(0)."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    expert = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    lower = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, BLOCK):
        lower += (tl.load(chosen_ptr + start + at, mask=start + at < count, other=expert) < expert).to(tl.int32)
    place = tl.sum(lower)
    tl.store(starts_ptr + expert, place)
    for start in range(0, count, BLOCK):
        mine = (tl.load(chosen_ptr + start + at, mask=start + at < count, other=-1) == expert).to(tl.int32)
        tl.store(pairs_ptr + place + tl.cumsum(mine, 0) - 1, start + at, mask=mine == 1)
        place += tl.sum(mine)
    if expert == tl.num_programs(0) - 1:
        tl.store(starts_ptr + expert + 1, place)


@triton.jit(do_not_specialize=["count"])
def count_kernel(
    chosen_ptr: tensor, counts_ptr: tensor, count: int, EXPERTS: constexpr, BLOCK: constexpr, PDL: constexpr
) -> None:
    """Count the choices of each expert among the pairs of block program_id(0). EXPERTS: a power of 2."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(chosen_ptr + at, mask=at < count, other=EXPERTS)
    for start in range(0, EXPERTS, TOGETHER):
        expert = start + tl.arange(0, TOGETHER)
        found = tl.sum((chosen[:, None] == expert[None, :]).to(tl.int32), 0)
        tl.store(counts_ptr + tl.program_id(0) * EXPERTS + expert, found)


@triton.jit(do_not_specialize=["count", "experts", "blocks"])
def place_kernel(
    chosen_ptr: tensor, counts_ptr: tensor, pairs_ptr: tensor, starts_ptr: tensor,
    count: int, experts: int, blocks: int, EXPERTS: constexpr, BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Place the pairs of block program_id(0) behind those of lower experts, and of the same one in earlier blocks."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    block = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    total, earlier = tl.zeros((EXPERTS,), tl.int32), tl.zeros((EXPERTS,), tl.int32)
    for start in range(0, blocks, TOGETHER):
        other = start + tl.arange(0, TOGETHER)
        here = counts_ptr + other[:, None] * EXPERTS + expert[None, :]
        found = tl.load(here, mask=(other < blocks)[:, None], other=0)
        total += tl.sum(found, 0)
        earlier += tl.sum(tl.where((other < block)[:, None], found, 0), 0)
    starts = tl.cumsum(total, 0) - total
    if block == 0:
        tl.store(starts_ptr + expert, starts, mask=expert < experts)
        tl.store(starts_ptr + expert + 1, starts + total, mask=expert == experts - 1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(chosen_ptr + at, mask=at < count, other=EXPERTS)
    place = tl.gather(starts + earlier, tl.minimum(chosen, EXPERTS - 1), 0)
    for start in range(0, BLOCK, TOGETHER):
        before = block * BLOCK + start + tl.arange(0, TOGETHER)
        others = tl.load(chosen_ptr + before, mask=before < count, other=-1)
        same = (chosen[:, None] == others[None, :]) & (before[None, :] < at[:, None])
        place += tl.sum(same.to(tl.int32), 1)
    tl.store(pairs_ptr + place, at, mask=chosen < experts)


@triton.jit
def tile_at(
    starts_ptr: tensor, place: tensor, experts: int, EXPERTS: constexpr, ROWS: constexpr
) -> tuple[tensor, tensor, tensor]:
    """Return the expert of a tile, where the tile's pairs begin, and where the expert's end: a tile may have none.

    An expert whose range is [s, t) has the places from s / ROWS + e to t / ROWS + e, one more than it could need. So
    places follow from `starts` without a sum over the experts before, and some stay empty. EXPERTS: a power of 2.
    """
    each = tl.arange(0, EXPERTS)
    # from the L2 cache: a launch that starts early may find an earlier step's values in a multiprocessor's own
    starts = tl.load(starts_ptr + each, mask=each < experts, other=1 << 30, cache_modifier=".cg")
    begun = starts // ROWS + each <= place
    expert = tl.sum(begun.to(tl.int32), 0) - 1
    start = tl.max(tl.where(begun, starts, 0), 0)
    end = tl.load(starts_ptr + expert + 1, cache_modifier=".cg")
    first = start + (place - start // ROWS - expert) * ROWS
    return expert, first, end


def dispatch(chosen: Tensor, experts: int) -> Dispatch:
    """Sort the rows' choices. chosen: int32 [N, k], contiguous; pairs of numbers from `experts` on are left out."""
    assert chosen.dtype == torch.int32 and chosen.is_contiguous()
    count, early = chosen.numel(), starts_early()
    pairs = torch.empty(count, dtype=torch.int32, device=chosen.device)
    starts = torch.empty(experts + 1, dtype=torch.int32, device=chosen.device)
    if count <= MOST_IN_ONE_LAUNCH:
        block = min(max(triton.next_power_of_2(count), FEWEST_AT_ONCE), MOST_AT_ONCE)
        dispatch_kernel[(experts,)](chosen, pairs, starts, count, block, early, num_warps=4, launch_pdl=early)
        return Dispatch(pairs, starts, chosen.shape[1])
    blocks, wide = triton.cdiv(count, BLOCK_OF_PAIRS), max(triton.next_power_of_2(experts), TOGETHER.value)
    counts = torch.empty(blocks, wide, dtype=torch.int32, device=chosen.device)
    more = {"EXPERTS": wide, "BLOCK": BLOCK_OF_PAIRS, "PDL": early, "num_warps": 8, "launch_pdl": early}
    count_kernel[(blocks,)](chosen, counts, count, **more)
    place_kernel[(blocks,)](chosen, counts, pairs, starts, count, experts, blocks, **more)
    return Dispatch(pairs, starts, chosen.shape[1])
