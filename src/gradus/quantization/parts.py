"""Matrices side by side that read the same input and have different schemes: q and k in 8 bits, v in 16."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from gradus.models.layers import Linear, LinearFactory, MatrixId


class SideBySide(Linear):
    """A fused Linear computed part by part: one product for each of out_features."""

    def __init__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        makers: Sequence[LinearFactory],
    ) -> None:
        nn.Module.__init__(self)
        self.matrix_id = matrix_id
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        self.parts = nn.ModuleList(
            make(matrix_id, in_features, (width,), bias, dtype, device)
            for make, width in zip(makers, out_features, strict=True)
        )

    def assign(self, name: str, start: int, value: Tensor) -> None:
        for part, first, rows in self._rows():
            low, high = max(start, first), min(start + len(value), first + rows)
            if low < high:
                part.assign(name, low - first, value[low - start : high - start])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x).to(x.dtype) for part in self.parts], 1)

    def part(self, first: int, end: int) -> Linear:
        """Rows of one of the matrices: of one expert, never of two halves of a stack."""
        found, start = self.part_at(first)
        return found.part(start, start + end - first)

    def part_at(self, row: int) -> tuple[Linear, int]:
        """The part that has this row, and the row's index within it."""
        return next((part, row - first) for part, first, rows in self._rows() if first <= row < first + rows)

    def _rows(self) -> Iterator[tuple[Linear, int, int]]:
        first = 0
        for part, rows in zip(self.parts, self.out_features, strict=True):
            assert isinstance(part, Linear)
            yield part, first, rows
            first += rows
