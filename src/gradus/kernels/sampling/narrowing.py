"""Finds the cutoff of top-k, top-p and min-p: one threshold per row, by searching for a value instead of sorting.

Each choice keeps {x >= threshold}, so one number describes it, and the largest decides: the k-th largest logit;
the largest t for which {x >= t} has p of the mass that top-k has left; the maximum plus T log min_p. Tokens as likely
as the last one kept are kept too.

A vocabulary is too long to be searched again and again, and hardly any of it matters. One reading of the logits notes
the maximum of each group of tokens (`note`). The 64 groups with the largest maxima hold every token above the largest
maximum of the others, the bound. A threshold above the bound is found in those groups alone, in the registers of one
program, which draws the token as well. Groups of 128 tokens are chosen first, then groups of 32 among their parts:
2,048 tokens are searched. With top-k up to 64 the threshold is always above the bound, except for ties; with top-p it
is where the distribution has a peak. Elsewhere (flat distributions under top-p, large k) another program searches the
whole row, three pivots per reading, and leaves the draw to the race of plain rows (`plain.py`), among
tokens that are not below the threshold.

Sums run over fixed blocks in a fixed order, so a threshold does not depend on the batch. (Search for a pivot instead of
sorting: Park et al. 2026, arXiv 2602.01518, "Qrita".)
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.errors import ConfigError
from gradus.kernels.core.constants import INFINITY, LOG2_E
from gradus.kernels.sampling.plain import exponential_noise
from gradus.kernels.sampling.slot_settings import (
    MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SlotSettings,
    adjusted,
    choice_of,
    number_of,
    widened,
)

FINE, COARSE = constexpr(32), constexpr(128)  # tokens per group
KEPT = constexpr(64)  # groups that are looked into
BLOCK = 2048  # tokens that one program notes statistics of
CHUNK = constexpr(4096)  # tokens read at a time where a whole row is searched
UNDRAWN, UNFOUND = constexpr(-1), constexpr(-2)  # in the place of a token
BEYOND = constexpr(1 << 22)  # the number of no group: its tokens are beyond every vocabulary
LARGEST = constexpr(float(torch.finfo(torch.float32).max))


class Statistics(NamedTuple):
    """Statistics of 2 R rows: r for the logits that row r draws from, R + r for the model's logits, which it reports.

    fine, coarse: float32 [2 R, groups], the groups' maxima. tops, masses, bottoms: float32 [2 R, blocks]: a block's
    maximum, its mass relative to that, its least finite logit. room: int32 [2 R, 2 KEPT], where chosen groups are set
    side by side.
    """

    fine: Tensor
    coarse: Tensor
    tops: Tensor
    masses: Tensor
    bottoms: Tensor
    room: Tensor
    groups: int  # coarse ones
    blocks: int


def statistics(rows: int, vocab_size: int, device: torch.device) -> Statistics:
    """Memory for them, a tensor each: kernels are compiled once more for pointers that are no multiple of 16 bytes."""
    if vocab_size >= (most := COARSE.value << 15):  # a rank has no bits for more groups
        limit = f"the sampling kernels take fewer than {most} tokens"
        raise ConfigError(f"a vocabulary of {vocab_size}: {limit}, leave them out (--switch-off kernels)")
    groups, blocks = triton.cdiv(vocab_size, COARSE.value), triton.cdiv(vocab_size, BLOCK)
    widths = (groups * (COARSE.value // FINE.value), groups, blocks, blocks, blocks)
    fine, coarse, tops, masses, bottoms = (
        torch.empty(2 * rows, width, dtype=torch.float32, device=device) for width in widths
    )
    room = torch.empty(2 * rows, 2 * KEPT.value, dtype=torch.int32, device=device)
    return Statistics(fine, coarse, tops, masses, bottoms, room, groups, blocks)


@triton.jit
def note(x: tensor, scale: tensor, into: Statistics, row: tensor, block: tensor) -> None:
    """One block, x: float32 [BLOCK]. Masses are of exp2(scale x)."""
    SPLIT: constexpr = COARSE // FINE
    GROUPS: constexpr = x.shape[0] // COARSE
    fine = tl.max(tl.reshape(x, [GROUPS * SPLIT, FINE]), 1)
    coarse = tl.max(tl.reshape(fine, [GROUPS, SPLIT]), 1)
    group, part = block * GROUPS + tl.arange(0, GROUPS), block * GROUPS * SPLIT + tl.arange(0, GROUPS * SPLIT)
    tl.store(into.coarse + row * into.groups + group, coarse, mask=group < into.groups)
    tl.store(into.fine + row * into.groups * SPLIT + part, fine, mask=part < into.groups * SPLIT)
    top = tl.max(coarse, 0)
    start = tl.where(tl.abs(top) < INFINITY, top, 0.0)
    here = row * into.blocks + block
    tl.store(into.tops + here, top)
    tl.store(into.masses + here, tl.sum(tl.exp2((x - start) * scale), 0))
    tl.store(into.bottoms + here, tl.min(tl.where(x > -INFINITY, x, INFINITY), 0))


@triton.jit
def total_mass(noted: Statistics, row: tensor, top: tensor, scale: tensor, BLOCKS: constexpr) -> tensor:
    """Return the row's mass, relative to its maximum."""
    block = tl.arange(0, BLOCKS)
    here = row * noted.blocks + block
    tops = tl.load(noted.tops + here, mask=block < noted.blocks, other=-INFINITY)
    masses = tl.load(noted.masses + here, mask=block < noted.blocks, other=0.0)
    return tl.sum(tl.where(tops > -INFINITY, masses * tl.exp2((tops - top) * scale), 0.0), 0)


