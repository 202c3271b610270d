"""The safetensors file format, in one file or in shards: a header that is checked, and tensors read one at a time.

    header length u64 · header JSON {name: {"dtype", "shape", "data_offsets": [begin, end]}} · the tensors' bytes

The `safetensors` package reads the tensors. We read the header first, because its numbers are untrusted and its
mistakes deserve a line that names the file, the tensor, the expected value, and the value found.
"""

import re
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import safetensors
from torch import Tensor

from gradus.errors import CheckpointError
from gradus.loading.json_file import read_json, read_object
from gradus.loading.quoting import quoted

INDEX = "model.safetensors.index.json"
LARGEST_HEADER = 100_000_000  # bytes, the format's own limit
MOST_DIMENSIONS = 8

READ = (
    "F16", "BF16", "F32", "F64",
    "F8_E4M3", "I8", "I32", "I64",  # parts of quantized matrices
    "BOOL", "U8",  # masks
)  # fmt: skip
BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32},
    **{"I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}


class SafetensorsFolder:
    """The tensors of a folder's safetensors file or files: a TensorSource.

    Raises CheckpointError for any file that contradicts its header or the index.
    """

    def __init__(self, folder: Path) -> None:
        files = _files(folder)
        self._headers = {path: read_header(path) for path in files}
        self._file_of = {name: path for path, header in self._headers.items() for name in header}
        if (folder / INDEX).is_file() and not (folder / "model.safetensors").is_file():
            self._check_index(folder / INDEX)
        self._open: dict[Path, Any] = {}
        self.size_bytes = sum(path.stat().st_size for path in files)

    def leave_out(self, names: Iterable[str]) -> int:
        """Forget tensors that nothing will read. Returns their bytes, which `size_bytes` no longer counts."""
        before = self.size_bytes
        for name in names:
            begin, end = self._headers[self._file_of.pop(name)][name]["data_offsets"]
            self.size_bytes -= end - begin
        return before - self.size_bytes

    def names(self) -> Iterable[str]:
        return self._file_of

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._headers[self._file_of[name]][name]["shape"])

    def read(self, name: str) -> Tensor:
        path, kind = self._file_of[name], self.kind(name)
        if kind not in READ:
            raise CheckpointError(
                f"{path.name}: tensor {quoted(name)} is stored as {kind}, expected one of {', '.join(READ)}"
            )
        try:
            if path not in self._open:
                self._open[path] = safetensors.safe_open(path, framework="pt", device="cpu")
            return self._open[path].get_tensor(name)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path.name}: tensor {quoted(name)} cannot be read: {error}") from error

    def kind(self, name: str) -> str:
        """A tensor's stored type, in the format's spelling."""
        return str(self._headers[self._file_of[name]][name]["dtype"])

    def where(self, name: str) -> str:
        return self._file_of[name].name

    def _check_index(self, index: Path) -> None:
        """Check that every tensor is in the file that the index names, and in no other."""
        weight_map = read_object(index)["weight_map"]
        seen: dict[str, Path] = {}
        for path, header in self._headers.items():
            for name in header:
                if name in seen:
                    raise CheckpointError(f"{path.name}: tensor {quoted(name)} is also in {seen[name].name}")
                if weight_map.get(name) != path.name:
                    said = f"in {quoted(weight_map[name])}" if name in weight_map else "nowhere"
                    raise CheckpointError(
                        f"{path.name}: holds tensor {quoted(name)}, which {index.name} says is {said}"
                    )
                seen[name] = path
        for name, file in weight_map.items():
            if name not in seen:
                raise CheckpointError(f"{file}: lacks tensor {quoted(name)}, which {index.name} says is in it")


def read_header(path: Path) -> dict[str, Any]:
    """Read the tensors' descriptions by name, and check all of them against the file's size."""
    label = path.name
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            header_size = int.from_bytes(file.read(8), "little")
            if size < 8 or header_size > size - 8:
                _refuse(label, f"truncated, or not safetensors: a header of {header_size} bytes in a file of {size}")
            if header_size > LARGEST_HEADER:
                _refuse(label, f"header of {header_size} bytes, at most {LARGEST_HEADER} are allowed")
            text = file.read(header_size)
    except OSError as error:
        _refuse(label, f"cannot be read: {error.strerror or error}")
    header = read_json(text, f"{label}: header")
    if not isinstance(header, dict):
        _refuse(label, "the header must be a JSON object")
    header.pop("__metadata__", None)
    begin, data_size = 0, size - 8 - header_size
    for name, entry in sorted(header.items(), key=lambda item: _claimed(item[1])):
        begin = _check_entry(label, name, entry, begin)
    if begin != data_size:
        _refuse(label, f"the tensors end at byte {begin} of {data_size} (truncated, or there is more than tensors)")
    return header


def _check_entry(label: str, name: str, entry: Any, begin: int) -> int:
    """A tensor must begin where the one before it ended; returns where it ends."""
    what = f"tensor {quoted(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        _refuse(label, f"{what} must have dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in BITS:
        _refuse(label, f"{what} has type {quoted(kind)}, which does not exist")
    if not _is_counts(shape) or len(shape) > MOST_DIMENSIONS:
        _refuse(label, f"{what} must have a shape of at most {MOST_DIMENSIONS} sizes, got {quoted(shape)}")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] != begin:
        _refuse(label, f"{what} must begin at byte {begin}, where the one before ends, got {quoted(offsets)}")
    expected = -(-prod(shape) * BITS[kind] // 8)
    if offsets[1] - begin != expected:
        _refuse(label, f"{what} of {kind} {tuple(shape)} needs {expected} bytes, its offsets give {offsets[1] - begin}")
    return offsets[1]


def _claimed(entry: Any) -> tuple[int, int]:
    """Where an entry says that it lies, for sorting; malformed ones come first, and are refused first."""
    offsets: Any = entry.get("data_offsets") if isinstance(entry, dict) else None
    return (offsets[0], offsets[1]) if _is_counts(offsets) and len(offsets) == 2 else (-1, -1)


def _refuse(label: str, problem: str) -> NoReturn:
    raise CheckpointError(f"{label}: {problem}")


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _files(folder: Path) -> list[Path]:
    """List the files: model.safetensors alone, or the shards that the index names."""
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file():
        return [single]
    if not index.is_file():
        _explain_absence(folder)
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index.name}: weight_map must be an object of tensor names and files")
    names = list(weight_map.values())
    for name in names:
        # a plain name in this folder: an index must not make us open any other file
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+\.safetensors", name) or name.startswith("."):
            raise CheckpointError(f"{index.name}: {quoted(name)} is not the name of a safetensors file beside it")
    files = [folder / name for name in dict.fromkeys(names)]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise CheckpointError(f"{folder}: shard {missing[0]} is missing ({len(missing)} of {len(files)} are)")
    return files


def _explain_absence(folder: Path) -> NoReturn:
    pickled = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind))
    if pickled:
        raise CheckpointError(
            f"{folder}: has {pickled[0]} and no safetensors; pickled weights can run code when they are opened, so "
            "Gradus never does: convert them where you trust them, with transformers' save_pretrained"
        )
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        raise CheckpointError(f"{folder}: has no model.safetensors; to load {ggufs[0]}, give the path of that file")
    raise CheckpointError(f"{folder}: has neither model.safetensors nor {INDEX}")
