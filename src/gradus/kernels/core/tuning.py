"""Launches measured on a device: the fastest for each product, one JSON file per device and kind of product.

A file names the device, its compute capability and the numbers of rows that were measured. Each matrix [n, k] has one
launch for each number, with its kind and its fields by name: {"kind": "gemv", "rows": 2, …}; or null where a library
was as fast. A matrix that was never measured takes the choice of the nearest one: time depends on how many
programs N gives and how long each runs over K, and both change it by ratios, so near means a small log-ratio.

A device that was never measured takes the file of another with its compute capability, whose tiles fit it. Choices
depend on the device's name and the product's shape alone, so all ranks of a model make the same.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple, Self

import torch

from gradus.device.capability import Capability, capability, name_of

Shape = tuple[int, int]  # [n, k]
Launches = dict[Shape, tuple[Any, ...]]  # one per number of rows, or of the first ones

KINDS: dict[str, type] = {}
"""Launches by the names that files give them. Each room adds its own."""


@dataclass(frozen=True)
class Measured:
    """A device's file, of the folder `measured` in `package`. Subclass for a package.

    rows: numbers of rows that were measured, ascending; others take the next of them. launches: by scheme; or of the
    product alone ("launches") and with something fused in ("fused").
    """

    package: ClassVar[str]

    device: str
    capability: Capability
    rows: tuple[int, ...]
    launches: dict[str, Launches]

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        if "schemes" in stored:
            found = {scheme: launches_of(matrices, "launches") for scheme, matrices in stored["schemes"].items()}
        else:
            found = {column: launches_of(stored["matrices"], column) for column in ("launches", "fused")}
        return cls(stored["device"], Capability(*stored["capability"]), tuple(stored["rows"]), found)

    @classmethod
    def files(cls) -> list[Self]:
        """Read all files, in the order of their names."""
        found = sorted(files(cls.package).joinpath("measured").iterdir(), key=lambda file: file.name)
        return [cls.read(json.loads(each.read_text(encoding="utf-8"))) for each in found if each.name.endswith(".json")]

    @classmethod
    def matching(cls, name: str, able: Capability) -> Self | None:
        """Return the table of this device, or of the first one (by file name) with its capability."""
        tables = cls.files()
        same = [table for table in tables if table.device == name]
        alike = [table for table in tables if table.capability == able]
        return next(iter(same + alike), None)

    @classmethod
    def of(cls, device: torch.device) -> Self | None:
        """Return a GPU's table; none of a CPU, where Triton interprets."""
        if device.type != "cuda":
            return None
        return cls.matching(name_of(device), capability(device))

    def nearest(self, use: str, m: int, n: int, k: int, among: Iterable[Shape] | None = None) -> Any:
        """Return the launch for m rows of the nearest measured matrix; None for the library, and if there is none.

        among: the matrices to choose from; None: all that were measured with that many rows.
        """
        launches, place = self.launches[use], bisect_left(self.rows, m)
        shapes = [shape for shape in among or launches if m > 0 and place < len(launches[shape])]
        if not shapes:
            return None
        return launches[min(shapes, key=lambda shape: abs(math.log(shape[0] / n)) + abs(math.log(shape[1] / k)))][place]


def launches_of(matrices: list[dict[str, Any]], column: str) -> Launches:
    """Read a column of launches, by matrix."""
    return {(each["n"], each["k"]): tuple(one and launch_of(one) for one in each[column]) for each in matrices}


def launch_of(stored: Mapping[str, Any]) -> Any:
    """Read a launch: {"kind": "gemv", "rows": 2, "columns": 256, "warps": 1}."""
    fields = dict(stored)
    return KINDS[fields.pop("kind")](**fields)


def stored_form(launch: NamedTuple) -> dict[str, Any]:
    """Return what `launch_of` reads."""
    kind = next(name for name, kind in KINDS.items() if type(launch) is kind)
    return {"kind": kind, **launch._asdict()}
