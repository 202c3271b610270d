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
from gradus.kernels.sampling.exponential_noise import exponential_noise
from gradus.kernels.sampling.slot_settings import widened

UNDRAWN = constexpr(plan.UNDRAFTED)


@triton.jit
def first_of_block(
    logits: tensor, token: tensor, block: tensor, seed_ptr: tensor, position_ptr: tensor, temperature: tensor, V: int,
    BLOCK: constexpr,
) -> tuple[tensor, tensor, tensor]:  # fmt: skip
    """The block's maximum, when its first token arrives by the maximum's clock, and which token that is."""
    maximum = tl.max(logits, 0)
    first = 0.0
    if temperature > 0:
        counter = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
        noise = exponential_noise(tl.load(seed_ptr), tl.load(position_ptr), counter)
        start = tl.where(tl.abs(maximum) < INFINITY, maximum, 0.0)  # never infinity less infinity
        time = noise * tl.exp2((start - logits) * (LOG2_E / temperature))
        first = tl.min(time, 0)
        wins = time == first
    else:
        wins = logits == maximum
    return maximum, first, tl.min(tl.where(wins, token, V - 1), 0)  # the first of equal logits, as in torch


@triton.jit
def first_of_row(
    maxima_ptr: tensor, times_ptr: tensor, tokens_ptr: tensor, row: tensor, blocks: int, temperature: tensor,
    BLOCKS: constexpr,
) -> tuple[tensor, tensor]:  # fmt: skip
    """The blocks' winners against each other: the row's maximum, and the first of all."""
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
    winner = tl.argmin(tl.where(inside, times, INFINITY), 0)
    return best, tl.load(tokens_ptr + row * blocks + winner)


@triton.jit
def block_best_kernel(
    logits_ptr: tensor, slots_ptr: tensor, seeds_ptr: tensor, positions_ptr: tensor, temperatures_ptr: tensor,
    maxima_ptr: tensor, times_ptr: tensor, tokens_ptr: tensor, V: int, row_stride: int,
    BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Stage 1. Row program_id(0), tokens from program_id(1) * BLOCK on: the maximum, the first to arrive, and when."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    # a row may be read up to its stride: where V is odd, the bound that is even lets 16 bytes be loaded at a time
    logits = widened(logits_ptr + row.to(tl.int64) * row_stride, token, token < row_stride, token < V)
    slot = row if slots_ptr is None else tl.load(slots_ptr + row)
    maximum, first, winner = first_of_block(
        logits, token, block, seeds_ptr + slot, positions_ptr + row, tl.load(temperatures_ptr + slot), V, BLOCK
    )
    here = row * tl.num_programs(1) + block
    tl.store(maxima_ptr + here, maximum)
    tl.store(times_ptr + here, first)
    tl.store(tokens_ptr + here, winner)


@triton.jit
def row_best_kernel(
    maxima_ptr: tensor, times_ptr: tensor, tokens_ptr: tensor, slots_ptr: tensor, positions_ptr: tensor,
    temperatures_ptr: tensor, history_ptr: tensor, out_ptr: tensor, blocks: int, out_stride: int, width: int,
    BLOCKS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Stage 2. Row program_id(0): its token, -1 if the best is not finite. history may be None."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0)
    slot = row if slots_ptr is None else tl.load(slots_ptr + row)
    temperature = tl.load(temperatures_ptr + slot)
    best, winner = first_of_row(maxima_ptr, times_ptr, tokens_ptr, row, blocks, temperature, BLOCKS)
    token = tl.where(tl.abs(best) < INFINITY, winner, -1).to(tl.int64)
    if history_ptr is not None:
        token = kept(history_ptr, width, slot, tl.load(positions_ptr + row), winner, token)
    tl.store(out_ptr + row * out_stride, token)


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
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1
    block = tokens_a_program(rows, vocab_size)
    blocks = triton.cdiv(vocab_size, block)
    early = starts_early()
    maxima, times = (torch.empty(rows, blocks, dtype=torch.float32, device=logits.device) for _ in range(2))
    winners = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    if rows:
        block_best_kernel[(rows, blocks)](
            logits, slots, seeds, positions, temperatures, maxima, times, winners, vocab_size, logits.stride(0),
            block, early, num_warps=4, launch_pdl=early,
        )  # fmt: skip
        row_best_kernel[(rows,)](
            maxima, times, winners, slots, positions, temperatures, history, tokens, blocks, tokens.stride(0),
            0 if history is None else history.shape[1], triton.next_power_of_2(blocks), early, num_warps=1,
            launch_pdl=early,
        )  # fmt: skip
    return tokens


def tokens_a_program(rows: int, vocab_size: int) -> int:
    """Short blocks spread few rows over all multiprocessors; long ones leave fewer winners to compare (measured)."""
    return 1024 if rows * vocab_size < 2_500_000 else 2048
