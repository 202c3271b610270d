"""The hidden state that a step leaves each slot with: that of the last row that stood.

Idea: which row that is, `keep_standing` has just worked out on the GPU. One program per span and BLOCK numbers reads it
and copies the row. As torch operations these are some ten launches.

Bytes: D numbers per span, read and written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.engine import plan

BLOCK = 512
REJECTED = constexpr(plan.REJECTED)


@triton.jit
def keep_hidden_kernel(
    slots_ptr: tensor, kept_ptr: tensor, rows_ptr: tensor, hidden_ptr: tensor, values_ptr: tensor, D: int,
    hidden_stride: int, WIDTH: constexpr, WIDER: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    span = tl.program_id(0)
    number = tl.arange(0, WIDER)
    kept = tl.load(kept_ptr + span * WIDTH + number, mask=number < WIDTH, other=REJECTED)
    count = tl.sum((kept > REJECTED).to(tl.int32), 0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (column < D) & (count > 0)
    row = tl.load(rows_ptr + span * WIDTH + tl.maximum(count - 1, 0))
    slot = tl.load(slots_ptr + span).to(tl.int64)
    state = tl.load(hidden_ptr + row * hidden_stride + column, mask=inside, other=0.0)
    tl.store(values_ptr + slot * D + column, state, mask=inside)


def keep_hidden(slots: Tensor, kept: Tensor, origins: Tensor, hidden: Tensor, values: Tensor) -> None:
    """slots: integers [B]; kept, origins: int64 [B, 1 + K], as `keep_standing` gives them; hidden: [R, D], of a step's
    rows; values: [slots, D], which keep what they have where no row stood."""
    (spans, width), size = kept.shape, hidden.shape[1]
    keep_hidden_kernel[(spans, triton.cdiv(size, BLOCK))](
        slots, kept, origins, hidden, values, size, hidden.stride(0), width, triton.next_power_of_2(width), BLOCK,
        num_warps=4,
    )  # fmt: skip


def keep_hidden_reference(slots: Tensor, kept: Tensor, origins: Tensor, hidden: Tensor, values: Tensor) -> None:
    count = (kept > plan.REJECTED).sum(1)
    last = origins.gather(1, (count - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    some = torch.nonzero(count).squeeze(1)
    values[slots[some].long()] = hidden[last[some]]
