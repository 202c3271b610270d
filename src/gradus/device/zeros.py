"""Zeros that take memory as they are written to.

A GPU's memory is taken when it is allocated. On a CPU, the system only reserves addresses, and adds a page of memory,
filled with zeros, when a program first writes there. `torch.zeros` writes to all of it at once: gigabytes of a laptop's
memory, and seconds of start-up, for a cache that may never be full.
"""

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate zeros, like `torch.zeros`. Raises MemoryError if the system has no addresses left."""
    if device.type != "cpu" or not prod(shape):
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    size = prod(shape) * dtype.itemsize
    try:
        # private, so that a forked child has its own copy
        room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot allocate memory: {size} bytes") from error
    return torch.frombuffer(room, dtype=torch.uint8).view(dtype).view(tuple(shape))
