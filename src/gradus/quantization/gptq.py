"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): round column by column, and let what is left make up for the error.

What counts is the layer's output. The squared error of its output is ΔW H ΔWᵀ per row, with H = Σ xᵀx over calibration
activations. When a column has been rounded, the columns that are still float can move so that the error shrinks as far
as it can: by -e_i H⁻¹[i, i:] / H⁻¹[i, i] (Optimal Brain Surgeon). All those rows of inverses are the rows of one
triangular matrix: the upper Cholesky factor of H⁻¹.

Columns go by falling H[i, i]: those with the largest activations are rounded first, while most others can still make up
for them. Scales are those of the groups as the weights were ("static groups"), so a file's columns stay in place.
"""

import torch
from torch import Tensor

from gradus.quantization.grid import MOST, Grid, spanning

BLOCK = 128  # columns after which the ones behind are brought up to date in one product
DAMPING = 0.01  # of H's mean diagonal, added to it: H of few tokens cannot be inverted


def gptq(weight: Tensor, gram: Tensor, group: int, dtype: torch.dtype) -> tuple[Tensor, Grid]:
    """Integers 0 … 15, float32 [N, K], and the groups' grids.

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
    """Round these columns; those of the block that follow move at once. Returns the errors, [N, BLOCK]."""
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
    """The upper triangular U with UᵀU = (gram + damping)⁻¹."""
    diagonal = gram.diagonal()
    damped = gram + torch.diag(
        DAMPING * diagonal.mean() + (diagonal == 0)
    )  # an input that is always 0: any number does
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)
