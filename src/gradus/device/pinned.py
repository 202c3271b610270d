"""Gigabytes of pinned host memory: a GPU copies from and to it by itself, at the speed of the bus.

torch's own pinned memory is rounded up to a power of two, so 33 GiB would take 64. Here the system's pages are taken
and registered with the driver as they are. In large pages (Linux) that takes a fraction of the time.
"""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

from gradus.device.transfer import current
from gradus.errors import ConfigError


class PinnedMemory:
    """`size` bytes for copies to and from a device; on a CPU, where nothing is copied, ordinary memory.

    Raises ConfigError if the system does not have as much, or does not let it be pinned.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device
        try:
            room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"host_cache: the system has no {size / 2**30:.3g} GiB of memory: lower it") from error
        # The kernel may take large pages. A forked child must not share them: a copy on write would leave the GPU with
        # pages that are no longer ours.
        for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            if hasattr(mmap, advice):
                with suppress(OSError):
                    room.madvise(getattr(mmap, advice))
        self.bytes: Tensor = torch.frombuffer(room, dtype=torch.uint8)
        self._registered = False
        if device.type == "cuda":
            self._register()

    def _register(self) -> None:
        with current(self._device):
            result = int(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), len(self.bytes), 0))
        if result:
            raise ConfigError(
                f"host_cache: {len(self.bytes) / 2**30:.3g} GiB of memory cannot be pinned (CUDA error {result}): "
                "lower it"
            )
        self._registered = True

    def close(self) -> None:
        """Let the system have the memory again. No copy is under way."""
        if self._registered:
            self._registered = False
            with current(self._device):
                torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
