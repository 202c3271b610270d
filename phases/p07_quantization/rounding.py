"""Round to nearest: a few weights share one grid, and each keeps only the number of its nearest grid point.

Each weight loses at most half a step of the grid, and the largest of the weights that share one decides how wide its
steps are. So with fewer bits, fewer weights should share one: a row with eight bits, a group of 64 with four.

Shapes: N outputs (rows of a matrix), K inputs (its columns), G groups of a row.
"""

import torch
from torch import Tensor

GROUP = 64  # weights that share a scale and an offset
TINY = 1e-10  # the scale where all weights are the same


def quantize_rows(w: Tensor, bits: int = 8) -> tuple[Tensor, Tensor]:
    """w: [N, K]. Returns codes [N, K] int8 and scale [N], w ≈ codes * scale: a row's largest weight becomes ±127."""
    most = 2 ** (bits - 1) - 1
    scale = w.abs().amax(dim=1).clamp(min=TINY) / most
    return (w / scale[:, None]).round().to(torch.int8), scale


def dequantize_rows(codes: Tensor, scale: Tensor) -> Tensor:
    """[N, K] and [N] → [N, K]."""
    return codes.to(scale.dtype) * scale[:, None]


def grid(weights: Tensor, bits: int = 4) -> tuple[Tensor, Tensor]:
    """The grid from the smallest to the largest weight. weights: [..., group]. Returns scale and offset, [...] each.

    Grid point q is q * scale + offset, for q from 0 to 2^bits - 1. With an offset every code is of use, also where a
    group has more positive weights than negative ones. Where all weights are the same, the scale is TINY.
    """
    offset = weights.amin(dim=-1)
    scale = (weights.amax(dim=-1) - offset) / (2**bits - 1)
    return scale.clamp(min=TINY), offset


def nearest(weights: Tensor, scale: Tensor, offset: Tensor, bits: int = 4) -> Tensor:
    """The number of the grid point nearest to each weight, from 0 to 2^bits - 1, also for weights beyond the grid.

    weights: of any shape; scale and offset broadcast to it. Returns whole numbers in the type of `weights`.
    """
    return ((weights - offset) / scale).round().clamp(0, 2**bits - 1)


def quantize_groups(w: Tensor, group: int = GROUP, bits: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """w: [N, K]. Returns codes [N, K] uint8, scale and offset [N, G]. Each `group` weights of a row have a grid."""
    groups = w.unflatten(1, (-1, group))
    scale, offset = grid(groups, bits)
    codes = nearest(groups, scale[..., None], offset[..., None], bits)
    return codes.flatten(1).to(torch.uint8), scale, offset


def dequantize_groups(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """codes: [N, K]; scale, offset: [N, G]. Returns the grid points [N, K], in the type of `scale`."""
    groups = codes.to(scale.dtype).unflatten(1, (scale.shape[1], -1))
    return (groups * scale[..., None] + offset[..., None]).flatten(1)
