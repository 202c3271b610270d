"""AWQ (Lin et al. 2023, arXiv 2306.00978): before rounding, enlarge the columns that meet large activations.

Rounding errs by at most half a step of the group, whatever the weight. Multiply a column by s and divide its
activations by s, which the operation before the matrix can do for free: the product is unchanged, but the column's
error shrinks to 1/s. The group's step grows only if the column was among its largest. So s should be large where
activations are large, but not too large: s = x̄^r / w̄^(1 - r), with the r of the smallest error. Then a range slightly
smaller than a group's may be better than all of it, so the largest weights are clipped where that reduces the error.

Errors are measured on the matrix's output, ΔW H ΔWᵀ with H = Σ xᵀx over calibration activations, which need not be
kept.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradus.quantization.grid import Grid, nearest, output_error, wide

Alike = Callable[[Tensor], Tensor]
"""[K] → [K]: averages over columns that must share a factor."""

RATIOS = 20
SHRINKS = 10  # steps of the search for a range, down to half of it


def column_factors(
    weight: Tensor, gram: Tensor, magnitude: Tensor, group: int, dtype: torch.dtype, alike: Alike = lambda each: each
) -> Tensor:
    """Find s, float32 [K], by which to multiply columns before rounding; ones if no others are better.

    weight: [N, K], all matrices that read the same activations. magnitude: the mean |x| of each column, [K]. alike:
    averages a figure over the columns that must share a factor.
    """
    share = weight.unflatten(1, (-1, group)).abs()
    share = (share / share.amax(-1, keepdim=True).clamp(min=1e-9)).flatten(1).mean(0)
    magnitude, share = alike(magnitude), alike(share)
    best, least = torch.ones_like(magnitude), _error(weight, gram, torch.ones_like(magnitude), group, dtype)
    for step in range(1, RATIOS):
        ratio = step / RATIOS
        factors = (magnitude.pow(ratio) / (share.pow(1 - ratio) + 1e-4)).clamp(min=1e-4)
        factors = factors / (factors.max() * factors.min()).sqrt()
        error = _error(weight, gram, factors, group, dtype)
        if error < least:
            best, least = factors, error
    return best


def _error(weight: Tensor, gram: Tensor, factors: Tensor, group: int, dtype: torch.dtype) -> float:
    values, grid = nearest(weight * factors, group, dtype)
    difference = wide(values, grid.per_column(group)) / factors - weight
    return output_error(difference, gram).sum().item()


def clipped(weight: Tensor, gram: Tensor, group: int, dtype: torch.dtype) -> tuple[Tensor, Grid]:
    """Round to nearest, with the range of each group that minimizes the group's own error. Returns integers and grids.

    weight: [N, K]. gram: [K, K]; each group uses its own block on the diagonal.
    """
    blocks = torch.stack([gram[k : k + group, k : k + group] for k in range(0, weight.shape[1], group)])
    best = torch.ones(len(weight), len(blocks), device=weight.device)
    least = torch.full_like(best, float("inf"))
    for step in range(SHRINKS):
        shrink = 1 - 0.5 * step / SHRINKS
        values, grid = nearest(weight, group, dtype, shrink)
        difference = (wide(values, grid.per_column(group)) - weight).unflatten(1, (-1, group))
        error = torch.einsum("ngk,gkl,ngl->ng", difference, blocks, difference)
        best = torch.where(error < least, shrink, best)
        least = torch.minimum(error, least)
    return nearest(weight, group, dtype, best)
