"""The features of an NVIDIA GPU, by its compute capability: the one home of every such fact.

Kernels are compiled for Ampere (8.0) and newer. A device's capability decides which features are left out; nothing is
tried to find out. An unknown capability counts as the most modest one of its kind, so kernels run on it before anyone
has tuned them.

Source: the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

KIB = 1024
WARP = 32  # threads
REGISTERS = 65_536  # of a multiprocessor
REGISTER_UNIT = 256  # registers are given to a warp in units of so many
WARP_UNIT = 4  # warps with registers: a multiprocessor has four parts
RESERVED = 1 * KIB  # bytes of shared memory that the driver takes for each program


class Capability(NamedTuple):
    """A compute capability: (9, 0) is an H100 or H200, (8, 6) an RTX 3090, (12, 0) an RTX 5090."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def runs_kernels(self) -> bool:
        """Whether our kernels run: they multiply in bfloat16 and copy asynchronously, and so need Ampere."""
        return self >= OLDEST

    @property
    def starts_early(self) -> bool:
        """Whether a launch may start while the one before it drains (`griddepcontrol`, from Hopper on)."""
        return self >= (9, 0)

    @property
    def multiplies_fp8(self) -> bool:
        """Whether it multiplies and widens 8-bit floats (from Ada on)."""
        return self >= (8, 9)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that one program may have."""
        return SHARED_MEMORY.get(self, SMALLEST_SHARED_MEMORY)

    def programs(self, *, warps: int, shared: int, registers: int = 1) -> int:
        """How many programs one multiprocessor has room for at once; 0 if not even one fits.

        shared: bytes of one. registers: of one of its threads.
        """
        most_warps, most_programs = RESIDENT.get(self, SMALLEST_RESIDENT)
        taken = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT  # by a warp
        with_registers = REGISTERS // taken // WARP_UNIT * WARP_UNIT
        by_memory = (self.shared_memory + RESERVED) // (shared + RESERVED)
        return min(most_programs, min(most_warps, with_registers) // warps, by_memory)


OLDEST = Capability(8, 0)
SMALLEST_SHARED_MEMORY = 99 * KIB
SHARED_MEMORY = {
    Capability(8, 0): 163 * KIB,
    Capability(8, 7): 163 * KIB,
    Capability(9, 0): 227 * KIB,
    Capability(10, 0): 227 * KIB,
    Capability(10, 3): 227 * KIB,
}

SMALLEST_RESIDENT = (48, 16)
# warps and programs that live on a multiprocessor at once
RESIDENT = {
    Capability(8, 0): (64, 32),
    Capability(8, 9): (48, 24),
    Capability(9, 0): (64, 32),
    Capability(10, 0): (64, 32),
    Capability(10, 3): (64, 32),
    Capability(12, 0): (48, 24),
    Capability(12, 1): (48, 24),
}


class Assumed(NamedTuple):
    """A GPU that is not here. name: as CUDA would say it."""

    name: str
    capability: Capability
    multiprocessors: int


_assumed: Assumed | None = None


@contextmanager
def assuming(gpu: Assumed | None) -> Iterator[None]:
    """Within the block, plan for this GPU whatever is here: nothing may be allocated or launched. None: change
    nothing."""
    global _assumed
    before, _assumed = _assumed, gpu or _assumed
    try:
        yield
    finally:
        _assumed = before


def capability(device: torch.device) -> Capability:
    """The capability of a GPU. A CPU, where Triton interprets the kernels, counts as the oldest one that runs them.

    Raises torch's error for a GPU that does not exist.
    """
    if device.type == "cpu":
        return OLDEST
    return _assumed.capability if _assumed else Capability(*torch.cuda.get_device_capability(device))


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for a CPU, where Triton's interpreter runs one program after the other."""
    if device.type == "cpu":
        return 1
    return _assumed.multiprocessors if _assumed else torch.cuda.get_device_properties(device).multi_processor_count


def name_of(device: torch.device) -> str:
    """CUDA's name of a GPU."""
    return _assumed.name if _assumed else torch.cuda.get_device_name(device)
