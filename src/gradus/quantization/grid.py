"""Groups of 4-bit integers with an integer zero point: the grid that files of quantized weights have.

    w ≈ scale (q - zero),  q and zero in 0 … 15

Zero is on the grid, so a weight of 0 stays 0. Scales are rounded to the type that a file keeps them in before anything
is rounded by them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MOST = 15


class Grid(NamedTuple):
    """scales, zeros: float32 [N, K / group]."""

    scales: Tensor
    zeros: Tensor

    @property
    def offsets(self) -> Tensor:
        return -self.zeros * self.scales

    def per_column(self, group: int) -> "Grid":
        """[N, K] each."""
        return Grid(*(each.repeat_interleave(group, 1) for each in self))


def spanning(weight: Tensor, group: int, dtype: torch.dtype, shrink: Tensor | float = 1.0) -> Grid:
    """The grid that spans each group of a float32 matrix [N, K], and zero.

    dtype: of scales in a file. shrink: [N, K / group] or a number; what lies beyond that share of the range is clipped.
    """
    groups = weight.unflatten(1, (-1, group))
    low, high = groups.amin(-1).clamp(max=0) * shrink, groups.amax(-1).clamp(min=0) * shrink
    scales = ((high - low) / MOST).to(dtype).float()
    scales = torch.where(scales > 0, scales, 1.0)  # a group of zeros
    return Grid(scales, (-low / scales).round().clamp(0, MOST))


def rounded(weight: Tensor, grid: Grid) -> Tensor:
    """Integers 0 … 15 as float32, in the weight's shape, with which the grid's must agree."""
    return (weight / grid.scales + grid.zeros).round().clamp(0, MOST)


def wide(values: Tensor, grid: Grid) -> Tensor:
    """What the integers stand for."""
    return (values - grid.zeros) * grid.scales


def nearest(weight: Tensor, group: int, dtype: torch.dtype, shrink: Tensor | float = 1.0) -> tuple[Tensor, Grid]:
    """Round a matrix [N, K] to the nearest points of its groups' grids: integers [N, K], and the grids."""
    grid = spanning(weight, group, dtype, shrink)
    return rounded(weight, grid.per_column(group)), grid


def output_error(difference: Tensor, gram: Tensor) -> Tensor:
    """Σ |x (W' - W)ᵀ|² over the activations whose Gram matrix Σ xᵀx [K, K] is given, per row of W: [N].

    difference: W' - W, [N, K].
    """
    return torch.einsum("nk,nk->n", difference @ gram, difference)
