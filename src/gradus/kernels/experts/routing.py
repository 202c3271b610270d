"""A router's logits to the chosen experts and their weights, in one launch for any number of rows.

Idea: an expert's rank is the number of experts that come before it: those with a higher score, and of equal ones those
with a lower number. All E² comparisons are independent, so 128 experts take 128 threads about as many additions each,
where a loop that removes the best expert k times would wait for k reductions. The expert of place p is then the one
with rank p.

A logit that is NaN counts as the lowest. So ranks are always a permutation, and no program reads beyond the matrices.

A row's result does not depend on the other rows. Layout: logits [N, E], chosen and weights [N, k].
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.models.config import Experts

MOST_GROUPS = 32  # bits of a number


class Routed(NamedTuple):
    """A router, as the kernels know it: its logits, [N, E], and how they become a choice (see `Experts`, `Router`).

    Kernels take `tensors` and `constants` in this order.
    """

    logits: Tensor
    experts: Experts
    correction: Tensor | None = None
    factors: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.logits, self.correction, self.factors

    @property
    def constants(self) -> tuple[int | float | bool, ...]:
        """E, its next power of two, k, its next power of two, and the options."""
        of = self.experts
        counts = of.count, triton.next_power_of_2(of.count), of.chosen, triton.next_power_of_2(of.chosen)
        return *counts, of.sigmoid, of.normalized, float(of.scale), of.groups, of.chosen_groups


@triton.jit
def logits_of(logits_ptr: tensor, row: tensor, expert: tensor, E: constexpr, BLOCK_E: constexpr) -> tensor:
    """Some of a row's, in float32; -inf for NaN and beyond E. They come from the L2 cache, where another kernel left
    them: a launch that starts early may find an earlier step's in a multiprocessor's own.
    """
    here = logits_ptr + row.to(tl.int64) * E + expert
    if BLOCK_E == E:
        logits = tl.load(here, cache_modifier=".cg").to(tl.float32)
    else:
        logits = tl.load(here, mask=expert < E, other=float("-inf"), cache_modifier=".cg").to(tl.float32)
    return tl.where(logits == logits, logits, float("-inf"))  # NaN is not equal to itself


@triton.jit
def scores_of(logits: tensor, SIGMOID: constexpr) -> tensor:
    if SIGMOID:
        scores = tl.sigmoid(logits)
    else:
        scores = tl.exp(logits - tl.max(logits, 0))
        scores /= tl.sum(scores, 0)
    return scores


@triton.jit
def ranks_of(
    logits_ptr: tensor, correction_ptr: tensor, row: tensor,
    E: constexpr, BLOCK_E: constexpr, SIGMOID: constexpr, GROUPS: constexpr, CHOSEN_GROUPS: constexpr,
) -> tensor:  # fmt: skip
    """A row's logits, and the rank of each expert: [BLOCK_E] both.

    Experts lie along both sides of a square of comparisons. Some of its rows are made at a time, and each thread adds
    up its own columns, so that registers and exchanges between threads are few.
    """
    TOGETHER: constexpr = 4096 // BLOCK_E if BLOCK_E > 64 else BLOCK_E
    expert = tl.arange(0, BLOCK_E)
    logits = logits_of(logits_ptr, row, expert, E, BLOCK_E)
    others: tensor = ()
    for start in tl.static_range(0, BLOCK_E, TOGETHER):
        others = others + (logits_of(logits_ptr, row, start + tl.arange(0, TOGETHER), E, BLOCK_E),)  # noqa: RUF005
    highest, total = 0.0, 1.0
    if not SIGMOID and (GROUPS > 1 or correction_ptr is not None):
        highest = tl.max(logits, 0)
        total = tl.sum(tl.exp(logits - highest), 0)
    best = -1
    if GROUPS > 1:
        best = _best_groups(logits_ptr, correction_ptr, row, highest, total, E, BLOCK_E, SIGMOID, GROUPS, CHOSEN_GROUPS)
    ranked = _ranked(logits, expert, correction_ptr, highest, total, best, E, SIGMOID, GROUPS)
    before = tl.zeros((TOGETHER, BLOCK_E), tl.int32)
    for start in tl.static_range(0, BLOCK_E, TOGETHER):
        other = start + tl.arange(0, TOGETHER)
        compared = _ranked(others[start // TOGETHER], other, correction_ptr, highest, total, best, E, SIGMOID, GROUPS)
        before += _before(compared, other, ranked, expert).to(tl.int32)
    return logits, tl.sum(before, 0)


@triton.jit
def _ranked(
    logits: tensor, expert: tensor, correction_ptr: tensor, highest: tensor, total: tensor, groups: tensor,
    E: constexpr, SIGMOID: constexpr, GROUPS: constexpr,
) -> tensor:  # fmt: skip
    """The numbers that experts are ranked by. A softmax keeps the order of logits, so they are ranked as they are.

    highest, total: of the softmax. groups: a bit for each whose experts may be chosen.
    """
    ranked = logits
    if SIGMOID:
        ranked = tl.sigmoid(logits)
    elif GROUPS > 1 or correction_ptr is not None:
        ranked = tl.exp(logits - highest) / total
    if correction_ptr is not None:
        ranked += tl.load(correction_ptr + expert, mask=expert < E, other=0.0).to(tl.float32)
    there = (expert < E) & (ranked == ranked)
    if GROUPS > 1:
        there = there & (((groups >> (expert // (E // GROUPS))) & 1) == 1)
    return tl.where(there, ranked, float("-inf"))


@triton.jit
def _before(others: tensor, other: tensor, ranked: tensor, expert: tensor) -> tensor:
    """[j, i]: whether the other expert j comes before expert i."""
    theirs, mine = others[:, None], ranked[None, :]
    return (theirs > mine) | ((theirs == mine) & (other[:, None] < expert[None, :]))


@triton.jit
def _best_groups(
    logits_ptr: tensor, correction_ptr: tensor, row: tensor, highest: tensor, total: tensor,
    E: constexpr, BLOCK_E: constexpr, SIGMOID: constexpr, GROUPS: constexpr, CHOSEN_GROUPS: constexpr,
) -> tensor:  # fmt: skip
    """One bit per group: whether its experts may be chosen. A group's score is the sum of its two best."""
    SIZE: constexpr = E // GROUPS
    BLOCK_G: constexpr = triton.next_power_of_2(GROUPS)
    WIDE: constexpr = triton.next_power_of_2(SIZE)
    group, member = tl.arange(0, BLOCK_G), tl.arange(0, WIDE)
    inside = (group < GROUPS)[:, None] & (member < SIZE)[None, :]
    expert = tl.where(inside, group[:, None] * SIZE + member[None, :], E)
    logits = logits_of(logits_ptr, row, expert, E, 0)
    scores = _ranked(logits, expert, correction_ptr, highest, total, -1, E, SIGMOID, GROUPS)
    best, where = tl.max(scores, 1, return_indices=True)
    others = tl.where(member[None, :] == where[:, None], float("-inf"), scores)
    if SIZE > 1:
        best += tl.max(others, 1)
    place = tl.sum(_before(best, group, best, group).to(tl.int32), 0)
    return tl.sum(tl.where(place < CHOSEN_GROUPS, 1 << group, 0), 0)


