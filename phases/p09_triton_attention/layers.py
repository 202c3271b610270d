"""A model of Llama's kind with the norm kernel in it: an addition waits for the next norm, and both are one launch.

    x = x + attention(norm(x))            x, delta = …, attention(add_rms_norm(x, delta))
    x = x + mlp(norm(x))           →      x, delta = …, mlp(add_rms_norm(x, delta))
    norm(x)                               add_rms_norm(x, delta)

Layers hand on two tensors: the residual stream x, and delta, which is still to be added to it.
"""

from typing import cast

import torch
from torch import Tensor

from gradus.models import Model
from gradus.models.attention import Attention
from gradus.models.families.llama import Block, Llama
from gradus.models.layers import RMSNorm
from gradus.models.rope import Rotation
from phases.p09_triton_attention.norm import add_rms_norm


def with_norm_kernel(model: Model) -> Model:
    """Return the model with add and norm in one kernel, over the same tensors; or itself, if it is of another kind."""
    return FusedLlama(model) if type(model) is Llama else model


class FusedLlama(Llama):
    """Another `forward` for a model that is there already, and stays as it is: its parts are shared, not copied."""

    norm: RMSNorm

    def __init__(self, model: Model) -> None:
        vars(self).update(vars(model))

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        x = self.embed(token_ids, positions)
        delta = torch.zeros_like(x)  # nothing comes before the first norm
        for layer, rotation in zip(cast("list[Block]", self.layers), self.rotations(positions), strict=True):
            delta = after_layer(layer, x, delta, rotation, attention)
        return normed(self.norm, x, delta)


def after_layer(layer: Block, x: Tensor, delta: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
    """Run a layer on the stream x + delta, [N, D]. x becomes that sum and its attention's; returns its MLP's."""
    qkv = layer.qkv(normed(layer.attention_norm, x, delta))
    delta = layer.output(layer.heads(qkv.to(x.dtype), rotation, attention))
    return layer.down(layer.gate(layer.gate_up(normed(layer.mlp_norm, x, delta))))


def normed(norm: RMSNorm, x: Tensor, delta: Tensor) -> Tensor:
    return add_rms_norm(x, delta, norm.weight, norm.eps)
