"""Rows sorted by expert: which rows each expert has to multiply.

A pair is a row and one of the experts that it chose; pair p is row p // k and place p % k. Sorted by expert, the pairs
of each are one range, which a product takes in tiles of rows.

Idea: a counting sort without a histogram to share. The program of expert e reads all choices, counts those of lower
experts, which is where its own range begins, and then writes its pairs there, in their order. So one launch does it for
few pairs. Many are cut into segments, with a program for each and each expert: a first launch counts, and a second one
adds up the counts before its own. Either way the result is the same every time, and its size depends on N and E alone,
as a CUDA graph needs.

Bytes: each of E programs reads 4 N k bytes, twice, from the L2 cache. In one launch that takes 2 µs for 1,024 pairs and
128 experts on an H200, 8 for 8,192 and 44 for 65,536, since one program's rounds follow each other.
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
SEGMENT = 4096  # pairs of a program, of two launches
TOGETHER = constexpr(16)  # segments whose counts are read together


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
        chosen = tl.load(chosen_ptr + start + at, mask=start + at < count, other=-1)
        lower += ((chosen >= 0) & (chosen < expert)).to(tl.int32)
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
    chosen_ptr: tensor, counts_ptr: tensor, count: int, EXPERTS: constexpr, SEGMENT: constexpr, PDL: constexpr
) -> None:
    """Count the choices of expert program_id(0) in segment program_id(1). counts: [segments, EXPERTS]."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    expert, segment = tl.program_id(0), tl.program_id(1)
    at = segment * SEGMENT + tl.arange(0, SEGMENT)
    mine = tl.load(chosen_ptr + at, mask=at < count, other=-1) == expert
    tl.store(counts_ptr + segment * EXPERTS + expert, tl.sum(mine.to(tl.int32)))


@triton.jit(do_not_specialize=["count", "segments"])
def place_kernel(
    chosen_ptr: tensor, counts_ptr: tensor, pairs_ptr: tensor, starts_ptr: tensor, count: int, segments: int,
    EXPERTS: constexpr, SEGMENT: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Place a segment's pairs of expert program_id(0) behind those of lower experts and of earlier segments.

    EXPERTS: a power of 2, at least as many as there are programs.
    """
    let_next_start(PDL)
    wait_for_previous(PDL)
    expert, segment = tl.program_id(0), tl.program_id(1)
    other = tl.arange(0, EXPERTS)[None, :]
    inside = other < tl.num_programs(0)
    before, every = tl.zeros((TOGETHER, EXPERTS), tl.int32), tl.zeros((TOGETHER, EXPERTS), tl.int32)
    for start in range(0, segments, TOGETHER):
        row = start + tl.arange(0, TOGETHER)[:, None]
        counts = tl.load(counts_ptr + row * EXPERTS + other, mask=inside & (row < segments), other=0)
        before += tl.where((other < expert) | ((other == expert) & (row < segment)), counts, 0)
        every += counts
    place = tl.sum(before)
    if segment == 0:
        tl.store(starts_ptr + expert, place)
        if expert == tl.num_programs(0) - 1:
            tl.store(starts_ptr + expert + 1, tl.sum(every))
    at = segment * SEGMENT + tl.arange(0, SEGMENT)
    mine = (tl.load(chosen_ptr + at, mask=at < count, other=-1) == expert).to(tl.int32)
    tl.store(pairs_ptr + place + tl.cumsum(mine, 0) - 1, at, mask=mine == 1)


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
    """Sort the rows' choices. chosen: int32 [N, k], contiguous; pairs of other numbers than 0 to E - 1 are left out."""
    assert chosen.dtype == torch.int32 and chosen.is_contiguous()
    count, early = chosen.numel(), starts_early()
    pairs = torch.empty(count, dtype=torch.int32, device=chosen.device)
    starts = torch.empty(experts + 1, dtype=torch.int32, device=chosen.device)
    if count <= MOST_IN_ONE_LAUNCH:
        block = min(max(triton.next_power_of_2(count), FEWEST_AT_ONCE), MOST_AT_ONCE)
        dispatch_kernel[(experts,)](chosen, pairs, starts, count, block, early, num_warps=4, launch_pdl=early)
        return Dispatch(pairs, starts, chosen.shape[1])
    segments, wide = triton.cdiv(count, SEGMENT), triton.next_power_of_2(experts)
    counts = torch.empty(segments, wide, dtype=torch.int32, device=chosen.device)
    grid, more = (experts, segments), {"EXPERTS": wide, "SEGMENT": SEGMENT, "PDL": early}
    count_kernel[grid](chosen, counts, count, **more, num_warps=8, launch_pdl=early)
    place_kernel[grid](chosen, counts, pairs, starts, count, segments, **more, num_warps=8, launch_pdl=early)
    return Dispatch(pairs, starts, chosen.shape[1])
