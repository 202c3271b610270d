"""Rows of a matrix that a checkpoint has quantized already."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from gradus.models.layers import Embedding
from gradus.quantization.linear import QuantizedLinear
from gradus.quantization.parts import SideBySide


@dataclass(frozen=True)
class Packed:
    """One matrix of a checkpoint. scheme: a name in STORED. parts: the arguments of its class's `store`, after the row.

    wide: reads the matrix as floats, if it may also be a lookup table (a tied embedding).
    """

    scheme: str
    parts: tuple[Tensor, ...]
    wide: Callable[[], Tensor] | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def into(self, module: nn.Module, start: int) -> None:
        """Store as rows start, start + 1, … of a matrix that was made for this scheme."""
        if isinstance(module, SideBySide):
            module, start = module.part_at(start)
        if isinstance(module, Embedding) and self.wide is not None:
            module.weight[start : start + len(self.parts[0])] = self.wide()
            return
        assert isinstance(module, QuantizedLinear), f"{type(module).__name__} is not made for {self.scheme}"
        module.store(start, *self.parts)
