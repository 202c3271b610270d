"""The GGUF file format, as llama.cpp writes it: key-value metadata, a table of tensors, then their bytes.

    magic "GGUF" · version u32 · tensor count u64 · pair count u64
    pairs:    key string · type u32 · value             (string: length u64, UTF-8; array: type u32, count u64, items)
    tensors:  name string · dimensions u32 · sizes u64 each, fastest first · type u32 · offset u64
    padding to the alignment, then the tensors at their offsets

We have our own parser because the `gguf` package's reader makes an array object of every metadata item, which takes
seconds for a large vocabulary, and trusts the counts of a damaged file. Here every length is checked against the rest
of the file before it is used. The package dequantizes, called on pieces that fit a core's cache. That is quick enough
to do at every load, so converted weights, which are four to eight times as large, are not stored.
"""

import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from gradus.errors import CheckpointError
from gradus.loading.gguf.parts import parts_after
from gradus.loading.quoting import quoted

if TYPE_CHECKING:  # metadata are read without torch
    from torch import Tensor

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MOST_DIMENSIONS = 4
LARGEST_NAME = 1 << 16  # bytes of a key or a tensor's name
DEEPEST_ARRAY = 4
BLOCKS_AT_ONCE = 2048  # dequantized together: they fit a core's cache, and gguf's own 16 rows would take too many calls

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

Type = gguf.GGMLQuantizationType
PLAIN = {Type.F32: "float32", Type.F16: "float16", Type.BF16: "bfloat16"}  # torch's names
QUANTIZED = {
    *(Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4),
    *(Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS),
}


@dataclass(frozen=True)
class TensorEntry:
    """One line of the table. shape: rows first, as in torch (the file reverses it); start: byte in the file."""

    name: str
    shape: tuple[int, ...]
    type: Type
    start: int
    size_bytes: int


class GGUFFile:
    """An open GGUF file: `metadata` by key, `tensors` by name, and `read` for one tensor's values.

    A model may be split into several files: the first one, which has the metadata, opens all of them.

    size_bytes: of all files. Raises CheckpointError for anything that is not a complete, consistent file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata, self.tensors, data = _open(path)
        self.size_bytes = len(data)
        self._bytes = dict.fromkeys(self.tensors, data)  # the file of each tensor
        for part in parts_after(path, self.metadata):
            _, tensors, data = _open(part)
            if twice := self.tensors.keys() & tensors.keys():
                raise CheckpointError(f"{part.name}: tensor {quoted(min(twice))} is in an earlier part too")
            self.tensors |= tensors
            self.size_bytes += len(data)
            self._bytes |= dict.fromkeys(tensors, data)
        whole = self.metadata.get("split.tensors.count", len(self.tensors))
        if whole != len(self.tensors):
            raise CheckpointError(f"{path.name}: its parts hold {len(self.tensors)} tensors, not {quoted(whole)}")

    def drop_vocabulary(self) -> None:
        """Free the lists that describe a vocabulary, once its tokenizer is made: for 262,144 tokens, 35 MB."""
        for key in [key for key, value in self.metadata.items() if isinstance(value, list)]:
            if key.startswith("tokenizer."):
                del self.metadata[key]

    def blocks(self, name: str) -> "Tensor":
        """A quantized tensor as stored, uint8 [rows, bytes per row]: a view of the file, which stays mapped with it."""
        import torch

        entry = self.tensors[name]
        return torch.from_numpy(self._raw(entry)).view(prod(entry.shape[:-1]), -1)

    def forget(self, name: str) -> None:
        """Give the tensor's pages back, which a copy of its values has brought into this process's memory.

        The file remains mapped: a page that is read again comes back.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            entry = self.tensors[name]
            first = entry.start // mmap.PAGESIZE * mmap.PAGESIZE
            self._bytes[name].madvise(mmap.MADV_DONTNEED, first, entry.start + entry.size_bytes - first)

    def read(self, name: str) -> "Tensor":
        """Read one tensor's values, a copy: float32 if it is quantized, else in its own type."""
        import torch

        entry = self.tensors[name]
        raw = self._raw(entry)
        if entry.type in PLAIN:
            copied = torch.from_numpy(raw.copy())  # aligned
            found = copied.view(getattr(torch, PLAIN[entry.type])).reshape(entry.shape)
        else:
            found = torch.from_numpy(_dequantize(raw, entry.type)).reshape(entry.shape)
        self.forget(name)
        return found

    def _raw(self, entry: TensorEntry) -> NDArray[np.uint8]:
        return np.asarray(_Mapped(self._bytes[entry.name], entry.start, entry.size_bytes))


