"""Looks drafts up in the text itself, on the GPU in one launch. `ngram_reference.look_up` does the same in torch.

Idea: one program per sequence reads its tokens once, and finds the place whose tokens, up to and including it, agree
longest with the newest tokens; among equals, the newest place. A score combines length and place in one number, so the
search is a maximum.

Bytes: four per token of the sequence; three more reads of the same tokens hit the L1 cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early
from gradus.kernels.step.ngram_reference import LONGEST, SHORTEST

BLOCK = 1024


@triton.jit
def look_up_kernel(
    slots_ptr: tensor, history_ptr: tensor, known_ptr: tensor, drafts_ptr: tensor,
    history_stride: int, COUNT: constexpr, COUNTS: constexpr, SHORTEST: constexpr, LONGEST: constexpr,
    BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Look up the drafts of sequence program_id(0). As a step's first launch, it is not launched early itself."""
    let_next_start(PDL)
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    known = tl.load(known_ptr + slot).to(tl.int32)
    said = history_ptr + slot.to(tl.int64) * history_stride
    newest = known - 1
    scores = tl.zeros([BLOCK], tl.int32)
    for base in range(0, newest, BLOCK):
        place = base + tl.arange(0, BLOCK)
        agree = place < newest
        agreed = tl.zeros([BLOCK], tl.int32)
        for back in tl.static_range(LONGEST):
            agree = agree & (place >= back)
            wanted = tl.load(said + tl.maximum(newest - back, 0))
            agree = agree & (tl.load(said + place - back, mask=agree, other=-1) == wanted)
            agreed += agree.to(tl.int32)
        scores = tl.maximum(scores, tl.where(place < newest, agreed * history_stride + place, 0))
    best = tl.max(scores, 0)
    found = best % history_stride
    period = tl.maximum(newest - found, 1)
    number = tl.arange(0, COUNTS)
    draft = tl.load(said + found + 1 + number % period, mask=number < COUNT, other=0).to(tl.int64)
    draft = tl.where(best >= SHORTEST * history_stride, draft, -1)
    tl.store(drafts_ptr + row * COUNT + number, draft, mask=number < COUNT)


def look_up_slots(slots: Tensor, history: Tensor, known: Tensor, count: int) -> Tensor:
    """Look up `count` drafts for each of `slots`, integers [B]. Returns int64 [B, count], -1 for no draft.

    history, known: each slot's tokens, int32 [S, C], and their number, int64 [S].
    """
    drafts = torch.empty(len(slots), count, dtype=torch.int64, device=slots.device)
    look_up_kernel[(len(slots),)](
        slots, history, known, drafts, history.stride(0), count, triton.next_power_of_2(count), SHORTEST,
        LONGEST, BLOCK, starts_early(), num_warps=4,
    )  # fmt: skip
    return drafts
