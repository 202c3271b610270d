"""A Llama model's tensors by their names in the lesson. Each matrix is [in, out], so `x @ matrix` reads left to right.

Shapes: D hidden size, Hq query heads, Hkv key and value heads, Dh numbers per head, F numbers inside the MLP, V tokens
in the vocabulary.
"""

from dataclasses import dataclass

from torch import Tensor

from gradus.errors import ConfigError
from gradus.models import Model
from gradus.models.families.llama import Block


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Tensor  # [D]
    query: Tensor  # [D, Hq Dh]
    key: Tensor  # [D, Hkv Dh]
    value: Tensor  # [D, Hkv Dh]
    output: Tensor  # [Hq Dh, D]
    mlp_norm: Tensor  # [D]
    gate: Tensor  # [D, F]
    up: Tensor  # [D, F]
    down: Tensor  # [F, D]


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor  # [V, D]
    layers: list[Layer]
    norm: Tensor  # [D]
    head: Tensor  # [D, V]; in SmolLM2 the embedding's own tensor, transposed
    head_dim: int  # Dh
    theta: float  # the base of RoPE's speeds
    eps: float  # keeps RMSNorm from dividing by 0


def weights_of(model: Model) -> Weights:
    """Views of a loaded model's tensors. Raises ConfigError for a model that is more than the lesson's Llama."""
    config = model.config
    biases = config.attention_bias or config.attention_output_bias or config.mlp_bias
    rope = config.ropes[0]
    if config.family != "llama" or rope is None or rope.scaling or biases or any(config.windows):
        raise ConfigError(f"the forward pass of p00 runs plain Llama, such as smollm2-135m, not this {config.family}")
    layers = [_layer(layer) for layer in model.layers if isinstance(layer, Block)]
    norm, head = model.get_parameter("norm.weight"), model.head.weight.T
    return Weights(model.embedding.weight, layers, norm, head, config.head_dim, rope.theta, config.norm_eps)


def _layer(layer: Block) -> Layer:
    """The engine keeps matrices [out, in], and those with the same input as one, side by side."""
    query, key, value = layer.qkv.weight.T.split(layer.qkv.out_features, dim=1)
    gate, up = layer.gate_up.weight.T.split(layer.gate_up.out_features, dim=1)
    output, down = layer.output.weight.T, layer.down.weight.T
    return Layer(layer.attention_norm.weight, query, key, value, output, layer.mlp_norm.weight, gate, up, down)
