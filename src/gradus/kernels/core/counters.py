"""Counters in a device's memory. Programs that share a sum count themselves in, which identifies the last one."""

import torch
from torch import Tensor

COUNTERS = 1 << 14


class Counters:
    """int32 zeros on a device: a launch leaves them at 0, and a CUDA graph keeps their address.

    Launches that share them must follow each other, as those of one engine do on its stream. So each view of a model
    has its own (`gradus.kernels.core.view`).
    """

    def __init__(self) -> None:
        self._zeros: Tensor | None = None

    def of(self, device: torch.device, count: int) -> Tensor:
        """Return at least `count` of them. The first call allocates, so it cannot be part of a graph."""
        if count > COUNTERS:  # beyond them lies memory of something else
            raise ValueError(f"a launch has {count} tiles that are split, and there are {COUNTERS} counters")
        if self._zeros is None:
            self._zeros = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
        return self._zeros


SHARED: dict[torch.device, Counters] = {}
"""Counters by device, for callers without their own. They launch on one stream."""


def counters_of(device: torch.device, count: int, own: Counters | None = None) -> Tensor:
    """Take the caller's own, or else the device's."""
    return (own or SHARED.setdefault(device, Counters())).of(device, count)
