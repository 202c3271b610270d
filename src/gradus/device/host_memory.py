"""The machine's own memory: how much there is, and how much can still be had without swapping."""

import os
from typing import NamedTuple

import psutil

from gradus.device.control_groups import memory_left
from gradus.errors import ConfigError


class HostMemory(NamedTuple):
    """In bytes. total: of the machine. free: what this process can still take, of its container's part where it is in
    one. source: where the number of free bytes comes from."""

    total: int
    free: int
    source: str

    @classmethod
    def now(cls) -> "HostMemory":
        """Raises ConfigError where the system tells neither."""
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
    """The same by POSIX. What is cached of files counts as taken."""
    try:
        size = os.sysconf("SC_PAGE_SIZE")
        return HostMemory(size * os.sysconf("SC_PHYS_PAGES"), size * os.sysconf("SC_AVPHYS_PAGES"), "POSIX")
    except (AttributeError, OSError, ValueError) as error:
        raise ConfigError(
            "the system does not tell how much memory is free: say how large the cache is with cache_tokens"
        ) from error
