"""From a layer with its statistics to integers: to the nearest, by AWQ, or by GPTQ."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradus.calibration.layer import LoneLayer
from gradus.calibration.observed import ObservedLinear
from gradus.models.layers import Linear
from gradus.quantization.awq import clipped, column_factors
from gradus.quantization.gptq import gptq
from gradus.quantization.grid import Grid, nearest

Rounded = tuple[Tensor, Grid]
Rounder = Callable[[ObservedLinear, int, torch.dtype], Rounded]


def by_nearest(linear: ObservedLinear, group: int, dtype: torch.dtype) -> Rounded:
    return nearest(linear.weight, group, dtype)


def by_gptq(linear: ObservedLinear, group: int, dtype: torch.dtype) -> Rounded:
    return gptq(linear.weight, linear.gram, group, dtype)


def by_awq(linear: ObservedLinear, group: int, dtype: torch.dtype) -> Rounded:
    """After `scale_columns`. Queries and keys are not clipped: scores are a product of both, which its error is not."""
    if linear.place.role == "qkv":
        return nearest(linear.weight, group, dtype)
    return clipped(linear.weight, linear.gram, group, dtype)


METHODS: dict[str, Rounder] = {"rtn": by_nearest, "awq": by_awq, "gptq": by_gptq}


def scale_columns(layer: LoneLayer, group: int, dtype: torch.dtype) -> None:
    """AWQ's factors, for products whose input comes from something linear: the layer computes what it did.

    The inputs of qkv and gate_up come from a norm; that of down from the rows of up, if the MLP is gated; that of the
    output product from the rows of v, if every query head has a value head of its own.
    """
    linears, config = layer.linears(), layer.model.config
    for role in ("qkv", "gate_up"):
        linear = linears[role]
        factors = _scale(linear, group, dtype)
        norm = layer.norm_before(linear.place)
        for parameter in norm.parameters():
            parameter.div_(factors)
    gated = len(linears["gate_up"].out_features) == 2
    if gated:
        _scale_rows(linears["gate_up"], 1, _scale(linears["down"], group, dtype))
    if config.num_heads == config.num_kv_heads:
        _scale_rows(linears["qkv"], 2, _scale(linears["attn_out"], group, dtype))


def _scale(linear: ObservedLinear, group: int, dtype: torch.dtype) -> Tensor:
    """Multiply a matrix's columns by the best factors, which are returned, and bring its statistics up to date."""
    factors = column_factors(linear.weight, linear.gram, linear.magnitude, group, dtype)
    linear.weight.mul_(factors)
    linear.gram.div_(factors).div_(factors.unsqueeze(1))
    return factors


def _scale_rows(linear: Linear, part: int, factors: Tensor) -> None:
    """Divide the rows of one of the matrices that are fused."""
    for parameter in (linear.weight, linear.bias):
        if parameter is not None:
            assert isinstance(parameter, nn.Parameter)
            parameter.split(linear.out_features)[part].div_(factors.view(-1, *[1] * (parameter.dim() - 1)))
