"""A device's memory: how much is free, whose the rest is, and how an allocation that failed is recognized."""

from dataclasses import dataclass

import torch

from gradus.device.host_memory import HostMemory
from gradus.device.nvml import other_processes
from gradus.errors import CapacityError

NAMED_PROCESSES = 3  # in a refusal, which is one line


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
    """Sizes in bytes. free: what can still be allocated. total: None on a CPU, whose memory other processes share.

    own: of a GPU, what this process's tensors and CUDA graphs hold.
    """

    free: int
    total: int | None = None
    own: int = 0

    @classmethod
    def of(cls, device: torch.device) -> "DeviceMemory":
        """As it is now."""
        free = free_memory(device)
        if device.type != "cuda":
            return cls(free)
        return cls(free, torch.cuda.mem_get_info(device)[1], torch.cuda.memory_reserved(device))

    @property
    def others(self) -> int:
        """Bytes that other processes hold, and CUDA itself in every process, this one included."""
        return 0 if self.total is None else max(0, self.total - self.free - self.own)

    def usable(self, fraction: float) -> int:
        """Bytes that may be taken for `fraction` of the whole to be in use then, by all processes together.

        On a CPU it is `fraction` of what is free.
        """
        if self.total is None:
            return int(self.free * fraction)
        return max(0, int(self.total * fraction) - (self.total - self.free))

    def holders(self, device: torch.device) -> str:
        """Say who holds the memory in use, as the end of a line: "; of 80 GB, this process …". "" on a CPU."""
        if self.total is None:
            return ""
        named = [f"process {pid} has {readable(size)}" for pid, size in _processes(device)[:NAMED_PROCESSES]]
        told = f" ({', '.join(named)})" if named else ""
        return (
            f"; of {readable(self.total)}, this process holds {readable(self.own)}, and other processes and "
            f"CUDA {readable(self.others)}{told}"
        )


def _processes(device: torch.device) -> list[tuple[int, int]]:
    if not torch.cuda.is_available():  # nor can CUDA say which of the driver's GPUs it is
        return []
    return other_processes(torch.cuda.current_device() if device.index is None else device.index)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`. Raises ConfigError where the system does not say.

    Torch keeps the memory of tensors that are gone, such as an earlier engine's, and the driver counts it as used. So
    torch gives it back first. Adding it to the driver's number would count too much: gaps between living tensors and
    the memory of CUDA graphs are of no use to an engine.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return HostMemory.now().free


def keep(size: int, device: torch.device) -> None:
    """Let torch hold `size` bytes of a GPU for later tensors, so that other processes cannot take them."""
    torch.empty(size, dtype=torch.uint8, device=device)


def readable(size: float) -> str:
    """269.1 MB: decimal units, as model sizes are commonly given."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
