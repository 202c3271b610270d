"""How many programs of a kernel live at once: a grid that is to fill a GPU, and no more than fill it, is sized by this.

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
