"""Counts the programs of a kernel that fit on a GPU at once, to size grids that fill it exactly.

A program takes registers, shared memory and warps of a multiprocessor. Only the compiled kernel knows how many of each,
and another compiler, or another GPU, makes another number of it.
"""

from functools import cache
from typing import Any

from gradus.device.capability import Capability


@cache
def live_programs(kernel: Any, able: Capability) -> int:
    """Count the programs of a compiled kernel that one multiprocessor runs at once.

    kernel: what Triton returns of a launch. It is loaded onto the current GPU, since only then are registers known.
    """
    kernel.run  # noqa: B018  # loads
    taken = kernel.metadata
    return able.programs(warps=taken.num_warps, shared=taken.shared, registers=kernel.n_regs)