@triton.jit
def greatest_of_row(noted: Statistics, row: tensor, BLOCKS: constexpr) -> tensor:
    block = tl.arange(0, BLOCKS)
    return tl.max(tl.load(noted.tops + row * noted.blocks + block, mask=block < noted.blocks, other=-INFINITY), 0)


# -- the search for a value --------------------------------------------------------------------------------------------


@triton.jit
def above(x: tensor) -> tensor:
    """A number that is a little larger."""
    return x + tl.abs(x) * 1e-6 + 1e-30


@triton.jit
def joined(
    a0: tensor, a1: tensor, a2: tensor, low: tensor, high: tensor,
    b0: tensor, b1: tensor, b2: tensor, other_low: tensor, other_high: tensor,
) -> tuple[tensor, tensor, tensor, tensor, tensor]:  # fmt: skip
    return a0 + b0, a1 + b1, a2 + b2, tl.minimum(low, other_low), tl.maximum(high, other_high)


@triton.jit
def pivots(low: tensor, high: tensor) -> tuple[tensor, tensor, tensor]:
    """Where the quarters of [low, high) meet: finite, whatever low is, and even if high is infinite."""
    end = tl.minimum(high, LARGEST)
    quarter = end / 4 - low / 4
    return low + quarter, low + 2 * quarter, end - quarter


@triton.jit
def next_bracket(
    target: tensor, low: tensor, high: tensor, w1: tensor, w2: tensor, w3: tensor, least: tensor
) -> tuple[tensor, tensor]:
    """The quarter of [low, high) in which the weight of {x >= t} falls below the target.

    w1, w2, w3: that weight where the quarters meet. least: the smallest x in [low, high).
    """
    first, second, third = pivots(low, high)
    new_low = tl.where(w3 >= target, third, tl.where(w2 >= target, second, tl.where(w1 >= target, first, low)))
    new_high = tl.where(w1 < target, first, tl.where(w2 < target, second, tl.where(w3 < target, third, high)))
    return tl.maximum(new_low, least), new_high


