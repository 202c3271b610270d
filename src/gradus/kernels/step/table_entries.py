"""Writes entries of block tables: the pages that sequences have entered.

Idea: the host's numbers lie in pinned memory, where the GPU reads them by itself. So a change of the tables is one
launch, not a copy and then a scatter, and the GPU is not idle between the two.

Bytes: 16 per entry, over the bus; 8 written. A program takes BLOCK entries.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

BLOCK = 256


@triton.jit
def set_entries_kernel(tables_ptr: tensor, numbers_ptr: tensor, BLOCK: constexpr) -> None:
    count = tl.load(numbers_ptr)
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < count
    place = tl.load(numbers_ptr + 1 + number, mask=inside, other=0)
    page = tl.load(numbers_ptr + 1 + count + number, mask=inside, other=0)
    tl.store(tables_ptr + place, page, mask=inside)


def set_entries(tables: Tensor, numbers: Tensor) -> None:
    """Write entries of tables, int64, contiguous. numbers: int64, on the device or pinned: how many entries, their
    places in the flat tables, their pages, and any numbers after those. May be captured."""
    most = len(numbers) // 2
    set_entries_kernel[(triton.cdiv(most, BLOCK),)](tables, numbers, BLOCK, num_warps=4)
