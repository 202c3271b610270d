"""Groups of 4-bit integers with an integer zero point: the grid of quantized files.

    w ≈ scale (q - zero),  q and zero in 0 … 15

Zero is on the grid, so a weight of 0 stays 0. Scales are rounded to the file's type before weights are rounded by them.
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
        """Repeat scales and zeros for each column: [N, K] each."""
        return Grid(*(each.repeat_interleave(group, 1) for each in self))


def spanning(weight: Tensor, group: int, dtype: torch.dtype, shrink: Tensor | float = 1.0) -> Grid:
    """Make the grid that spans each group of a float32 matrix [N, K], and zero.

    dtype: of scales in a file. shrink: [N, K / group] or a number; weights outside this fraction of the range are
    clipped.
    """
    groups = weight.unflatten(1, (-1, group))
    low, high = groups.amin(-1).clamp(max=0) * shrink, groups.amax(-1).clamp(min=0) * shrink
    scales = ((high - low) / MOST).to(dtype).float()
    scales = torch.where(scales > 0, scales, 1.0)  # a group of zeros
    return Grid(scales, (-low / scales).round().clamp(0, MOST))


def rounded(weight: Tensor, grid: Grid) -> Tensor:
    """Round to integers 0 … 15 as float32, in the weight's shape, which must agree with the grid's."""
    return (weight / grid.scales + grid.zeros).round().clamp(0, MOST)


def wide(values: Tensor, grid: Grid) -> Tensor:
    """Convert integers back to weights."""
    return (values - grid.zeros) * grid.scales


def nearest(weight: Tensor, group: int, dtype: torch.dtype, shrink: Tensor | float = 1.0) -> tuple[Tensor, Grid]:
    """Round a matrix [N, K] to the nearest points of its groups' grids: integers [N, K], and the grids."""
    grid = spanning(weight, group, dtype, shrink)
    return rounded(weight, grid.per_column(group)), grid


def output_error(difference: Tensor, gram: Tensor) -> Tensor:
    """Compute Σ |x (W' - W)ᵀ|² per row of W, [N], over the activations with Gram matrix Σ xᵀx [K, K].

    difference: W' - W, [N, K].
    """
    return torch.einsum("nk,nk->n", difference @ gram, difference)