@triton.jit
def cut(x: tensor, weights: tensor, target: tensor, low: tensor, high: tensor) -> tensor:
    """The largest t such that the weights of {x >= t} sum to the target at least; x, weights [N].

    low: a t for which they do. high: larger than every x.
    """
    least, most = low, high
    while least < most:
        first, second, third = pivots(low, high)
        within = (x >= low) & (x < high)
        w1, w2, w3, least, most = tl.reduce(
            (
                tl.where(x >= first, weights, 0.0),
                tl.where(x >= second, weights, 0.0),
                tl.where(x >= third, weights, 0.0),
                tl.where(within, x, INFINITY),
                tl.where(within, x, -INFINITY),
            ),
            0,
            joined,
        )
        low, high = next_bracket(target, low, high, w1, w2, w3, least)
    return most


# -- the groups with the largest maxima --------------------------------------------------------------------------------


@triton.jit
def summary(
    a0: tensor, a1: tensor, most: tensor, least: tensor, b0: tensor, b1: tensor, other_most: tensor, other_least: tensor
) -> tuple[tensor, tensor, tensor, tensor]:  # fmt: skip
    """Two sums, a maximum and a minimum: one reduction of four takes hardly longer than one of one."""
    return a0 + b0, a1 + b1, tl.maximum(most, other_most), tl.minimum(least, other_least)


@triton.jit
def best_groups(peaks: tensor, numbers: tensor, room_ptr: tensor) -> tuple[tensor, tensor]:
    """KEPT of the groups with these maxima and numbers, [N], those with the largest maxima, of equal ones the first.

    Returns their numbers, int32 [KEPT], in no order that matters, BEYOND in the place of groups that are not there; and
    the bound: the largest maximum among the others. room_ptr: KEPT int32, to set them side by side.
    """
    there = peaks > -INFINITY
    count, _, most, least = tl.reduce(
        (there.to(tl.int32), there.to(tl.int32), peaks, tl.where(there, peaks, INFINITY)), 0, summary
    )
    last = tl.full((), -INFINITY, tl.float32)
    if count > KEPT:
        last = cut(peaks, there.to(tl.float32), tl.full((), KEPT, tl.float32), least, above(most))
    larger, equal = (peaks > last).to(tl.int32), (peaks == last).to(tl.int32)
    left_out = tl.where(peaks < last, peaks, -INFINITY)
    larger_ones, equal_ones, bound, _ = tl.reduce((larger, equal, left_out, left_out), 0, summary)
    rank = tl.cumsum(
        larger + (equal << 16), 0
    )  # of both kinds, in a word's halves: a scan costs as much as a search's pass
    place = tl.where(larger > 0, (rank & 0xFFFF) - 1, larger_ones + (rank >> 16) - 1)
    tl.store(room_ptr + place, numbers, mask=(larger + equal > 0) & (place < KEPT))
    tl.debug_barrier()  # a thread loads what another has stored
    slot = tl.arange(0, KEPT)
    kept = tl.load(room_ptr + slot, mask=slot < larger_ones + equal_ones, other=BEYOND)
    return kept, tl.where(larger_ones + equal_ones > KEPT, last, bound)


@triton.jit
def members(groups: tensor, SIZE: constexpr) -> tensor:
    """Return the numbers of the groups' members, SIZE each: tokens, or quarters of groups."""
    return tl.ravel(groups[:, None] * SIZE + tl.arange(0, SIZE)[None, :])


@triton.jit
def groups_looked_into(noted: Statistics, row: tensor, GROUPS: constexpr) -> tuple[tensor, tensor]:
    """KEPT fine groups of a row, and the bound, above which no other holds a token.

    Fine groups are chosen among the parts of coarse ones that were chosen first.
    """
    SPLIT: constexpr = COARSE // FINE
    group = tl.arange(0, GROUPS)
    peaks = tl.load(noted.coarse + row * noted.groups + group, mask=group < noted.groups, other=-INFINITY)
    coarse, bound = best_groups(peaks, group, noted.room + row * 2 * KEPT)
    parts = members(coarse, SPLIT)
    there = parts < noted.groups * SPLIT
    peaks = tl.load(noted.fine + row * noted.groups * SPLIT + parts, mask=there, other=-INFINITY)
    fine, fine_bound = best_groups(peaks, parts, noted.room + (row * 2 + 1) * KEPT)
    return fine, tl.maximum(bound, fine_bound)


