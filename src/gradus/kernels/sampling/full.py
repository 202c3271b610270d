"""Draw as `plain` does, for rows that ask for more: penalties, biases, top-k, top-p, min-p, reports.

Idea: a row's settings are data of its slot, so the same five launches serve any mixture, and a CUDA graph can hold
them. The logits are read once for statistics, by rows that narrow the choice or report on it. Then one program per row
finds the threshold among the best groups of tokens, and mostly draws the token; another finds the log-probabilities to
report. The third launch searches the whole row for a threshold that the groups do not contain. The rest is the race
that plain rows run, among tokens that are not below their threshold. Rows that ask for nothing pass through the first
three at once.

Bytes: the logits twice; and once or twice the words of `seen`, for rows that adjust.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.engine.request import MAX_LOGPROBS
from gradus.kernels.core.constants import INFINITY, LOG2_E
from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.sampling.narrowing import (
    BEYOND,
    BLOCK,
    FINE,
    KEPT,
    UNDRAWN,
    UNFOUND,
    Row,
    Statistics,
    earlier,
    greatest_of_row,
    groups_looked_into,
    members,
    narrowed,
    note,
    searched,
    statistics,
    total_mass,
)
from gradus.kernels.sampling.plain import race, store_pair
from gradus.kernels.sampling.slot_settings import (
    REPORTS,
    TEMPERATURE,
    SlotSettings,
    adjusted,
    choice_of,
    narrows,
    number_of,
    widened,
)

TAKEN = constexpr(BEYOND.value * FINE.value)  # the number of no token


@triton.jit
def statistics_kernel(
    logits_ptr: tensor, row_stride: int, slots_ptr: tensor, positions_ptr: tensor, settings: SlotSettings,
    noted: Statistics, V: int, BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Row program_id(0), tokens from program_id(1) * BLOCK on: of the logits to choose from, and of the model's own."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots_ptr + row)
    narrow, reports = narrows(settings, slot, V), choice_of(settings, REPORTS, slot) >= 0
    if narrow | reports:
        token = block * BLOCK + tl.arange(0, BLOCK)
        inside = token < V
        x = widened(logits_ptr + row.to(tl.int64) * row_stride, token, token < row_stride, inside)
        if reports:
            note(x, LOG2_E, noted, row + tl.num_programs(0), block)
        if narrow:
            scale = LOG2_E / number_of(settings, TEMPERATURE, slot)
            x = adjusted(x, token, inside, settings, slot, tl.load(positions_ptr + row))
            note(x, scale, noted, row, block)


@triton.jit
def narrow_and_report_kernel(
    logits_ptr: tensor, row_stride: int, slots_ptr: tensor, positions_ptr: tensor, settings: SlotSettings,
    noted: Statistics, thresholds_ptr: tensor, drawn_ptr: tensor, totals_ptr: tensor, pairs_ptr: tensor, V: int,
    GROUPS: constexpr, BLOCKS: constexpr, PAIRS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Row program_id(0). Program 0 of it finds its threshold, and its token, UNDRAWN or UNFOUND; program 1 reports."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row, reports = tl.program_id(0), tl.program_id(1) > 0
    slot = tl.load(slots_ptr + row)
    count, narrow = choice_of(settings, REPORTS, slot), narrows(settings, slot, V)
    if not reports:
        tl.store(thresholds_ptr + row, -INFINITY)
        tl.store(drawn_ptr + row, UNDRAWN)
    if tl.where(reports, count >= 0, narrow):
        mine = Row(
            logits_ptr + row.to(tl.int64) * row_stride, row_stride, settings, slot, tl.load(positions_ptr + row), V
        )
        number = row + tl.program_id(1) * tl.num_programs(0)
        top = greatest_of_row(noted, number, BLOCKS)
        groups, bound = groups_looked_into(noted, number, GROUPS)
        if reports:
            total = top + tl.log(total_mass(noted, number, top, LOG2_E, BLOCKS))
            tl.store(totals_ptr + row, total)
            best_ptr = pairs_ptr + (row * PAIRS + 1) * 2  # the first pair is the sampled token's
            report(mine, groups, total, count, best_ptr)
        elif tl.abs(top) < INFINITY:
            scale = LOG2_E / number_of(settings, TEMPERATURE, slot)
            total = total_mass(noted, number, top, scale, BLOCKS)
            threshold, drawn = narrowed(mine, groups, bound, total, top, scale)
            tl.store(thresholds_ptr + row, threshold)
            tl.store(drawn_ptr + row, drawn)


@triton.jit
def report(row: Row, groups: tensor, total: tensor, count: tensor, pairs_ptr: tensor) -> None:
    """Store the `count` likeliest tokens of a row with their log-probabilities, best first, without sorting it.

    The n best tokens lie in the n groups with the largest maxima. total: the logarithm of the sum of exponentials of
    the row's logits.
    """
    token = members(groups, FINE)
    inside = token < row.vocab_size
    below = -widened(row.logits, token, inside, inside)
    for rank in range(count):
        least, likeliest = tl.reduce((below, token), 0, earlier)
        store_pair(pairs_ptr + 2 * rank, likeliest, -least - total)
        taken = token == likeliest
        below, token = tl.where(taken, INFINITY, below), tl.where(taken, TAKEN, token)  # behind logits of -inf too


@triton.jit
def search_kernel(
    logits_ptr: tensor, row_stride: int, slots_ptr: tensor, positions_ptr: tensor, settings: SlotSettings,
    noted: Statistics, thresholds_ptr: tensor, drawn_ptr: tensor, V: int, BLOCKS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Row program_id(0): its threshold, where it was not found."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0)
    if tl.load(drawn_ptr + row) == UNFOUND:
        slot = tl.load(slots_ptr + row)
        row_ptr = logits_ptr + row.to(tl.int64) * row_stride
        mine = Row(row_ptr, row_stride, settings, slot, tl.load(positions_ptr + row), V)
        tl.store(thresholds_ptr + row, searched(mine, noted, row, tl.load(thresholds_ptr + row), BLOCKS))


def sample_asked(
    logits: Tensor, settings: SlotSettings, slots: Tensor, positions: Tensor, history: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One token per row, as its slot asks: int64 [R], -1 where there was no finite logit to choose from.

    logits: [R, V] of any floating type, rows any distance apart; slots, positions: integers [R]. history: as in
    `plain.sample`. Counts the tokens in `settings.seen`.

    Also returns log-probabilities by the model's own distribution, int32 [R, 1 + MAX_LOGPROBS, 2], meaningful as far as
    a row's slot asks for them: pairs of a token and the bits of a float32, the token drawn, then the likeliest.
    """
    rows, vocab_size = logits.shape
    of_row = logits, logits.stride(0), slots, positions, settings
    noted = statistics(rows, vocab_size, logits.device)
    thresholds, totals = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    drawn = torch.empty(rows, dtype=torch.int32, device=logits.device)
    pairs = torch.empty(rows, 1 + MAX_LOGPROBS, 2, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    early = starts_early()
    statistics_kernel[(rows, noted.blocks)](*of_row, noted, vocab_size, BLOCK, early, num_warps=4, launch_pdl=early)
    groups = max(KEPT.value, triton.next_power_of_2(noted.groups))
    noted_blocks = triton.next_power_of_2(noted.blocks)
    narrow_and_report_kernel[(rows, 2)](
        *of_row, noted, thresholds, drawn, totals, pairs, vocab_size,
        groups, noted_blocks, pairs.shape[1], early, num_warps=8, launch_pdl=early,
    )  # fmt: skip
    search_kernel[(rows,)](
        *of_row, noted, thresholds, drawn, vocab_size, noted_blocks, early, num_warps=16, launch_pdl=early
    )  # fmt: skip
    race(logits, slots, None, positions, None, history, tokens, settings, thresholds, drawn, totals, pairs)
    return tokens, pairs
