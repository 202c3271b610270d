"""The machine's own memory: how much there is, and how much can still be had without swapping."""

import os
from typing import NamedTuple

import psutil

from gradus.device.control_groups import memory_left
from gradus.errors import ConfigError


class HostMemory(NamedTuple):
    """In bytes. total: of the machine. free: what this process can still take, of its container's part where it is in
    one."""

    total: int
    free: int

    @classmethod
    def now(cls) -> "HostMemory":
        """Raises ConfigError where the system tells neither."""
        total, free = _of_the_machine()
        return cls(total, int(min(free, memory_left())))


def _of_the_machine() -> tuple[int, int]:
    """Total and free, by the system's own estimate of what it can free at once."""
    try:
        memory = psutil.virtual_memory()
        return memory.total, memory.available
    except (OSError, RuntimeError, NotImplementedError):  # a Linux whose /proc is hidden
        return _by_pages()


def _by_pages() -> tuple[int, int]:
    """The same by POSIX. What is cached of files counts as taken."""
    try:
        size = os.sysconf("SC_PAGE_SIZE")
        return size * os.sysconf("SC_PHYS_PAGES"), size * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError) as error:
        raise ConfigError(
            "the system does not tell how much memory is free: say how large the cache is with cache_tokens"
        ) from error
