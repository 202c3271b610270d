"""Looks up on the GPU where a step's rows store their keys and values, in each layer group's block tables.

Torch operations would take ten launches of a microsecond or two; this takes one. Bytes: 8 per row in, 8 per row and
group out. A program takes BLOCK rows of a group.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

BLOCK = 128


@triton.jit
def place_of(
    table_ptr: tensor, slot: tensor, position: tensor, inside: tensor, slot_stride: int, PAGE: constexpr
) -> tensor:
    """Look up where positions of `slot` are stored, page · PAGE + offset, in one layer group's block tables."""
    page = tl.load(table_ptr + slot.to(tl.int64) * slot_stride + position // PAGE, mask=inside, other=0)
    return page.to(tl.int64) * PAGE + position % PAGE


@triton.jit
def places_kernel(
    slots_ptr: tensor, lengths_ptr: tensor, tables_ptr: tensor, places_ptr: tensor, rows: int, group_stride: int,
    slot_stride: int, PAGE: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    group = tl.program_id(1)
    inside = row < rows
    position = tl.maximum(tl.load(lengths_ptr + row, mask=inside, other=0) - 1, 0)
    slot = tl.load(slots_ptr + row, mask=inside, other=0)
    table_ptr = tables_ptr + group.to(tl.int64) * group_stride
    place = place_of(table_ptr, slot, position, inside, slot_stride, PAGE)
    tl.store(places_ptr + group * rows + row, place, mask=inside)


def places(slots: Tensor, lengths: Tensor, tables: Tensor, page_size: int) -> Tensor:
    """Look up where each row's newest position is stored, page · page_size + offset, in each layer group.

    slots, lengths: int32 [B]; lengths include the new position. tables: integers [G, slots, width]. A length of 0
    counts as 1, so padding must have a slot whose first page may be written. Returns int64 [G, B].
    """
    rows, groups = len(slots), len(tables)
    found = torch.empty(groups, rows, dtype=torch.int64, device=slots.device)
    places_kernel[(triton.cdiv(rows, BLOCK), groups)](
        slots, lengths, tables, found, rows, tables.stride(0), tables.stride(1), page_size, BLOCK, num_warps=4
    )
    return found
