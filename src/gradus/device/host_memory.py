"""The machine's own memory: its total, and how much is available without swapping."""

import os
from typing import NamedTuple

import psutil

from gradus.device.control_groups import memory_left
from gradus.errors import ConfigError


class HostMemory(NamedTuple):
    """Memory in bytes. total: the machine's. free: the amount that this process can still take, within its container's
    limit if it runs in one. source: the origin of the number of free bytes."""

    total: int
    free: int
    source: str

    @classmethod
    def now(cls) -> "HostMemory":
        """Measure the memory now. Raises ConfigError if the system does not report it."""
        machine, left = _of_the_machine(), memory_left()
        return machine if machine.free <= left else cls(machine.total, int(left), "its control group's limit")


def _of_the_machine() -> HostMemory:
    """Ask for the system's own estimate of the memory that it can free at once."""
    try:
        memory = psutil.virtual_memory()
        return HostMemory(memory.total, memory.available, "psutil")
    except (OSError, RuntimeError, NotImplementedError):  # a Linux whose /proc is hidden
        return _by_pages()


def _by_pages() -> HostMemory:
    """Ask by POSIX instead. Cached files count as used."""
    try:
        size = os.sysconf("SC_PAGE_SIZE")
        return HostMemory(size * os.sysconf("SC_PHYS_PAGES"), size * os.sysconf("SC_AVPHYS_PAGES"), "POSIX")
    except (AttributeError, OSError, ValueError) as error:
        raise ConfigError(
            "the system does not tell how much memory is free: say how large the cache is with cache_tokens"
        ) from error
