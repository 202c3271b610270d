"""A matrix that is cut over the ranks: by its outputs, or by its inputs.

torch keeps a matrix as [out, in]. The names are older and come from y = x A, where A is [in, out]: "column-parallel"
cuts the outputs, and "row-parallel" the inputs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.models.layers import Linear
from phases.p12_parallelism.exchange import Exchange


def column_part(matrix: Tensor, widths: Sequence[int], part: int, parts: int) -> Tensor:
    """Keep a part's outputs: [out, in] → [out / parts, in], and [out] → [out / parts] for a bias.

    widths: of the matrices that lie fused in this one (gate and up, for instance). Each is cut by itself.
    """
    return torch.cat([each.chunk(parts)[part] for each in matrix.split(list(widths))])


def row_part(matrix: Tensor, part: int, parts: int) -> Tensor:
    """Keep what reads a part's inputs: [out, in] → [out, in / parts]."""
    return matrix.chunk(parts, dim=1)[part]


def all_reduce(exchange: Exchange, x: Tensor) -> Tensor:
    """Add the x of every rank of the stage, in float32, and return the sum on each of them.

    All add in the order of the ranks. So all get the same bits, and later draw the same tokens.
    """
    total, *others = exchange.gather(x).float()
    for other in others:
        total = total + other
    return total.to(x.dtype)


class ColumnParallel(Linear):
    """Some outputs of a product, from all inputs: nothing to exchange. [N, in] → [N, out / parts]."""


class RowParallel(Linear):
    """All outputs, from some inputs: each rank has a summand of the product. [N, in / parts] → [N, out]."""

    exchange: Exchange

    def forward(self, x: Tensor) -> Tensor:
        y = all_reduce(self.exchange, F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias
