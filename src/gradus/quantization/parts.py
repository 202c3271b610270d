"""Matrices side by side that read the same input and have different schemes: q and k in 8 bits, v in 16."""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradus.models.layers import Linear, LinearFactory, MatrixId


class Share(NamedTuple):
    """Rows first to end of a part, which are those from `at` on of the rows that were asked for."""

    part: Linear
    first: int
    end: int
    at: int


class SideBySide(Linear):
    """A fused Linear computed part by part: one product for each of out_features, or for each of `widths`."""

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
        widths: Sequence[int] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.matrix_id = matrix_id
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        self.parts = nn.ModuleList(
            make(matrix_id, in_features, (width,), bias, dtype, device)
            for make, width in zip(makers, widths or out_features, strict=True)
        )

    def assign(self, name: str, start: int, value: Tensor) -> None:
        for part, first, end, at in self.shares(start, start + len(value)):
            part.assign(name, first, value[at : at + end - first])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x).to(x.dtype) for part in self.parts], 1)

    def part(self, first: int, end: int) -> Linear:
        """Rows of one part are a matrix as that part is."""
        found = [share.part.part(share.first, share.end) for share in self.shares(first, end)]
        if len(found) == 1:
            return found[0]
        several = copy(self)
        several.out_features, several._modules = (end - first,), {"parts": nn.ModuleList(found)}
        vars(several).update(several._modules)
        return several

    def shares(self, start: int, end: int) -> Iterator[Share]:
        """Divide rows start to end among the parts that have them."""
        first = 0
        for part in self.parts:
            assert isinstance(part, Linear)
            rows = sum(part.out_features)
            low, high = max(start, first), min(end, first + rows)
            if low < high:
                yield Share(part, low - first, high - first, low - start)
            first += rows
