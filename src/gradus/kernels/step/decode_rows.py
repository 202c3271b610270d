"""Lays out a step without drafts on the GPU.

Idea: every row is accepted, so nothing has to be decided at the step's end. This kernel reads each slot's newest token
and length, looks up where the row's key and value are stored, and counts the token that the step will draw; the sampler
writes that token to the history. `verify.py` does the same for steps that verify drafts.

Bytes: 20 per row in, 36 and 8 per layer group out. A program takes BLOCK rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.step.rows import DecodeRows
from gradus.kernels.step.verify import store_places

BLOCK = 128


@triton.jit(do_not_specialize=["rows", "padding"])
def decode_rows_kernel(
    slots_ptr: tensor, limits_ptr: tensor, history_ptr: tensor, known_ptr: tensor, tables_ptr: tensor,
    tokens_ptr: tensor, positions_ptr: tensor, owners_ptr: tensor, ends_ptr: tensor, places_ptr: tensor, rows: int,
    width: int, group_stride: int, slot_stride: int, padding: int, PAGE: constexpr, GROUPS: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    slot = tl.load(slots_ptr + row, mask=inside, other=0)
    known = tl.load(known_ptr + slot, mask=inside, other=1)
    live = inside & (known <= tl.load(limits_ptr + row, mask=inside, other=0))
    newest = slot.to(tl.int64) * width + tl.minimum(known, width) - 1
    token = tl.load(history_ptr + newest, mask=live, other=0)
    owner = tl.where(live, slot, padding)
    position = tl.where(live, known - 1, 0).to(tl.int32)
    tl.store(tokens_ptr + row, token.to(tl.int64), mask=inside)
    tl.store(positions_ptr + row, position.to(tl.int64), mask=inside)
    tl.store(owners_ptr + row, owner, mask=inside)
    tl.store(ends_ptr + row, tl.where(live, position + 1, 0), mask=inside)
    tl.store(known_ptr + slot, known + 1, mask=live)
    store_places(places_ptr, tables_ptr, row, owner, position, inside, rows, group_stride, slot_stride, PAGE, GROUPS)


def decode_rows(
    slots: Tensor, limits: Tensor, history: Tensor, known: Tensor, tables: Tensor, page_size: int
) -> DecodeRows:
    """Lay out a row with each slot's newest token, and add one to `known` for the token that the row will draw.

    slots, limits: int32 [B]; limits are the positions that each may store: a slot without room becomes padding. By
    slot: history, int32 [S, C], the tokens, or the newest alone if C is 1, and known, int64 [S], the number of tokens;
    the last slot is padding's. tables: int64 [G, S, width], block tables.
    """
    rows, groups, device = len(slots), len(tables), slots.device
    tokens, positions = torch.empty(2, rows, dtype=torch.int64, device=device)
    owners, ends = torch.empty(2, rows, dtype=torch.int32, device=device)
    places = torch.empty(groups, rows, dtype=torch.int64, device=device)
    decode_rows_kernel[(triton.cdiv(rows, BLOCK),)](
        slots, limits, history, known, tables, tokens, positions, owners, ends, places, rows, history.shape[1],
        tables.stride(0), tables.stride(1), len(known) - 1, page_size, groups, BLOCK, num_warps=4,
    )  # fmt: skip
    return DecodeRows(tokens, positions, owners, ends, places)
