"""A device's memory: how much is free, and how an allocation that failed is recognized."""

from dataclasses import dataclass

import torch

from gradus.device.host_memory import HostMemory
from gradus.errors import CapacityError


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
    """Bytes that can still be allocated on `device`. Raises ConfigError where a system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return HostMemory.now().free
