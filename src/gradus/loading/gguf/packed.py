"""A GGUF file whose matrices stay in the bits that they are stored in, if the engine has a scheme for their type.

A matrix is then the file's own bytes, mapped: on a CPU nothing is copied, except the rows of queries and keys that
llama.cpp interleaves, or that Phi pairs in its own way. An embedding is looked up in its bits, and one that is also the
output head is kept once. Everything else becomes floats, as usual: other types, norms, and matrices that are stored
transposed.

Experts that no token chooses are never read: a file may be larger than the memory, whose pages the system drops and
reads again.
"""

from collections.abc import Iterable, Iterator

from torch import Tensor

from gradus.errors import CheckpointError
from gradus.loading.gguf.file import Type
from gradus.loading.gguf.model import GGUFTensors
from gradus.loading.quantized.packed import Packed
from gradus.loading.quoting import quoted
from gradus.models.config import ModelConfig
from gradus.models.create import model_class
from gradus.models.source import tensors_of
from gradus.quantization.gguf import FORMATS
from gradus.quantization.mix import HEAD, Mix, matrix_ids, names_of, table_name
from gradus.quantization.mxfp4 import NOT_A_NUMBER
from gradus.quantization.schemes import MXFP4

KEPT: dict[Type, str] = {kind: kind.name.lower() for kind in Type if kind.name.lower() in FORMATS}
"""A type's scheme."""


class PackedGGUF:
    """A TensorSource over a GGUF file's tensors. mix: the scheme of each packed matrix; no rules if none is packed."""

    def __init__(self, tensors: GGUFTensors, config: ModelConfig) -> None:
        self._tensors = tensors
        self.layout = tensors.layout
        table, matrices = table_name(config), {*_tables(config)}
        matrices |= {name for matrix_id in matrix_ids(config) for name in names_of(matrix_id, config, self.layout)}
        self._kept: dict[str, Type] = {}
        rules = []
        for name in tensors.names():
            matrix = name.removesuffix(".weight")
            kind = tensors.packing(name)
            if matrix in matrices and kind in KEPT:
                self._kept[name] = kind
                rules.append((HEAD if config.tie_embeddings and matrix == table else matrix, KEPT[kind]))
        label = " ".join(["gguf", *sorted({kind.name for kind in self._kept.values()})])
        self.mix = Mix(label, tuple(rules), layout=self.layout)

    def names(self) -> Iterable[str]:
        return self._tensors.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(name)

    def where(self, name: str) -> str:
        return self._tensors.where(name)

    def read(self, name: str) -> Tensor | Packed:
        """Read a tensor, packed if its type is kept. Raises CheckpointError for scales that are not finite.

        Stacks of experts are not looked at: that would read most of the file from the disk. Where an expert's scales
        are not finite, its results are not, and they end the sequence that chose it.
        """
        if name not in self._kept:
            return self._tensors.read(name)
        scheme, blocks = KEPT[self._kept[name]], self._tensors.blocks(name)
        form = FORMATS[scheme]
        if len(self.shape(name)) > 2:
            return Packed(scheme, (blocks,))
        one_by_one = blocks.view(-1, form.size)
        found = [(one_by_one[:, at + 1] & 0x7C) == 0x7C for at in form.scales]  # the exponent, all ones if not finite
        found += [one_by_one[:, 0] == NOT_A_NUMBER] if scheme == MXFP4 else []
        if any(bad.any() for bad in found):
            raise CheckpointError(f"{self.where(name)}: {quoted(name)} has scales that are not finite")
        return Packed(scheme, (blocks,))


def _tables(config: ModelConfig) -> Iterator[str]:
    """The checkpoint's names of the embeddings of tokens: a family may have another one, for its layers."""
    for path, source in model_class(config.family).weights.items():
        if f".{path}".endswith(".embedding.weight"):
            yield from (stored.name.removesuffix(".weight") for stored in tensors_of(source))
