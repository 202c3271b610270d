"""Which launch is fastest for a product: measured, one JSON file per device in `measured/`, read when first asked for.

A file holds, for each matrix [n, k] that benchmarks/fused_kernels.py knows and each number of rows, the fastest launch
of ours, or null where cuBLAS was as fast. For few rows it also holds the launch of products with something fused in,
which may be slower than the product alone by the launch that it saves; or null. A matrix that was never measured with
so many rows takes the choice of the nearest one that was (with something fused in only if it was never measured so):
time depends on how many programs N gives and how long each runs over K, and both change it by ratios, so near means a
small log-ratio.

A device that was never measured takes the file of another with its compute capability, whose tiles fit it. Without one,
a single row takes a launch that is reasonable anywhere, and more go to cuBLAS.

Choices depend on the device's name and the product's shape alone, so all ranks of a model make the same.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, TypeVar, cast

import torch

from gradus.device.capability import Capability, capability
from gradus.kernels.linear.few_rows_launch import FewRowsLaunch
from gradus.kernels.linear.gemv import GemvLaunch
from gradus.kernels.linear.skinny import SkinnyLaunch
from gradus.kernels.linear.streamed_launch import StreamedLaunch

FusedLaunch = GemvLaunch | FewRowsLaunch | StreamedLaunch  # of kernels with a norm, an activation and a sum in them
Launch = FusedLaunch | SkinnyLaunch

KINDS: dict[str, type[Launch]] = {
    "gemv": GemvLaunch,
    "few_rows": FewRowsLaunch,
    "streamed": StreamedLaunch,
    "skinny": SkinnyLaunch,
}
"""Launches by the names that files give them."""


class OfDevice(Protocol):
    """A file of launches that were measured on a device."""

    @property
    def device(self) -> str: ...

    @property
    def capability(self) -> Capability: ...


Stored = TypeVar("Stored", bound=OfDevice)


class LaunchTable(Protocol):
    """Chooses how one kind of device multiplies."""

    def choose(self, m: int, n: int, k: int) -> Launch | None:
        """A launch for [m, k] by a 16-bit matrix [n, k], or None for cuBLAS."""

    def fused(self, m: int, n: int, k: int) -> FusedLaunch | None:
        """The launch of such a product with something fused in; None where apart is faster."""


@dataclass(frozen=True)
class Measured:
    """A device's file. rows: numbers of rows that were measured, ascending; others take the next of them."""

    device: str
    capability: Capability
    rows: tuple[int, ...]
    launches: dict[tuple[int, int], tuple[Launch | None, ...]]  # one for each of `rows`, or of the first ones
    with_more: dict[tuple[int, int], tuple[FusedLaunch | None, ...]]  # fused; for each of the first ones

    @classmethod
    def read(cls, text: str) -> "Measured":
        stored = json.loads(text)
        matrices = {(matrix["n"], matrix["k"]): matrix for matrix in stored["matrices"]}
        return cls(
            stored["device"],
            Capability(*stored["capability"]),
            tuple(stored["rows"]),
            {
                shape: tuple(each and launch_of(each) for each in matrix["launches"])
                for shape, matrix in matrices.items()
            },
            {
                shape: tuple(each and cast(FusedLaunch, launch_of(each)) for each in matrix["fused"])
                for shape, matrix in matrices.items()
            },
        )

    def choose(self, m: int, n: int, k: int) -> Launch | None:
        place = bisect_left(self.rows, m)
        shapes = [shape for shape, launches in self.launches.items() if m > 0 and place < len(launches)]
        return self.launches[nearest(shapes, n, k)][place] if shapes else None

    def fused(self, m: int, n: int, k: int) -> FusedLaunch | None:
        place = bisect_left(self.rows, m)
        measured = [(n, k)] if self.with_more.get((n, k)) else [*self.with_more]  # its parts may be faster with more
        shapes = [shape for shape in measured if m > 0 and place < len(self.with_more[shape])]
        return self.with_more[nearest(shapes, n, k)][place] if shapes else None


def nearest(shapes: Iterable[tuple[int, int]], n: int, k: int) -> tuple[int, int]:
    """The shape with the smallest log-ratio to [n, k]."""
    return min(shapes, key=lambda shape: abs(math.log(shape[0] / n)) + abs(math.log(shape[1] / k)))


def launch_of(stored: Mapping[str, Any]) -> Launch:
    """A launch as files have it: {"kind": "gemv", "rows": 2, "columns": 256, "warps": 1}."""
    fields = dict(stored)
    return KINDS[fields.pop("kind")](**fields)


def stored_form(launch: Launch) -> dict[str, Any]:
    """The same the other way round."""
    kind = next(name for name, kind in KINDS.items() if type(launch) is kind)
    return {"kind": kind, **launch._asdict()}


class Unmeasured:
    """For a device of which nothing is known: 16 weights per thread in flight, as nearly all that was measured has."""

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
    """The table for a GPU; for a CPU, where Triton interprets, the one of an unmeasured device."""
    if device.type != "cuda":
        return Unmeasured()
    return matching(torch.cuda.get_device_name(device), capability(device))


def matching(name: str, able: Capability) -> LaunchTable:
    """The file of this device or its like, or else `Unmeasured`."""
    return of_device(stored_tables(), name, able) or Unmeasured()


def of_device(tables: Iterable[Stored], name: str, able: Capability) -> Stored | None:
    """The table of this device, or of the first one (by file name) with its capability."""
    tables = list(tables)
    same = [table for table in tables if table.device == name]
    alike = [table for table in tables if table.capability == able]
    return next(iter(same + alike), None)


@cache
def stored_tables() -> tuple[Measured, ...]:
    found = sorted(files("gradus.kernels.linear").joinpath("measured").iterdir(), key=lambda file: file.name)
    return tuple(Measured.read(file.read_text(encoding="utf-8")) for file in found if file.name.endswith(".json"))