class _Mapped:
    """Bytes of a mapped file, as an array that claims that it may be written: torch takes no other.

    Nothing writes to it. The mapping is read-only, so the system would end the process.
    """

    def __init__(self, data: mmap.mmap, start: int, size: int) -> None:
        self._data = data  # the array keeps this object, and so the mapping
        first = np.frombuffer(data, np.uint8).ctypes.data
        self.__array_interface__ = {"data": (first + start, False), "shape": (size,), "typestr": "|u1", "version": 3}


def _open(path: Path) -> tuple[dict[str, Any], dict[str, TensorEntry], mmap.mmap]:
    """Map one file, and read its metadata and its table of tensors."""
    try:
        with open(path, "rb") as file:
            # read-only and shared: a private mapping would be refused if the file is larger than the memory
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # raised by mmap
        raise CheckpointError(f"{path.name}: the file is empty") from None
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read: {error.strerror or error}") from error
    return *_Parser(data, path.name).parse(), data


class _Parser:
    """Reads from the front to the back; `at` is the next byte."""

    def __init__(self, data: mmap.mmap, label: str) -> None:
        self.data = data
        self.label = label
        self.at = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
        if self.take(4, "the magic number") != b"GGUF":
            self.refuse("not a GGUF file (it does not begin with the letters GGUF)")
        version = self.number("I", "the version")
        if version not in VERSIONS:
            self.refuse(f"GGUF version {version} is not supported (versions {VERSIONS[0]} and {VERSIONS[-1]} are)")
        tensor_count = self.count("tensor", least_bytes=24)
        pair_count = self.count("metadata pair", least_bytes=13)
        metadata = dict(self.distinct([self.pair() for _ in range(pair_count)], "metadata key"))
        table = [self.tensor() for _ in range(tensor_count)]
        return metadata, dict(self.distinct(self.place(table, metadata), "tensor"))

    # -- metadata ------------------------------------------------------------------------------------------------------

    def pair(self) -> tuple[str, Any]:
        key = self.string("a metadata key", LARGEST_NAME)
        return key, self.value(self.number("I", f"the type of {quoted(key)}"), key, DEEPEST_ARRAY)

    def value(self, kind: int, key: str, depth: int) -> Any:
        if kind == STRING:
            return self.string(f"the text of {quoted(key)}")
        if kind in SCALARS:
            return self.number(SCALARS[kind], f"the value of {quoted(key)}")
        if kind == ARRAY and depth:
            return self.array(key, depth - 1)
        self.refuse(f"metadata {quoted(key)} has type {kind}, which does not exist")

    def array(self, key: str, depth: int) -> list[Any]:
        kind = self.number("I", f"the item type of {quoted(key)}")
        if kind in SCALARS:
            size = struct.calcsize(SCALARS[kind])
            count = self.count(f"item of {quoted(key)}", least_bytes=size)
            return list(
                struct.unpack(f"<{count}{SCALARS[kind]}", self.take(count * size, f"the items of {quoted(key)}"))
            )
        count = self.count(f"item of {quoted(key)}", least_bytes=8)
        if kind == STRING:
            return self.strings(count, f"an item of {quoted(key)}")
        return [self.value(kind, key, depth) for _ in range(count)]

    # -- tensors -------------------------------------------------------------------------------------------------------

    def tensor(self) -> tuple[str, tuple[int, ...], Type, int]:
        """Read a line of the table: name, shape, type and offset."""
        name = self.string("a tensor name", LARGEST_NAME)
        dimensions = self.number("I", f"the dimensions of {quoted(name)}")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            self.refuse(f"tensor {quoted(name)} has {dimensions} dimensions, expected 1 to {MOST_DIMENSIONS}")
        shape = tuple(self.number("Q", f"the shape of {quoted(name)}") for _ in range(dimensions))[::-1]
        kind, offset = (
            self.number("I", f"the type of {quoted(name)}"),
            self.number("Q", f"the offset of {quoted(name)}"),
        )
        try:
            return name, shape, Type(kind), offset
        except ValueError:
            self.refuse(f"tensor {quoted(name)} has type {kind}, which does not exist")

    def place(
        self, table: list[tuple[str, tuple[int, ...], Type, int]], metadata: dict[str, Any]
    ) -> list[tuple[str, TensorEntry]]:
        """Turn offsets into places in the file, and check that each tensor lies inside it and overlaps no other."""
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            self.refuse(f"general.alignment must be a power of two up to {1 << 20}, got {quoted(alignment)}")
        base = -(-self.at // alignment) * alignment
        entries = []
        for name, shape, kind, offset in table:
            size_bytes = self.size_bytes(name, shape, kind)
            if offset % alignment:
                self.refuse(f"tensor {quoted(name)} has offset {offset}, which is not a multiple of {alignment}")
            if base + offset + size_bytes > len(self.data):
                self.refuse(
                    f"tensor {quoted(name)} of shape {shape} needs {size_bytes} bytes from {base + offset} on, the "
                    f"file has {len(self.data)} (truncated?)"
                )
            entries.append((name, TensorEntry(name, shape, kind, base + offset, size_bytes)))
        in_order = sorted((entry for _, entry in entries), key=lambda entry: entry.start)
        for before, after in pairwise(in_order):
            if before.start + before.size_bytes > after.start:
                self.refuse(f"tensors {quoted(before.name)} and {quoted(after.name)} overlap")
        return entries

    def size_bytes(self, name: str, shape: tuple[int, ...], kind: Type) -> int:
        if kind not in QUANTIZED and kind not in PLAIN:
            supported = ", ".join(sorted(known.name for known in QUANTIZED | PLAIN.keys()))
            self.refuse(f"tensor {quoted(name)} is stored as {kind.name}, which is not supported ({supported} are)")
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if not all(shape) or shape[-1] % block:
            self.refuse(f"tensor {quoted(name)} of shape {shape}: rows of {kind.name} are multiples of {block} values")
        return prod(shape) // block * block_bytes

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def take(self, size: int, what: str) -> bytes:
        if size > len(self.data) - self.at:
            self.refuse(f"ends inside {what}: byte {self.at + size} of {len(self.data)} (truncated?)")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str, what: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(code), what))[0]

    def string(self, what: str, most_bytes: int | None = None) -> str:
        size = self.number("Q", what)
        if most_bytes is not None and size > most_bytes:
            self.refuse(f"{what} of {size} bytes, expected at most {most_bytes}")
        try:
            return self.take(size, what).decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"{what} is not UTF-8")

    def strings(self, count: int, what: str) -> list[str]:
        """Read `count` texts in one loop: a vocabulary has hundreds of thousands."""
        data, at, size_at, found = self.data, self.at, struct.Struct("<Q").unpack_from, []
        try:
            for _ in range(count):
                start = at + 8
                at = start + size_at(data, at)[0]
                found.append(data[start:at].decode("utf-8"))
        except (struct.error, UnicodeDecodeError):
            at = len(data) + 1
        if at > len(data):
            return [self.string(what) for _ in range(count)]  # refuses the first wrong one with a good message
        self.at = at
        return found

    def count(self, what: str, least_bytes: int) -> int:
        """Read the number of items that follow; refuse more than the rest of the file could hold."""
        count = self.number("Q", f"the number of {what}s")
        if count * least_bytes > len(self.data) - self.at:
            self.refuse(f"claims {count} {what}s, more than the file's {len(self.data)} bytes can hold")
        return count

    def distinct(self, pairs: list[tuple[str, Any]], what: str) -> list[tuple[str, Any]]:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                self.refuse(f"{what} {quoted(name)} occurs twice")
            seen.add(name)
        return pairs

    def refuse(self, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.label}: {problem}")


def _dequantize(raw: NDArray[np.uint8], kind: Type) -> NDArray[np.float32]:
    """Dequantize blocks. They are independent of each other, so many of them are passed as one long row."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = raw.reshape(-1, block_bytes)
    values = np.empty((len(blocks), block), dtype=np.float32)
    with np.errstate(all="ignore"):  # a damaged scale may overflow; NaN and infinity are refused later
        for start in range(0, len(blocks), BLOCKS_AT_ONCE):
            some = blocks[start : start + BLOCKS_AT_ONCE]
            values[start : start + len(some)] = dequantize(some.reshape(1, -1), kind).reshape(len(some), block)
    return values
