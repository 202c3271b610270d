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


@triton.jit(do_not_specialize=["count"])
def set_entries_kernel(tables_ptr: tensor, numbers_ptr: tensor, count: int, BLOCK: constexpr) -> None:
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < count
    place = tl.load(numbers_ptr + number, mask=inside, other=0)
    tl.store(tables_ptr + place, tl.load(numbers_ptr + count + number, mask=inside, other=0), mask=inside)


def set_entries(tables: Tensor, numbers: Tensor, count: int) -> None:
    """Write `count` entries of tables, int64, contiguous. numbers: int64 [at least 2 count], on the device or pinned:
    the entries' places in the flat tables, then their pages."""
    set_entries_kernel[(triton.cdiv(count, BLOCK),)](tables, numbers, count, BLOCK, num_warps=4)
