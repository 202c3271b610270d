"""A device's memory: how much is free, which processes hold the rest, and how to recognize a failed allocation."""

from dataclasses import dataclass

import torch

from gradus.device.host_memory import HostMemory
from gradus.device.nvml import other_processes
from gradus.errors import CapacityError

NAMED_PROCESSES = 3  # at most, so that a refusal fits on one line


class OutOfMemory(CapacityError):
    """A device lacks memory for an allocation. An engine whose step failed in this way cannot be used any more."""


def ran_out(error: BaseException) -> bool:
    """True if `error` is a failed allocation, in torch or in Python. (Torch's CPU allocator raises RuntimeError.)"""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    signs = ("out of memory", "allocate memory", "enough memory", "ALLOC_FAILED", "Storage size calculation")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


@dataclass(frozen=True)
class DeviceMemory:
    """Sizes in bytes. free: can still be allocated. total: None on a CPU, whose memory other processes share.

    own: held by this process's tensors and CUDA graphs, on a GPU.
    """

    free: int
    total: int | None = None
    own: int = 0

    @classmethod
    def of(cls, device: torch.device) -> "DeviceMemory":
        """Measure the device's memory now."""
        free = free_memory(device)
        if device.type != "cuda":
            return cls(free)
        return cls(free, torch.cuda.mem_get_info(device)[1], torch.cuda.memory_reserved(device))

    @property
    def others(self) -> int:
        """Bytes held by other processes, and by CUDA itself in every process, this one included."""
        return 0 if self.total is None else max(0, self.total - self.free - self.own)

    def usable(self, fraction: float) -> int:
        """Count the bytes that can be taken until all processes together use `fraction` of the whole.

        A CPU's result is `fraction` of its free memory.
        """
        if self.total is None:
            return int(self.free * fraction)
        return max(0, int(self.total * fraction) - (self.total - self.free))

    def holders(self, device: torch.device) -> str:
        """Name the processes that hold memory, as the end of a line: "; of 80 GB, this process …". "" on a CPU."""
        if self.total is None:
            return ""
        named = [f"process {pid} has {readable(size)}" for pid, size in _processes(device)[:NAMED_PROCESSES]]
        told = f" ({', '.join(named)})" if named else ""
        return (
            f"; of {readable(self.total)}, this process holds {readable(self.own)}, and other processes and "
            f"CUDA {readable(self.others)}{told}"
        )


def _processes(device: torch.device) -> list[tuple[int, int]]:
    if not torch.cuda.is_available():  # then CUDA cannot say either which of the driver's GPUs `device` is
        return []
    return other_processes(torch.cuda.current_device() if device.index is None else device.index)


def free_memory(device: torch.device) -> int:
    """Measure the bytes that can still be allocated on `device`. Raises ConfigError if the system does not report them.

    Torch keeps the memory of freed tensors, such as an earlier engine's, and the driver counts it as used. So torch
    gives it back first. Adding it to the driver's number would count too much: an engine cannot use gaps between living
    tensors, or the memory of CUDA graphs.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return HostMemory.now().free


def keep(size: int, device: torch.device) -> None:
    """Let torch hold `size` bytes of a GPU for later tensors, so that other processes cannot take them."""
    torch.empty(size, dtype=torch.uint8, device=device)


def readable(size: float) -> str:
    """Format a size, such as 269.1 MB, in decimal units, as model sizes are commonly given."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
