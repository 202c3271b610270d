"""The C library's allocator on a CPU, told to keep what was freed. For our own process alone: the command line's.

A product in torch takes memory for its result and frees what it has read. By default glibc gives blocks beyond some
size back to the system at once, and the top of its heap whenever enough of it is free. The next product is then given
the same pages as new ones, which the system fills with zeros first, 4 KiB at a time. That is much of a step that writes
its weights anew (p07's), and some of every long prompt.

A program that uses `LLM` decides for itself; importing gradus changes nothing. For the same effect it is started with
MALLOC_MMAP_THRESHOLD_=33554432 and MALLOC_TRIM_THRESHOLD_=268435456 in its environment.
"""

import ctypes
import sys
from collections.abc import Mapping

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