# -- a whole row -------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One row of a step, for functions that read it. logits: where it begins; stride: elements that may be read."""

    logits: Tensor
    stride: int
    settings: SlotSettings
    slot: int
    position: int
    vocab_size: int


@triton.jit
def logits_of(row: Row, token: tensor) -> tensor:
    """Load these tokens' logits, adjusted by the slot's settings; -inf beyond the vocabulary."""
    inside = token < row.vocab_size
    x = widened(row.logits, token, token < row.stride, inside)
    return adjusted(x, token, inside, row.settings, row.slot, row.position)


@triton.jit
def row_cut(
    row: Row, by_mass: tensor, target: tensor, top: tensor, scale: tensor, low: tensor, high: tensor
) -> tuple[tensor, tensor]:
    """`cut` over a whole row, a reading per pass; and the mass of {x >= t}, relative to `top`, the row's maximum.

    by_mass: whether weights are masses; else they are ones.
    """
    least, most, mass = low, high, high
    while least < most:
        first, second, third = pivots(low, high)
        w1, w2, w3 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
        within, lows, highs = w1, w1 + INFINITY, w1 - INFINITY
        for start in tl.range(0, row.vocab_size, CHUNK):
            x = logits_of(row, start + tl.arange(0, CHUNK))
            masses = tl.exp2((x - top) * scale)
            weights = tl.where(by_mass, masses, 1.0)
            w1 += tl.where(x >= first, weights, 0.0)
            w2 += tl.where(x >= second, weights, 0.0)
            w3 += tl.where(x >= third, weights, 0.0)
            within += tl.where(x >= low, masses, 0.0)
            lows = tl.minimum(lows, tl.where(x >= low, x, INFINITY))
            highs = tl.maximum(highs, tl.where(x < high, x, -INFINITY))
        s1, s2, s3, least, most = tl.reduce((w1, w2, w3, lows, highs), 0, joined)
        mass = tl.sum(within, 0)  # of the last pass, in which only t is left of the bracket
        low, high = next_bracket(target, low, high, s1, s2, s3, least)
    return most, mass


# -- the threshold -----------------------------------------------------------------------------------------------------


@triton.jit
def threshold_among(
    x: tensor, bound: tensor, total: tensor, top: tensor, scale: tensor, row: Row
) -> tuple[tensor, tensor]:
    """The threshold by top-k, then top-p, if it is above the bound; and whether it is.

    x: the tokens looked into, among them all above the bound. total: the mass of the row.
    """
    k, top_p = choice_of(row.settings, TOP_K, row.slot), number_of(row.settings, TOP_P, row.slot)
    mine = x > bound
    masses = tl.where(mine, tl.exp2((x - top) * scale), 0.0)
    count, mass, _, low = tl.reduce((mine.to(tl.float32), masses, masses, tl.where(mine, x, INFINITY)), 0, summary)
    high = above(top)
    threshold, found = tl.full((), -INFINITY, tl.float32), tl.full((), 1, tl.int1)
    for turn in range(2):
        by_mass = turn == 1
        if found & tl.where(by_mass, top_p < 1, k < row.vocab_size):
            weights = tl.where(by_mass, masses, mine.to(tl.float32))
            target = tl.where(by_mass, top_p * total, k.to(tl.float32))
            if tl.where(by_mass, mass, count) >= target:
                threshold = tl.maximum(threshold, cut(x, weights, target, low, high))
                total = tl.sum(tl.where(x >= threshold, masses, 0.0), 0)
            else:
                found = bound == -INFINITY  # all is here, and all of it is kept
    return threshold, found


