"""A GGUF file whose matrices stay packed as they are, where there is a scheme for how they are.

    Q4_0, Q4_1   int4, in groups of 32: a scale and an offset each
    Q8_0         int8-g32: a scale per group, activations as they are

All else becomes floats, as ever: other types, norms, and the table of an embedding, which is read by row. An embedding
that is also the output head is then there twice, packed as the head and as floats to look up.
"""

from collections.abc import Callable, Iterable

from torch import Tensor

from gradus.errors import CheckpointError
from gradus.loading import packed_formats as formats
from gradus.loading.gguf import Type
from gradus.loading.gguf_model import GGUFTensors
from gradus.loading.packed_formats import NotReadable
from gradus.loading.quoting import quoted
from gradus.models.config import ModelConfig
from gradus.models.create import model_class
from gradus.quantization.mix import HEAD, Mix, names_of, places
from gradus.quantization.packed import Packed

KEPT: dict[Type, tuple[str, Callable[[Tensor], Packed]]] = {
    Type.Q8_0: ("int8-g32", formats.q8_0),
    Type.Q4_0: ("int4-g32", formats.q4_0),
    Type.Q4_1: ("int4-g32", formats.q4_1),
}
"""The scheme of a type, and what makes a matrix of its blocks."""


class PackedGGUF:
    """A TensorSource over a GGUF file's. mix: which matrices are packed, and how; of none, it has no rules."""

    def __init__(self, tensors: GGUFTensors, config: ModelConfig) -> None:
        self._tensors = tensors
        matrices = {name for place in places(config) for name in names_of(place, config)}
        embedding = model_class(config.family).weights["embedding.weight"]
        self._kept: dict[str, Type] = {}
        rules = []
        for name in tensors.names():
            matrix = HEAD if config.tie_embeddings and name == embedding else name.removesuffix(".weight")
            kind = tensors.packing(name)
            if matrix in matrices and kind in KEPT:
                self._kept[name] = kind
                rules.append((matrix, KEPT[kind][0]))
        self.mix = Mix(" ".join(["gguf", *sorted({kind.name for kind in self._kept.values()})]), tuple(rules))

    def names(self) -> Iterable[str]:
        return self._tensors.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(name)

    def where(self, name: str) -> str:
        return self._tensors.where(name)

    def read(self, name: str) -> Tensor | Packed:
        """Raises CheckpointError for scales that are not finite."""
        if name not in self._kept:
            return self._tensors.read(name)
        _, make = KEPT[self._kept[name]]
        try:
            packed = make(self._tensors.blocks(name))
        except NotReadable as error:
            raise CheckpointError(f"{self.where(name)}: {quoted(name)} {error}") from error
        return Packed(packed.scheme, packed.parts, wide=lambda: self._tensors.read(name))
