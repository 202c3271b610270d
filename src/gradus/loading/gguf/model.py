"""A GGUF file's tensors by their Hugging Face names, with the changes of llama.cpp's conversion undone.

Three changes matter, and missing any one of them gives fluent nonsense: Llama's q and k rows are interleaved for
another layout of rotary positions, Gemma 3's norm scales already contain the 1 that the model adds, and GPT-2's
matrices are transposed. Only the first change is llama.cpp's own: the other two turn a tensor into the form that the
model computes with, as the model's table of weights says.
"""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from gradus.errors import CheckpointError
from gradus.loading.gguf.architectures import ARCHITECTURES, architecture
from gradus.loading.gguf.experts import layout_of, names_in
from gradus.loading.gguf.file import PLAIN, GGUFFile, Type
from gradus.loading.gguf.metadata import Metadata
from gradus.loading.gguf.rotary import DESCRIBING
from gradus.loading.quoting import quoted
from gradus.models.create import model_class
from gradus.models.source import OnePlus, Source, Stored, Transposed, tensors_of

CONVERTED = (OnePlus, Transposed)
"""The forms that llama.cpp's conversion changes into what the model computes with. It leaves all others alone."""


class GGUFTensors:
    """The tensors under their Hugging Face names: a TensorSource.

    layout: where the file's stacks of experts belong, which keep llama.cpp's names.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._architecture = ARCHITECTURES[architecture(file)]
        self.layout: Mapping[str, Source] = layout_of(file.tensors)
        table = model_class(self._architecture.families[0]).weights
        tensors = [stored for source in table.values() for stored in tensors_of(source)]
        self._changes = {stored.name: stored for stored in tensors if isinstance(stored, CONVERTED)}
        self._own_names = names_in(self.layout)
        drafting = _drafting(file)
        read = (name for name in file.tensors if name not in DESCRIBING and block_of(name) not in drafting)
        self._stored = {self._hugging_face_name(name): name for name in read}

    def names(self) -> Iterable[str]:
        return self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        return self._change(name).file_shape(self._file.tensors[self._stored[name]].shape)

    def read(self, name: str) -> Tensor:
        stored = self._stored[name]
        value = self._in_order(stored, self._file.read(stored))
        return self._change(name).restore(value).contiguous()

    def packing(self, name: str) -> Type | None:
        """The quantization type of a matrix or a stack; None if it is plain, a vector, or stored transposed."""
        entry = self._file.tensors[self._stored[name]]
        as_it_is = type(self._change(name)) is Stored
        return None if entry.type in PLAIN or len(entry.shape) < 2 or not as_it_is else entry.type

    def blocks(self, name: str) -> Tensor:
        """A quantized matrix as stored (see `GGUFFile.blocks`). Its rows are in Hugging Face's order: if the file has
        another, they are a copy."""
        stored = self._stored[name]
        found = self._file.blocks(stored)
        if not self._is_interleaved(stored):
            return found
        found = self._in_order(stored, found)
        self._file.forget(stored)
        return found

    def _in_order(self, stored: str, value: Tensor) -> Tensor:
        return uninterleave(value, self._heads(stored)) if self._is_interleaved(stored) else value

    def _is_interleaved(self, stored: str) -> bool:
        return self._architecture.interleaved and re.search(r"\.attn_[qk]\.", stored) is not None

    def where(self, name: str) -> str:
        return self._file.path.name

    def _hugging_face_name(self, stored: str) -> str:
        names = self._architecture.names
        if re.sub(r"^blk\.\d{1,4}\.", "blk.{}.", stored) in self._own_names:
            return stored
        if stored in names:
            return names[stored]
        block = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias|scale)", stored)
        if block and (alone := f"{block[2]}.{block[3]}") in names:
            return names[alone].format(int(block[1]))
        if block and block[2] in names:
            return f"{names[block[2]].format(int(block[1]))}.{block[3]}"
        return stored  # unknown: assigning the weights will report it under this name

    def _change(self, name: str) -> Stored:
        """The form of this tensor in a Hugging Face checkpoint; llama.cpp stores the form that the model computes
        with."""
        return self._changes.get(re.sub(r"\.\d+\.", ".{}.", name, count=1), Stored(name))

    def _heads(self, stored: str) -> int:
        reader = Metadata(self._file, architecture(self._file))
        heads = reader.integer("attention.head_count")
        heads = heads if ".attn_q." in stored else reader.integer("attention.head_count_kv", heads)
        rows = self._file.tensors[stored].shape[0]
        if rows % (2 * heads):
            raise CheckpointError(
                f"{self._file.path.name}: tensor {quoted(stored)} has {rows} rows, not a multiple of 2 x {heads} heads"
            )
        return heads


def block_of(stored: str) -> int | None:
    """The number in a tensor's name: of its layer."""
    found = re.match(r"blk\.(\d{1,4})\.", stored)
    return int(found[1]) if found else None


def _drafting(file: GGUFFile) -> range:
    """The last layers, which draft tokens and compute no hidden states (GLM)."""
    read = Metadata(file, architecture(file))
    return range(read.layers() - read.integer("nextn_predict_layers", 0), read.layers())


def uninterleave(value: Tensor, heads: int) -> Tensor:
    """Reorder a head's rows to 0, 2, 4, …, 1, 3, 5, …: rotary partners move from adjacent rows to half a head apart."""
    return value.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(value.shape)
