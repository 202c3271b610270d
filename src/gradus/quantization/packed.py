"""Rows of a matrix that a checkpoint has quantized already."""

from dataclasses import dataclass

from torch import Tensor, nn

from gradus.quantization.linear import QuantizedLinear
from gradus.quantization.parts import SideBySide


@dataclass(frozen=True)
class Packed:
    """One matrix of a checkpoint. scheme: a name in STORED. parts: the arguments of `store` in its class, after the
    row."""

    scheme: str
    parts: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def into(self, module: nn.Module, start: int) -> None:
        """Store as rows start, start + 1, … of a matrix that was made for this scheme."""
        if isinstance(module, SideBySide):
            module, start = module.part_at(start)
        assert isinstance(module, QuantizedLinear), f"{type(module).__name__} is not made for {self.scheme}"
        module.store(start, *self.parts)
