"""Decide how much freed memory allocators keep: more where that is faster, and none once an engine is gone.

A product in torch allocates its result and frees its operands. By default glibc returns blocks above some
size to the system at once, and the top of its heap whenever enough of it is free. The next product then gets
the same pages as new ones, which the system fills with zeros first, 4 KiB at a time. This takes much of a step that
widens its weights again each time (p07's), and some of every long prompt. So the command line, which owns its process,
makes the library keep them.

A program that uses `LLM` decides for itself; importing gradus changes nothing. For the same effect, start it with
MALLOC_MMAP_THRESHOLD_=33554432 and MALLOC_TRIM_THRESHOLD_=268435456 in its environment.

When an engine is gone, the C library and torch's GPU allocator still keep hundreds of megabytes, which a notebook's
next engine, or another process, could not use.
"""

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch  # not at run time: the command line decides before torch is loaded

KEPT = 256 << 20  # bytes, at the top of the heap
BLOCK = 32 << 20  # bytes: larger blocks come from the system, and go back to it
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # their numbers in malloc.h

# If the environment sets one of these variables, the user has chosen.
CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Make the C library keep freed memory. Returns whether it does: not without glibc, nor if the environment holds
    one of `CHOICES`."""
    if sys.platform != "linux" or any(name in environment for name in CHOICES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all([mallopt(MMAP_THRESHOLD, BLOCK), mallopt(TRIM_THRESHOLD, KEPT)])


def give_back(device: "torch.device") -> None:
    """Return freed memory to the system: the host's and, if the device is a GPU, the device's."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
    give_back_host_memory()


def give_back_host_memory() -> None:
    """Return freed memory to the system. Does nothing if the C library has no call for it."""
    library = ctypes.CDLL(None)
    if (trim := getattr(library, "malloc_trim", None)) is not None:  # glibc
        trim(ctypes.c_size_t(0))
    elif (relieve := getattr(library, "malloc_zone_pressure_relief", None)) is not None:  # macOS: all zones, all of it
        relieve(None, ctypes.c_size_t(0))


class GivesBack:
    """The last attribute of an engine's owner. Attributes are deleted in order, and deleting this one returns freed
    memory.

    engine: if it is part of a cycle, it is collected first.
    """

    def __init__(self, device: "torch.device", engine: object) -> None:
        self._device = device
        self._engine = weakref.ref(engine)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Return freed memory. At Python's end, this may come after the module's own names are gone."""
        if is_finalizing():
            return
        if self._engine() is not None:
            gc.collect()
        give_back(self._device)
