"""Rows sorted by expert: which rows each expert has to multiply.

A pair is a row and one of the experts that it chose; pair p is row p // k and place p % k. Sorted by expert, the pairs
of each are one range, which a product takes in tiles of rows.

Idea: a counting sort with no histogram to share. The program of expert e reads all choices, counts those of lower
experts, which is where its own range begins, and then writes its pairs there, in their order. So one launch does it,
its result is the same every time, and its size depends on N and E alone, as a CUDA graph needs.

Bytes: each of E programs reads 4 N k bytes, twice, from the L2 cache: 16 µs of a step with 65,536 pairs and 128
experts, if the cache delivers 5 TB/s, where the experts' products take about 800.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous

FEWEST_AT_ONCE, MOST_AT_ONCE = 256, 4096  # choices that a program reads together


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
    """Sort the rows' choices. chosen: int32 [N, k], contiguous; a number from `experts` on is nobody's here."""
    assert chosen.dtype == torch.int32 and chosen.is_contiguous()
    count, early = chosen.numel(), starts_early()
    pairs = torch.empty(count, dtype=torch.int32, device=chosen.device)
    starts = torch.empty(experts + 1, dtype=torch.int32, device=chosen.device)
    block = min(max(triton.next_power_of_2(count), FEWEST_AT_ONCE), MOST_AT_ONCE)
    warps = 4 if block <= 1024 else 8
    dispatch_kernel[(experts,)](chosen, pairs, starts, count, block, early, num_warps=warps, launch_pdl=early)
    return Dispatch(pairs, starts, chosen.shape[1])
