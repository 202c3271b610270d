"""The features of an NVIDIA GPU, by its compute capability: the one home of every such fact.

Kernels are compiled for Ampere (8.0) and newer. A device's capability decides which features are left out; nothing is
tried to find out. An unknown capability counts as the most modest one of its kind, so kernels run on it before anyone
has tuned them.

Source: the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from typing import NamedTuple

import torch

KIB = 1024


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
        """Whether it has arithmetic for floats of 8 bits, and widens them (from Ada on)."""
        return self >= (8, 9)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that one program may have."""
        return SHARED_MEMORY.get(self, SMALLEST_SHARED_MEMORY)


OLDEST = Capability(8, 0)
SMALLEST_SHARED_MEMORY = 99 * KIB
SHARED_MEMORY = {
    Capability(8, 0): 163 * KIB,
    Capability(8, 7): 163 * KIB,
    Capability(9, 0): 227 * KIB,
    Capability(10, 0): 227 * KIB,
    Capability(10, 3): 227 * KIB,
}


def capability(device: torch.device) -> Capability:
    """The capability of a GPU. A CPU, where Triton interprets the kernels, counts as the oldest one that runs them.

    Raises torch's error for a GPU that does not exist.
    """
    return OLDEST if device.type == "cpu" else Capability(*torch.cuda.get_device_capability(device))
