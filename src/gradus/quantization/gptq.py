"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): round column by column, and let the remaining columns compensate.

GPTQ minimizes the error of the layer's output. Its squared error is ΔW H ΔWᵀ per row, with H = Σ xᵀx over calibration
activations. When a column has been rounded, the columns that are still float can move to make the error as small as
possible: by -e_i H⁻¹[i, i:] / H⁻¹[i, i] (Optimal Brain Surgeon). All those rows of inverses are the rows of one
triangular matrix: the upper Cholesky factor of H⁻¹.

Columns are rounded by falling H[i, i]: those with the largest activations first, while most others can still
compensate. Scales come from the groups of the original weights ("static groups"), so a file's columns stay in place.
"""

import torch
from torch import Tensor

from gradus.quantization.grid import MOST, Grid, spanning

BLOCK = 128  # columns after which all later columns are updated in one product
DAMPING = 0.01  # fraction of H's mean diagonal added to it: H from few tokens cannot be inverted


def gptq(weight: Tensor, gram: Tensor, group: int, dtype: torch.dtype) -> tuple[Tensor, Grid]:
    """Round a matrix by GPTQ. Returns integers 0 … 15, float32 [N, K], and the groups' grids.

    weight: float32 [N, K]. gram: float32 [K, K], Σ xᵀx. dtype: of scales in a file.
    """
    grid = spanning(weight, group, dtype)
    order = gram.diagonal().argsort(descending=True)
    columns = Grid(*(each[:, order] for each in grid.per_column(group)))
    factor = inverse_factor(gram[order][:, order])
    left = weight[:, order].clone()
    values = torch.empty_like(left)
    for start in range(0, left.shape[1], BLOCK):
        block = slice(start, start + BLOCK)
        errors = _round_block(left, values, columns, factor, block)
        left[:, block.stop :] -= errors @ factor[block, block.stop :]
    found = torch.empty_like(values)
    found[:, order] = values
    return found, grid


def _round_block(left: Tensor, values: Tensor, columns: Grid, factor: Tensor, block: slice) -> Tensor:
    """Round a block's columns, and move the later columns of the block at once. Returns the errors, [N, BLOCK]."""
    part, inverse = left[:, block], factor[block, block]
    errors = torch.empty_like(part)
    for i in range(part.shape[1]):
        column = block.start + i
        scale, zero = columns.scales[:, column], columns.zeros[:, column]
        values[:, column] = (part[:, i] / scale + zero).round().clamp(0, MOST)
        errors[:, i] = (part[:, i] - (values[:, column] - zero) * scale) / inverse[i, i]
        part[:, i + 1 :] -= errors[:, i : i + 1] * inverse[i, i + 1 :]
    return errors


def inverse_factor(gram: Tensor) -> Tensor:
    """Compute the upper triangular U with UᵀU = (gram + damping)⁻¹."""
    diagonal = gram.diagonal()
    damped = gram + torch.diag(
        DAMPING * diagonal.mean() + (diagonal == 0)
    )  # an input that is always 0 may have any number
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)
