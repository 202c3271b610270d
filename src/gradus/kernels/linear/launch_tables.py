"""Tables of the fastest launch for a product of 16-bit matrices: measured, one file per device (`core/tuning.py`).

A file holds, for each matrix [n, k] that benchmarks/kernels/fused_kernels.py knows and each number of rows, the fastest
launch of ours, or null where cuBLAS was as fast. For few rows it also holds the launch of products with something fused
in, which may be slower than the product alone by the launch that it saves; or null. A matrix that was never measured
with a number of rows takes the choice of the nearest one that was. Fused products do so only if the matrix has no fused
measurement at all.

Without a file, a single row takes a launch that is reasonable anywhere, and more go to cuBLAS.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

import torch

from gradus.device.capability import Capability
from gradus.kernels.core import tuning
from gradus.kernels.core.tuning import Launches, nearest
from gradus.kernels.linear.launches import FewRowsLaunch, GemvLaunch, SplitKLaunch, StreamedLaunch

FusedLaunch = GemvLaunch | FewRowsLaunch | StreamedLaunch  # of kernels with a norm, an activation and a sum in them
Launch = FusedLaunch | SplitKLaunch

KINDS: dict[str, type[Launch]] = {
    "gemv": GemvLaunch,
    "few_rows": FewRowsLaunch,
    "streamed": StreamedLaunch,
    "splitk": SplitKLaunch,
}
"""Launches by the names that files give them."""


class LaunchTable(Protocol):
    """Chooses how one kind of device multiplies."""

    def choose(self, m: int, n: int, k: int) -> Launch | None:
        """A launch for [m, k] by a 16-bit matrix [n, k], or None for cuBLAS."""

    def fused(self, m: int, n: int, k: int) -> FusedLaunch | None:
        """The launch of such a product with something fused in; None if separate launches are faster."""


@dataclass(frozen=True)
class Measured:
    """A device's file. rows: numbers of rows that were measured, ascending; others take the next of them."""

    device: str
    capability: Capability
    rows: tuple[int, ...]
    launches: Launches  # of the product alone
    with_more: Launches  # fused

    @classmethod
    def read(cls, stored: dict[str, Any]) -> "Measured":
        alone, fused = (tuning.launches_of(stored["matrices"], column, KINDS) for column in ("launches", "fused"))
        return cls(stored["device"], Capability(*stored["capability"]), tuple(stored["rows"]), alone, fused)

    def choose(self, m: int, n: int, k: int) -> Launch | None:
        place = bisect_left(self.rows, m)
        shapes = [shape for shape, launches in self.launches.items() if m > 0 and place < len(launches)]
        return cast(Launch | None, self.launches[nearest(shapes, n, k)][place]) if shapes else None

    def fused(self, m: int, n: int, k: int) -> FusedLaunch | None:
        place = bisect_left(self.rows, m)
        measured = [(n, k)] if self.with_more.get((n, k)) else [*self.with_more]  # its parts may be faster with more
        shapes = [shape for shape in measured if m > 0 and place < len(self.with_more[shape])]
        return cast(FusedLaunch | None, self.with_more[nearest(shapes, n, k)][place]) if shapes else None


def launch_of(stored: Mapping[str, Any]) -> Launch:
    """Read a launch as files have it."""
    return cast(Launch, tuning.launch_of(stored, KINDS))


def stored_form(launch: Launch) -> dict[str, Any]:
    """Return what `launch_of` reads."""
    return tuning.stored_form(launch, KINDS)


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
def table_of(device: torch.device) -> LaunchTable:
    return tuning.table_of(device, stored_tables()) or Unmeasured()


def matching(name: str, able: Capability) -> LaunchTable:
    """Return the table of this device or its like, or else `Unmeasured`."""
    return tuning.matching(stored_tables(), name, able) or Unmeasured()


@cache
def stored_tables() -> tuple[Measured, ...]:
    return tuning.tables_of("gradus.kernels.linear", Measured.read)
