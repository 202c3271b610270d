"""A sum that several programs share: each leaves its part in memory, and the last to arrive adds them up.

Where a product's outputs alone give too few programs to keep a GPU's memory busy, K is split between some. A counter in
memory tells which of them is last; it adds the parts, always in the same order, so the result does not depend on which
one that was, and no second launch is needed. program_id(1) is the split.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor

COUNTERS = 1 << 14


@triton.jit
def leave(sums: tensor, here: tensor, inside: tensor, partial_ptr: tensor, size: int) -> None:
    """Write this program's part of the sums to slab program_id(1); a slab has `size` sums."""
    tl.store(partial_ptr + tl.program_id(1) * size + here, sums, mask=inside)


@triton.jit
def arrives_last(arrived_ptr: tensor, tile: int) -> tensor:
    """Count this program in. True for the last one of a tile; all parts are then in memory, and the counter is 0."""
    tl.debug_barrier()  # all of the program's sums are written before it counts itself in
    last = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == tl.num_programs(1) - 1
    if last:
        tl.store(arrived_ptr + tile, 0)  # ready for the next launch
    return last


@triton.jit
def total(sums: tensor, here: tensor, inside: tensor, partial_ptr: tensor, size: int) -> tensor:
    """All splits' parts, in the shape and type of `sums`."""
    sums = tl.zeros_like(sums)
    for split in range(tl.num_programs(1)):
        sums += tl.load(partial_ptr + split * size + here, mask=inside, other=0, cache_modifier=".cg")
    return sums


class Counters:
    """int32 zeros on a device: a launch leaves them at 0, and a CUDA graph keeps their address.

    Launches that share them must follow each other, as those of one engine do on its stream. So each view of a model
    has its own (`gradus.kernels.core.view`).
    """

    def __init__(self) -> None:
        self._zeros: Tensor | None = None

    def of(self, device: torch.device, count: int) -> Tensor:
        """Return at least `count` of them. The first call allocates, so it cannot be part of a graph."""
        if count > COUNTERS:  # beyond them lies memory of something else
            raise ValueError(f"a launch has {count} tiles that are split, and there are {COUNTERS} counters")
        if self._zeros is None:
            self._zeros = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
        return self._zeros


SHARED: dict[torch.device, Counters] = {}
"""Counters by device, for callers without their own. They launch on one stream."""


def counters_of(device: torch.device, count: int, own: Counters | None = None) -> Tensor:
    """Take the caller's own, or else the device's."""
    return (own or SHARED.setdefault(device, Counters())).of(device, count)