@triton.jit
def chosen_of(ranks: tensor, BLOCK_E: constexpr, CHOSEN: constexpr, PLACES: constexpr) -> tensor:
    """The chosen experts by place, [PLACES]: zeros beyond CHOSEN."""
    return tl.sum(tl.where(_at_places(ranks, CHOSEN, PLACES), tl.arange(0, BLOCK_E)[None, :], 0), 1)


@triton.jit
def weights_of(
    logits: tensor, ranks: tensor, chosen: tensor, factors_ptr: tensor,
    CHOSEN: constexpr, PLACES: constexpr, SIGMOID: constexpr, NORMALIZED: constexpr, SCALE: constexpr,
) -> tensor:  # fmt: skip
    """The weights of the chosen experts, [PLACES]: zeros beyond CHOSEN."""
    place = tl.arange(0, PLACES)
    scores = scores_of(logits, SIGMOID)
    weights = tl.sum(tl.where(_at_places(ranks, CHOSEN, PLACES), scores[None, :], 0.0), 1)
    if NORMALIZED:
        weights /= tl.maximum(tl.sum(weights, 0), 1.1754943508222875e-38)  # the least normal number
    weights *= SCALE
    if factors_ptr is not None:
        weights *= tl.load(factors_ptr + chosen, mask=place < CHOSEN, other=0.0).to(tl.float32)
    return weights


@triton.jit
def _at_places(ranks: tensor, CHOSEN: constexpr, PLACES: constexpr) -> tensor:
    """[place, expert]: whether the expert is in that place."""
    place = tl.arange(0, PLACES)[:, None]
    return (ranks[None, :] == place) & (place < CHOSEN)


@triton.jit
def route_kernel(
    logits_ptr: tensor, correction_ptr: tensor, factors_ptr: tensor, chosen_ptr: tensor, weights_ptr: tensor,
    E: constexpr, BLOCK_E: constexpr, CHOSEN: constexpr, PLACES: constexpr, SIGMOID: constexpr, NORMALIZED: constexpr,
    SCALE: constexpr, GROUPS: constexpr, CHOSEN_GROUPS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Row program_id(0)."""
    wait_for_previous(PDL)
    let_next_start(PDL)
    row, place = tl.program_id(0), tl.arange(0, PLACES)
    logits, ranks = ranks_of(logits_ptr, correction_ptr, row, E, BLOCK_E, SIGMOID, GROUPS, CHOSEN_GROUPS)
    chosen = chosen_of(ranks, BLOCK_E, CHOSEN, PLACES)
    weights = weights_of(logits, ranks, chosen, factors_ptr, CHOSEN, PLACES, SIGMOID, NORMALIZED, SCALE)
    here = row.to(tl.int64) * CHOSEN + place
    tl.store(chosen_ptr + here, chosen, mask=place < CHOSEN)
    tl.store(weights_ptr + here, weights, mask=place < CHOSEN)


def route(routed: Routed) -> tuple[Tensor, Tensor]:
    """Compute what `Router` does behind its product: the chosen experts, int32 [N, k], and weights, float32 [N, k].

    The lower of equal experts comes first.
    """
    logits, experts, early = routed.logits, routed.experts, starts_early()
    assert logits.is_contiguous() and logits.shape[1] == experts.count and experts.groups < MOST_GROUPS
    rows, k = logits.shape[0], experts.chosen
    chosen = torch.empty(rows, k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, k, dtype=torch.float32, device=logits.device)
    if rows:
        warps = 4 if experts.count <= 128 else 8
        route_kernel[(rows,)](
            *routed.tensors, chosen, weights, *routed.constants, early, num_warps=warps, launch_pdl=early
        )
    return chosen, weights
