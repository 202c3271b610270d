"""Tables of the fastest launch for a product of 16-bit matrices: measured, one file per device (`core/tuning.py`).

A file holds, for each matrix [n, k] that benchmarks/kernels/fused_kernels.py knows and each number of rows, the fastest
launch of ours, or null where cuBLAS was as fast. For few rows it also holds the launch of products with something fused
in, which may be slower than the product alone by the launch that it saves; or null. A matrix that was never measured
with a number of rows takes the choice of the nearest one that was. Fused products do so only if the matrix has no fused
measurement at all.

Without a file, a single row takes a launch that is reasonable anywhere, and more go to cuBLAS.
"""

from functools import cache
from typing import cast

import torch

from gradus.device.capability import Capability
from gradus.kernels.core import tuning
from gradus.kernels.linear.launches import FewRowsLaunch, GemvLaunch, SplitKLaunch, StreamedLaunch

FusedLaunch = GemvLaunch | FewRowsLaunch | StreamedLaunch  # of kernels with a norm, an activation and a sum in them
Launch = FusedLaunch | SplitKLaunch


class Measured(tuning.Measured):
    """How one kind of device multiplies."""

    package = "gradus.kernels.linear"

    def choose(self, m: int, n: int, k: int) -> Launch | None:
        """A launch for [m, k] by a 16-bit matrix [n, k], or None for cuBLAS."""
        return cast(Launch | None, self.nearest("launches", m, n, k))

    def fused(self, m: int, n: int, k: int) -> FusedLaunch | None:
        """The launch of such a product with something fused in; None if separate launches are faster."""
        own = [(n, k)] if self.launches["fused"].get((n, k)) else None  # its parts may be faster with more
        return cast(FusedLaunch | None, self.nearest("fused", m, n, k, own))


class Unmeasured:
    """Launches for an unknown device: 16 weights per thread in flight, like nearly all measured launches."""

    def choose(self, m: int, n: int, k: int) -> Launch | None:
        return self.fused(m, n, k)

    def fused(self, m: int, n: int, k: int) -> GemvLaunch | None:
        if m != 1:
            return None
        if k < 1024:
            return GemvLaunch(rows=2, columns=256, warps=1)
        return GemvLaunch(2, 1024, 4) if k < 4096 else GemvLaunch(1, 2048, 4)


@cache
def table_of(device: torch.device) -> Measured | Unmeasured:
    return Measured.of(device) or Unmeasured()


def matching(name: str, able: Capability) -> Measured | Unmeasured:
    """Return the table of this device or its like, or else `Unmeasured`."""
    return Measured.matching(name, able) or Unmeasured()
