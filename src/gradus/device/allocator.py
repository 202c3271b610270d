"""Decide what allocators keep of freed memory: more where that is faster, and nothing once an engine is gone.

A product in torch takes memory for its result and frees what it has read. By default glibc gives blocks beyond some
size back to the system at once, and the top of its heap whenever enough of it is free. The next product is then given
the same pages as new ones, which the system fills with zeros first, 4 KiB at a time. That is much of a step that writes
its weights anew (p07's), and some of every long prompt. So the command line, whose process is its own, has
the library keep them.

A program that uses `LLM` decides for itself; importing gradus changes nothing. For the same effect it is started with
MALLOC_MMAP_THRESHOLD_=33554432 and MALLOC_TRIM_THRESHOLD_=268435456 in its environment.

After an engine, the C library and torch's GPU allocator keep hundreds of megabytes, and perhaps nobody asks for them
again. A notebook's next engine, or another process, would not find them.
"""

import ctypes
import gc
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch  # the command line decides before it is loaded

KEPT = 256 << 20  # bytes, at the top of the heap
BLOCK = 32 << 20  # bytes: what is larger comes from the system, and goes back to it
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them

# Any of these in the environment is the user's own choice.
CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Whether it was told: not without glibc, and not where the environment holds one of `CHOICES`."""
    if sys.platform != "linux" or any(name in environment for name in CHOICES):
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return tell is not None and all([tell(MMAP_THRESHOLD, BLOCK), tell(TRIM_THRESHOLD, KEPT)])


def give_back(device: "torch.device") -> None:
    """Return to the system what was freed of the host's memory and, where it is a GPU, of the device's."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
    give_back_host_memory()


def give_back_host_memory() -> None:
    """Return to the system what was freed. Does nothing where the C library has no call for it."""
    library = ctypes.CDLL(None)
    if (trim := getattr(library, "malloc_trim", None)) is not None:  # glibc
        trim(ctypes.c_size_t(0))
    elif (relieve := getattr(library, "malloc_zone_pressure_relief", None)) is not None:  # macOS: all zones, all of it
        relieve(None, ctypes.c_size_t(0))


class GivesBack:
    """The last attribute of what owns an engine: attributes go in their order, and with this one freed memory does.

    engine: one that is part of a cycle is collected first.
    """

    def __init__(self, device: "torch.device", engine: object) -> None:
        self._device = device
        self._engine = weakref.ref(engine)

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        if self._engine() is not None:
            gc.collect()
        give_back(self._device)
