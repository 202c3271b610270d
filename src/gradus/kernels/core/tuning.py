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
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from gradus.device.capability import Capability, capability

Shape = tuple[int, int]  # [n, k]
Launches = dict[Shape, tuple[Any, ...]]  # one per number of rows, or of the first ones


class Table(Protocol):
    """The launches measured on a device."""

    @property
    def device(self) -> str: ...

    @property
    def capability(self) -> Capability: ...


Stored = TypeVar("Stored", bound=Table)


def tables_of(package: str, read: Callable[[dict[str, Any]], Stored]) -> tuple[Stored, ...]:
    """Read the files of a package's folder `measured`, in the order of their names."""
    found = sorted(files(package).joinpath("measured").iterdir(), key=lambda file: file.name)
    return tuple(read(json.loads(file.read_text(encoding="utf-8"))) for file in found if file.name.endswith(".json"))


def table_of(device: torch.device, tables: Iterable[Stored]) -> Stored | None:
    """Return a GPU's table; none of a CPU, where Triton interprets."""
    if device.type != "cuda":
        return None
    return matching(tables, torch.cuda.get_device_name(device), capability(device))


def matching(tables: Iterable[Stored], name: str, able: Capability) -> Stored | None:
    """Return the table of this device, or of the first one (by file name) with its capability."""
    tables = list(tables)
    same = [table for table in tables if table.device == name]
    alike = [table for table in tables if table.capability == able]
    return next(iter(same + alike), None)


def nearest(shapes: Iterable[Shape], n: int, k: int) -> Shape:
    """Return the shape with the smallest log-ratio to [n, k]."""
    return min(shapes, key=lambda shape: abs(math.log(shape[0] / n)) + abs(math.log(shape[1] / k)))


def launches_of(matrices: list[dict[str, Any]], column: str, kinds: Mapping[str, type]) -> Launches:
    """Read a column of launches, by matrix."""
    return {
        (matrix["n"], matrix["k"]): tuple(each and launch_of(each, kinds) for each in matrix[column])
        for matrix in matrices
    }


def launch_of(stored: Mapping[str, Any], kinds: Mapping[str, type]) -> Any:
    """Read a launch: {"kind": "gemv", "rows": 2, "columns": 256, "warps": 1}."""
    fields = dict(stored)
    return kinds[fields.pop("kind")](**fields)


def stored_form(launch: NamedTuple, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return what `launch_of` reads."""
    kind = next(name for name, kind in kinds.items() if type(launch) is kind)
    return {"kind": kind, **launch._asdict()}
