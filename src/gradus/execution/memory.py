"""A device's memory: how much is free, and how an allocation that failed is recognized."""

from dataclasses import dataclass
from pathlib import Path

import torch

from gradus.errors import CapacityError, ConfigError


class OutOfMemory(CapacityError):
    """A device has no memory for what was asked of it. An engine in whose step that happened is of no use any more."""


def ran_out(error: BaseException) -> bool:
    """Whether this is how torch, or Python, says that an allocation failed. (A CPU's allocator raises RuntimeError.)"""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    signs = ("out of memory", "allocate memory", "enough memory", "ALLOC_FAILED", "Storage size calculation")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


@dataclass(frozen=True)
class DeviceMemory:
    """Sizes in bytes. free: what can still be allocated. total: None on a CPU, whose memory other processes share."""

    free: int
    total: int | None = None

    @classmethod
    def of(cls, device: torch.device) -> "DeviceMemory":
        """As it is now."""
        return cls(free_memory(device), torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None)

    def usable(self, fraction: float) -> int:
        """Bytes that may be taken for `fraction` of the whole to be in use then, by all processes together.

        On a CPU it is `fraction` of what is free.
        """
        if self.total is None:
            return int(self.free * fraction)
        return max(0, int(self.total * fraction) - (self.total - self.free))


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_host_available(), _container_limit())


def _host_available() -> int:
    """Linux's own estimate of what can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError as error:
        raise ConfigError(
            "free memory is not known here: /proc/meminfo, which tells it on Linux, is missing"
        ) from error
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _container_limit() -> int:
    """What a container may use in all (cgroup version 2, then 1); without a limit, more than any machine has."""
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int((Path("/sys/fs/cgroup") / limit).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return 1 << 62
