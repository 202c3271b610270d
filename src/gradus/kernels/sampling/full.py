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
from gradus.kernels.sampling.likeliest import report, store_pair
from gradus.kernels.sampling.narrowing import (
    BLOCK,
    KEPT,
    UNDRAWN,
    UNFOUND,
    Row,
    Statistics,
    greatest_of_row,
    groups_looked_into,
    narrowed,
    note,
    searched,
    statistics,
    total_mass,
)
from gradus.kernels.sampling.plain import first_of_block, first_of_row, kept, tokens_a_program
from gradus.kernels.sampling.slot_settings import (
    ADJUSTS,
    COUNT,
    FULL,
    PENALIZED,
    REPORTS,
    TEMPERATURE,
    SlotSettings,
    adjusted,
    choice_of,
    narrows,
    number_of,
    widened,
)


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


@triton.jit
def asked_block_kernel(
    logits_ptr: tensor, row_stride: int, slots_ptr: tensor, positions_ptr: tensor, settings: SlotSettings,
    thresholds_ptr: tensor, drawn_ptr: tensor, maxima_ptr: tensor, times_ptr: tensor, tokens_ptr: tensor, V: int,
    BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Stage 1 of the race: a block of a row that is not drawn yet."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    if tl.load(drawn_ptr + row) < 0:
        slot = tl.load(slots_ptr + row)
        token = block * BLOCK + tl.arange(0, BLOCK)
        inside = token < V
        x = widened(logits_ptr + row.to(tl.int64) * row_stride, token, token < row_stride, inside)
        x = adjusted(x, token, inside, settings, slot, tl.load(positions_ptr + row))
        x = tl.where(x >= tl.load(thresholds_ptr + row), x, -INFINITY)
        temperature = number_of(settings, TEMPERATURE, slot)
        maximum, first, winner = first_of_block(
            x, token, block, settings.seeds + slot, positions_ptr + row, temperature, V, BLOCK
        )
        here = row * tl.num_programs(1) + block
        tl.store(maxima_ptr + here, maximum)
        tl.store(times_ptr + here, first)
        tl.store(tokens_ptr + here, winner)


@triton.jit
def asked_row_kernel(
    logits_ptr: tensor, row_stride: int, slots_ptr: tensor, positions_ptr: tensor, settings: SlotSettings,
    drawn_ptr: tensor, maxima_ptr: tensor, times_ptr: tensor, tokens_ptr: tensor, totals_ptr: tensor,
    history_ptr: tensor, out_ptr: tensor, pairs_ptr: tensor, blocks: int, width: int,
    BLOCKS: constexpr, PAIRS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Stage 2: the token, which is counted, and its log-probability. history may be None."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    winner = tl.load(drawn_ptr + row)
    finite = winner >= 0
    if winner < 0:
        temperature = number_of(settings, TEMPERATURE, slot)
        best, winner = first_of_row(maxima_ptr, times_ptr, tokens_ptr, row, blocks, temperature, BLOCKS)
        finite = tl.abs(best) < INFINITY
    token = tl.where(finite, winner, -1).to(tl.int64)
    if history_ptr is not None:
        token = kept(history_ptr, width, slot, tl.load(positions_ptr + row), winner, token)
    tl.store(out_ptr + row, token)
    if finite & ((choice_of(settings, ADJUSTS, slot) & PENALIZED) != 0):
        word_ptr = settings.seen + slot.to(tl.int64) * settings.seen_stride + winner
        word = tl.load(word_ptr)
        tl.store(word_ptr, word + 1, mask=(word & COUNT) < FULL)
    if choice_of(settings, REPORTS, slot) >= 0:
        logit = tl.load(logits_ptr + row.to(tl.int64) * row_stride + winner).to(tl.float32)
        store_pair(pairs_ptr + row * PAIRS * 2, winner, logit - tl.load(totals_ptr + row))


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
    block = tokens_a_program(rows, vocab_size)
    blocks = triton.cdiv(vocab_size, block)
    maxima, times = (torch.empty(rows, blocks, dtype=torch.float32, device=logits.device) for _ in range(2))
    winners = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
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
    asked_block_kernel[(rows, blocks)](
        *of_row, thresholds, drawn, maxima, times, winners, vocab_size, block, early, num_warps=4, launch_pdl=early
    )  # fmt: skip
    asked_row_kernel[(rows,)](
        logits, logits.stride(0), slots, positions, settings, drawn, maxima, times, winners, totals, history, tokens,
        pairs, blocks, 0 if history is None else history.shape[1], triton.next_power_of_2(blocks), pairs.shape[1],
        early, num_warps=1, launch_pdl=early,
    )  # fmt: skip
    return tokens, pairs
