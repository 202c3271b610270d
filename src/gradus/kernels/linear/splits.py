"""Sums shared by several programs: each leaves its part in memory, and the last to arrive adds them up.

Where a product's outputs give too few programs to keep a GPU's memory busy, several programs split K. A counter in
memory identifies the last one, which adds the parts in a fixed order. So the result does not depend on timing, and no
second launch is needed. program_id(1) is the split.
"""

import triton
import triton.language as tl
from triton.language import tensor


@triton.jit
def leave(sums: tensor, here: tensor, inside: tensor, partial_ptr: tensor, size: int) -> None:
    """Write this program's part of the sums to slab program_id(1); a slab has `size` sums."""
    tl.store(partial_ptr + tl.program_id(1) * size + here, sums, mask=inside)


@triton.jit
def arrives_last(arrived_ptr: tensor, tile: int) -> tensor:
    """Count this program in. Return True in a tile's last one: all parts are in memory, and the counter is 0 again."""
    tl.debug_barrier()  # all of the program's sums are written before it counts itself in
    last = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == tl.num_programs(1) - 1
    if last:
        tl.store(arrived_ptr + tile, 0)  # ready for the next launch
    return last


@triton.jit
def total(sums: tensor, here: tensor, inside: tensor, partial_ptr: tensor, size: int) -> tensor:
    """Add up all splits' parts, in the shape and type of `sums`."""
    sums = tl.zeros_like(sums)
    for split in range(tl.num_programs(1)):
        sums += tl.load(partial_ptr + split * size + here, mask=inside, other=0, cache_modifier=".cg")
    return sums
