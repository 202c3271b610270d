"""Ways to round a layer to integers, given its statistics: to the nearest, by AWQ, or by GPTQ."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradus.calibration.layer import LoneLayer
from gradus.calibration.observed import ObservedLinear
from gradus.models.layers import Linear
from gradus.quantization.awq import Alike, clipped, column_factors
from gradus.quantization.gptq import gptq
from gradus.quantization.grid import Grid, nearest

Rounded = tuple[Tensor, Grid]
Rounder = Callable[[ObservedLinear, int, torch.dtype], Rounded]


def by_nearest(linear: ObservedLinear, group: int, dtype: torch.dtype) -> Rounded:
    return nearest(linear.weight, group, dtype)


def by_gptq(linear: ObservedLinear, group: int, dtype: torch.dtype) -> Rounded:
    return gptq(linear.weight, linear.gram, group, dtype)


def by_awq(linear: ObservedLinear, group: int, dtype: torch.dtype) -> Rounded:
    """Round after `scale_columns`. Queries and keys are not clipped: their own error is not that of their product."""
    if linear.matrix_id.role == "qkv":
        return nearest(linear.weight, group, dtype)
    return clipped(linear.weight, linear.gram, group, dtype)


METHODS: dict[str, Rounder] = {"rtn": by_nearest, "awq": by_awq, "gptq": by_gptq}


def scale_columns(layer: LoneLayer, group: int, dtype: torch.dtype) -> None:
    """Apply AWQ's factors to products whose input comes from a linear operation. The layer's result is unchanged."""

    def best(linear: ObservedLinear, alike: Alike) -> Tensor:
        return column_factors(linear.weight, linear.gram, linear.magnitude, group, dtype, alike)

    rescale(layer, best)


FactorsOf = Callable[[ObservedLinear, Alike], Tensor]
"""(matrix, alike) → factors [K] of its columns. alike: averages factors over columns that must share one."""


def rescale(layer: LoneLayer, factors_of: FactorsOf) -> None:
    """Multiply columns of products by factors, and divide the sources of their inputs: the layer's result is unchanged.

    The inputs of qkv and gate_up come from a norm; that of down from the rows of up, if the MLP is gated; that of the
    output product from the rows of v, where all query heads of a group read the same rows. The two products around a
    layer's own embedding keep theirs.
    """
    linears, config = layer.linears(), layer.model.config
    for role in ("qkv", "gate_up"):
        norm = layer.norm_before(linears[role].matrix_id)
        if norm is None:  # nothing could undo the factors: the stream has other readers
            continue
        factors = _rescale(linears[role], factors_of, lambda each: each)
        for parameter in norm.parameters():
            parameter.div_(factors)
    if len(linears["gate_up"].out_features) == 2:
        _divide_rows(linears["gate_up"], 1, _rescale(linears["down"], factors_of, lambda each: each))
    if config.value_norm or config.has_values_from_keys(0):
        return  # values do not grow with the rows of v, or those are the rows of k too
    groups = (config.num_kv_heads, -1, config.head_dim)

    def of_group(each: Tensor) -> Tensor:
        heads = each.view(groups)
        return heads.mean(1, keepdim=True).expand_as(heads).reshape(-1)

    factors = _rescale(linears["attn_out"], factors_of, of_group)
    _divide_rows(linears["qkv"], 2, factors.view(groups)[:, 0].flatten())


def _rescale(linear: ObservedLinear, factors_of: FactorsOf, alike: Alike) -> Tensor:
    """Multiply a matrix's columns by factors, and update its statistics. Returns the factors."""
    factors = factors_of(linear, alike)
    linear.weight.mul_(factors)
    linear.rescaled(factors)
    return factors


def _divide_rows(linear: Linear, part: int, factors: Tensor) -> None:
    """Divide the rows of one of the fused matrices."""
    for parameter in (linear.weight, linear.bias):
        if parameter is not None:
            assert isinstance(parameter, nn.Parameter)
            parameter.split(linear.out_features)[part].div_(factors.view(-1, *[1] * (parameter.dim() - 1)))


SPREAD = 0.25  # octaves, up and down


def break_grid(layer: LoneLayer) -> None:
    """Move weights off the grid of their 4-bit file, by column factors between 0.84 and 1.19.

    The layer's result is unchanged. Without this, rounding such weights again may lose nothing, and so would not show
    how well a method rounds weights that were never on a grid.
    """
    generator = torch.Generator().manual_seed(layer.number)

    def random(linear: ObservedLinear, alike: Alike) -> Tensor:
        octaves = torch.empty(linear.in_features).uniform_(-SPREAD, SPREAD, generator=generator)
        return alike(torch.exp2(octaves.to(linear.weight.device)))

    rescale(layer, random)
