"""Information about a GPU from NVML, the driver's own library.

It may be missing although CUDA works (in a container without the driver's tools). In a container it may also hide other
processes, or number them as the host does, so its information about them is only for people to read.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def nvml(index: int = 0) -> Iterator[Any]:
    """Yield (pynvml, handle of CUDA's GPU `index`), or None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver or no permission
        yield None
        return
    try:
        yield pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(_bus_id(index))
    finally:
        pynvml.nvmlShutdown()


def _bus_id(index: int) -> bytes:
    """The GPU's bus address, the same for CUDA and NVML. CUDA may hide and reorder GPUs."""
    import torch

    found: Any = torch.cuda.get_device_properties(index)
    return f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0".encode()


def other_processes(index: int) -> list[tuple[int, int]]:
    """List (process id, bytes) of other processes with memory on the GPU, the largest first, as far as NVML knows."""
    sizes: dict[int, int] = {}
    with nvml(index) as known:
        if known is None:
            return []
        library, handle = known
        for look in (library.nvmlDeviceGetComputeRunningProcesses, library.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                sizes |= {one.pid: one.usedGpuMemory for one in look(handle) if one.usedGpuMemory}
            except library.NVMLError:  # not every card answers every question
                continue
    sizes.pop(os.getpid(), None)
    return sorted(sizes.items(), key=lambda one: one[1], reverse=True)