@triton.jit
def threshold_of_row(row: Row, bound: tensor, least: tensor, total: tensor, top: tensor, scale: tensor) -> tensor:
    """Find the threshold in the whole row, where it is not above the bound. least: the row's least finite logit."""
    k, top_p = choice_of(row.settings, TOP_K, row.slot), number_of(row.settings, TOP_P, row.slot)
    # a token with less than 1 / V of the mass that top-p may drop is never at the threshold
    spare = tl.log2((1 - top_p) * total / row.vocab_size) - 1
    by_rank = k < row.vocab_size
    low = tl.where(by_rank, least, tl.maximum(least, tl.minimum(top + spare / scale, bound)))
    threshold, high = tl.full((), -INFINITY, tl.float32), above(bound)
    for turn in range(2):
        by_mass = turn == 1
        if tl.where(by_mass, top_p < 1, by_rank):
            target = tl.where(by_mass, top_p * total, k.to(tl.float32))
            threshold, total = row_cut(row, by_mass, target, top, scale, low, high)
            low, high = threshold, above(top)
    return threshold


@triton.jit
def floor_of(row: Row, top: tensor) -> tensor:
    """Return the lowest logit that min-p keeps."""
    temperature = number_of(row.settings, TEMPERATURE, row.slot)
    return top + temperature * tl.log(number_of(row.settings, MIN_P, row.slot))


@triton.jit
def earlier(time: tensor, token: tensor, other_time: tensor, other_token: tensor) -> tuple[tensor, tensor]:
    """Return the earlier time and its token; of equal times, the lower token."""
    first = (time < other_time) | ((time == other_time) & (token < other_token))
    return tl.where(first, time, other_time), tl.where(first, token, other_token)


@triton.jit
def race_among(x: tensor, groups: tensor, threshold: tensor, top: tensor, scale: tensor, row: Row) -> tensor:
    """The first to arrive of the groups' tokens that are not below the threshold."""
    seed = tl.load(row.settings.seeds + row.slot)
    noise = exponential_noise(seed, row.position, members(groups, FINE // 4))
    time = tl.where(x >= threshold, noise * tl.exp2((top - x) * scale), INFINITY)
    _, token = tl.reduce((time, members(groups, FINE)), 0, earlier)
    return tl.minimum(token, row.vocab_size - 1)


@triton.jit
def narrowed(
    row: Row, groups: tensor, bound: tensor, total: tensor, top: tensor, scale: tensor
) -> tuple[tensor, tensor]:
    """The threshold of a row, and its token if it can be drawn at once. groups: that are looked into.

    The token is UNDRAWN if another launch draws it, and UNFOUND if the threshold is not above the bound.
    """
    x = logits_of(row, members(groups, FINE))
    threshold, found = threshold_among(x, bound, total, top, scale, row)
    threshold = tl.maximum(threshold, floor_of(row, top))
    drawn = tl.full((), UNDRAWN, tl.int32)
    if not found:
        threshold, drawn = bound, tl.full((), UNFOUND, tl.int32)
    elif threshold > bound:
        drawn = race_among(x, groups, threshold, top, scale, row)
    return threshold, drawn


@triton.jit
def searched(row: Row, noted: Statistics, number: tensor, bound: tensor, BLOCKS: constexpr) -> tensor:
    """The threshold of row `number`, which is not above the bound unless min-p makes it so."""
    top = greatest_of_row(noted, number, BLOCKS)
    scale = LOG2_E / number_of(row.settings, TEMPERATURE, row.slot)
    total = total_mass(noted, number, top, scale, BLOCKS)
    block = tl.arange(0, BLOCKS)
    bottoms = noted.bottoms + number * noted.blocks + block
    least = tl.min(tl.load(bottoms, mask=block < noted.blocks, other=INFINITY), 0)
    return tl.maximum(threshold_of_row(row, bound, least, total, top, scale), floor_of(row, top))
