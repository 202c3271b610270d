"""The next tokens, chosen on the GPU without a wait: greedy, or drawn at a temperature with a request's own noise.

Idea: argmin(Exp(1) / p) draws from p (the exponential race: each token arrives at a random time, at rate p), and
times compare like e exp((max - logit) / T), so no softmax is needed: one reading of the logits. A row of logits is too
long for one program. Stage 1: each program takes BLOCK tokens and keeps the first to arrive, by the clock of the
block's own maximum m: e exp((m - logit) / T), which loses no digits whatever T is. Stage 2: one program per row sets
the blocks' winners to one clock, times exp((max - m) / T), and takes the first. The noise is that of
`noise.py`, bit for bit, made where it is used: Philox4x32-10 of (seed, position, token id). So a request's
tokens do not depend on the batch, the step, or the device.

Bytes: the logits once, R V elements; 16 per block between the stages. Layout: logits [R, V] row-major, any floating
dtype (bf16 logits widened here are exactly the float32 ones that a cast would have written).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.engine import plan
from gradus.kernels.core.constants import INFINITY, LOG2_E
from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
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
    number_of,
    widened,
)

UNDRAWN = constexpr(plan.UNDRAFTED)


@triton.jit
def exponential_noise(seed: tensor, position: tensor, counter: tensor) -> tensor:
    """Exp(1) noise, float32 [4 N], of tokens 4 counter, …, 4 counter + 3 for each int32 counter [N]: see `noise.py`."""
    zero = counter * 0
    w0, w1, w2, w3 = tl.philox(seed, counter, zero + position.to(tl.int32), zero, zero)
    bits = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    return -tl.log(((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07)  # 2⁻²³


@triton.jit
def block_best_kernel(
    logits_ptr: tensor, slots_ptr: tensor, seeds_ptr: tensor, positions_ptr: tensor, temperatures_ptr: tensor,
    maxima_ptr: tensor, times_ptr: tensor, tokens_ptr: tensor, V: int, row_stride: int, settings: SlotSettings,
    thresholds_ptr: tensor, drawn_ptr: tensor, BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Stage 1. Row program_id(0), tokens from program_id(1) * BLOCK on: their maximum, the first to arrive by the
    maximum's clock, and when.

    settings, thresholds, drawn: as in `full.py`, which passes over rows that are drawn already, in the place of seeds
    and temperatures; else None.
    """
    let_next_start(PDL)
    wait_for_previous(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    undrawn = True
    if drawn_ptr is not None:
        undrawn = tl.load(drawn_ptr + row) < 0
    if undrawn:
        token = block * BLOCK + tl.arange(0, BLOCK)
        # a row may be read up to its stride: where V is odd, the bound that is even lets 16 bytes be loaded at a time
        x = widened(logits_ptr + row.to(tl.int64) * row_stride, token, token < row_stride, token < V)
        slot = row if slots_ptr is None else tl.load(slots_ptr + row)
        if settings is None:
            seed_ptr = seeds_ptr + slot
            temperature = tl.load(temperatures_ptr + slot)
        else:
            x = adjusted(x, token, token < V, settings, slot, tl.load(positions_ptr + row))
            x = tl.where(x >= tl.load(thresholds_ptr + row), x, -INFINITY)
            temperature = number_of(settings, TEMPERATURE, slot)
            seed_ptr = settings.seeds + slot
        position_ptr = positions_ptr + row
        maximum = tl.max(x, 0)
        first = 0.0
        if temperature > 0:
            counter = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
            noise = exponential_noise(tl.load(seed_ptr), tl.load(position_ptr), counter)
            start = tl.where(tl.abs(maximum) < INFINITY, maximum, 0.0)  # never infinity less infinity
            time = noise * tl.exp2((start - x) * (LOG2_E / temperature))
            first = tl.min(time, 0)
            wins = time == first
        else:
            wins = x == maximum
        winner = tl.min(tl.where(wins, token, V - 1), 0)  # the first of equal logits, as in torch
        here = row * tl.num_programs(1) + block
        tl.store(maxima_ptr + here, maximum)
        tl.store(times_ptr + here, first)
        tl.store(tokens_ptr + here, winner)


@triton.jit
def row_best_kernel(
    maxima_ptr: tensor, times_ptr: tensor, tokens_ptr: tensor, slots_ptr: tensor, positions_ptr: tensor,
    temperatures_ptr: tensor, history_ptr: tensor, out_ptr: tensor, blocks: int, out_stride: int, width: int,
    settings: SlotSettings, drawn_ptr: tensor, logits_ptr: tensor, row_stride: int, totals_ptr: tensor,
    pairs_ptr: tensor, BLOCKS: constexpr, PAIRS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Stage 2. Row program_id(0): its token, -1 if the best is not finite. history may be None.

    settings, drawn, totals, pairs: as in `full.py`, where the token is counted and its log-probability reported; else
    None.
    """
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0)
    slot = row if slots_ptr is None else tl.load(slots_ptr + row)
    winner, undrawn = 0, True
    if drawn_ptr is not None:
        winner = tl.load(drawn_ptr + row)
        undrawn = winner < 0
    finite = winner >= 0
    if undrawn:
        temperature = tl.load(temperatures_ptr + slot) if settings is None else number_of(settings, TEMPERATURE, slot)
        block = tl.arange(0, BLOCKS)
        here = row * blocks + block
        inside = block < blocks
        maxima = tl.load(maxima_ptr + here, mask=inside, other=-INFINITY)
        times = tl.load(times_ptr + here, mask=inside, other=1.0)
        best = tl.max(maxima, 0)
        gap = tl.where(maxima == best, 0.0, best - maxima)
        if temperature > 0:
            times *= tl.exp2(gap * (LOG2_E / temperature))
        else:
            times = gap  # 0 for the blocks that have the maximum
        winner = tl.load(tokens_ptr + row * blocks + tl.argmin(tl.where(inside, times, INFINITY), 0))
        finite = tl.abs(best) < INFINITY
    token = tl.where(finite, winner, -1).to(tl.int64)
    if history_ptr is not None:
        token = kept(history_ptr, width, slot, tl.load(positions_ptr + row), winner, token)
    tl.store(out_ptr + row * out_stride, token)
    if settings is not None:
        if finite & ((choice_of(settings, ADJUSTS, slot) & PENALIZED) != 0):
            word_ptr = settings.seen + slot.to(tl.int64) * settings.seen_stride + winner
            word = tl.load(word_ptr)
            tl.store(word_ptr, word + 1, mask=(word & COUNT) < FULL)
        if choice_of(settings, REPORTS, slot) >= 0:
            logit = tl.load(logits_ptr + row.to(tl.int64) * row_stride + winner).to(tl.float32)
            store_pair(pairs_ptr + row * PAIRS * 2, winner, logit - tl.load(totals_ptr + row))


@triton.jit
def store_pair(pair_ptr: tensor, token: tensor, logprob: tensor) -> None:
    """Store a token and the bits of its log-probability, both as int32, so that one copy to the host suffices."""
    tl.store(pair_ptr, token)
    tl.store(pair_ptr + 1, logprob.to(tl.int32, bitcast=True))


@triton.jit
def kept(history_ptr: tensor, width: int, slot: tensor, position: tensor, winner: tensor, token: tensor) -> tensor:
    """Write the row's winner to its slot: a token that can be looked up, whatever becomes of the sequence.

    width: 1 where a slot keeps its newest token alone; else tokens are kept by position, and a row of padding, at
    position 0, writes nothing. Returns the token, or UNDRAWN for such a row.
    """
    there = (width == 1) | (position > 0)
    place = slot.to(tl.int64) * width + tl.minimum(position, width - 1)
    tl.store(history_ptr + place, winner.to(tl.int64), mask=there)
    return tl.where(there, token, UNDRAWN)


def sample(
    logits: Tensor,
    seeds: Tensor,
    positions: Tensor,
    temperatures: Tensor,
    *,
    slots: Tensor | None = None,
    history: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One token per row: the likeliest at temperature 0, otherwise drawn from softmax(logits / temperature).

    logits: [R, V], rows any distance apart (V is often odd: rows of a padded matrix are aligned, and read faster);
    seeds: int64 [R]; temperatures: float32 [R]; positions: integers [R]. With slots, integers [R], seeds and
    temperatures are tables by slot, and so is history, integers [S, C], which the tokens are written to as well: at
    their positions, or, if C is 1, in place of the newest.

    Returns int64 [R], new or `out`, whose elements may lie any distance apart. It is -1 where a row has a NaN or an
    infinity to win, or nothing to choose from; `history` gets one of the columns there, too. A row at position 0 is
    padding: it has no place in a history of all tokens, and gets `gradus.engine.plan.UNDRAFTED`.
    """
    assert logits.stride(1) == 1
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device) if out is None else out
    race(logits, slots, seeds, positions, temperatures, history, tokens)
    return tokens


def race(
    logits: Tensor, slots: Tensor | None, seeds: Tensor | None, positions: Tensor, temperatures: Tensor | None,
    history: Tensor | None, out: Tensor, settings: SlotSettings | None = None, thresholds: Tensor | None = None,
    drawn: Tensor | None = None, totals: Tensor | None = None, pairs: Tensor | None = None,
) -> None:  # fmt: skip
    """Launch both stages. The arguments are those of `sample`, and from `settings` on those of the kernels."""
    rows, vocab_size = logits.shape
    block, early = tokens_a_program(rows, vocab_size), starts_early()
    blocks = triton.cdiv(vocab_size, block)
    maxima, times = (torch.empty(rows, blocks, dtype=torch.float32, device=logits.device) for _ in range(2))
    winners = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    if rows:
        block_best_kernel[(rows, blocks)](
            logits, slots, seeds, positions, temperatures, maxima, times, winners, vocab_size, logits.stride(0),
            settings, thresholds, drawn, block, early, num_warps=4, launch_pdl=early,
        )  # fmt: skip
        row_best_kernel[(rows,)](
            maxima, times, winners, slots, positions, temperatures, history, out, blocks, out.stride(0),
            0 if history is None else history.shape[1], settings, drawn, logits, logits.stride(0), totals, pairs,
            triton.next_power_of_2(blocks), 1 if pairs is None else pairs.shape[1], early,
            num_warps=1, launch_pdl=early,
        )  # fmt: skip


def tokens_a_program(rows: int, vocab_size: int) -> int:
    """Short blocks spread few rows over all multiprocessors; long ones leave fewer winners to compare (measured)."""
    return 1024 if rows * vocab_size < 2_500_000 else 2048
