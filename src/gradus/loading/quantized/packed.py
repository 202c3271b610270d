"""Rows of a matrix that a checkpoint has quantized already."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradus.quantization.fp8 import BLOCK, Fp8BlockLinear
from gradus.quantization.linear import QuantizedLinear
from gradus.quantization.parts import SideBySide
from gradus.quantization.schemes import ORDERED


@dataclass(frozen=True)
class Packed:
    """One matrix of a checkpoint. scheme: a name in STORED. parts: the arguments of `store` in its class, after the
    row."""

    scheme: str
    parts: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def reordered(self, order: Sequence[int] | Tensor) -> "Packed":
        """The matrix whose row i is row order[i] of this one. Raises ValueError if rows with one scale would be torn
        apart."""
        rows = torch.as_tensor(order)
        if self.scheme == "fp8-block":
            if not torch.equal(rows // BLOCK, torch.arange(len(rows)) // BLOCK):
                raise ValueError(f"is in blocks of {BLOCK} rows, and rows of several blocks have to change places")
            return Packed(self.scheme, (_taken(self.parts[0], rows), self.parts[1]))
        return Packed(self.scheme, (*(_taken(part, rows) for part in self._by_row), *self.parts[len(self._by_row) :]))

    @property
    def _by_row(self) -> tuple[Tensor, ...]:
        """The parts that have a row for each of the matrix's: an order has columns."""
        return self.parts[: len(self.parts) - int(self.scheme.endswith(ORDERED))]

    def _rows(self, first: int, end: int) -> "Packed":
        """Some rows. Raises ValueError where rows share scales."""
        if (first, end) == (0, len(self.parts[0])):
            return self
        if self.scheme == "fp8-block":
            raise ValueError(f"is in blocks of {BLOCK} rows, and some of these belong to two matrices")
        cut = (part[first:end] for part in self._by_row)
        return Packed(self.scheme, (*cut, *self.parts[len(self._by_row) :]))

    def into(self, module: nn.Module, start: int) -> None:
        """Store as rows start, start + 1, … of a matrix that was made for this scheme.

        Raises ValueError if blocks of rows with one scale belong to two of the matrices that are one here.
        """
        if isinstance(module, SideBySide):
            for part, first, end, at in module.shares(start, start + len(self.parts[0])):
                self._rows(at, at + end - first).into(part, first)
            return
        assert isinstance(module, QuantizedLinear), f"{type(module).__name__} is not made for {self.scheme}"
        if isinstance(module, Fp8BlockLinear):
            found = module.block_of_row[start : start + len(self.parts[0])]
            if not torch.equal((found - found[0]).cpu(), torch.arange(len(found)) // BLOCK):
                raise ValueError(f"is in blocks of {BLOCK} rows, which some of its {module.out_features} rows share")
        module.store(start, *self.parts)


def _taken(part: Tensor, rows: Tensor) -> Tensor:
    """Index the rows of any type: torch has no such operation on float8."""
    return part.view(torch.uint8)[rows].view(part.dtype) if part.itemsize == 1 else part[rows]
