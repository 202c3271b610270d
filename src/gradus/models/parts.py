"""A model's description of its own layers, for kernels that compute whole layers without calling `forward`.

A block and its model return their parts from `parts`, next to the `forward` that combines them. One order of parts is
known, which every decoder here has. A model in any other order has no `parts`, and runs on its own `forward` alone.
"""

from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from gradus.errors import ConfigError
from gradus.models.experts import Mixture
from gradus.models.heads import Heads
from gradus.models.layers import Activation, Linear, Model, RMSNorm
from gradus.models.rope import RotaryTable

Norm = RMSNorm | nn.LayerNorm


class EmbeddedParts(NamedTuple):
    """The parts that add a layer's own embedding of each token (Gemma 4 E2B). inputs: [N, P], from `Model.embed`."""

    gate: Linear  # D → P
    activation: Activation
    out: Linear  # P → D
    norm: RMSNorm


class LayerParts(NamedTuple):
    """A layer that computes

        x = x + attention_out_norm(output(heads(qkv(attention_norm(x)), rope)))
        x = x + mlp_out_norm(dense_out_norm(down(activation(up(mlp_norm(x))) * sigmoid(shared_gate(mlp_norm(x)))))
                             + experts(x, mlp_norm))
        x = x + embedded.norm(embedded.out(embedded.activation(embedded.gate(x)) * inputs))
        x = x * scale

    rope: None where queries and keys do not turn. The norms: None where products read the stream, or sums take their
    outputs, as they are. up, down: None where a layer has experts alone. experts, shared_gate: None where it has none.
    embedded, scale: None where a layer has neither of the last two lines.
    """

    rope: RotaryTable | None
    attention_norm: Norm | None
    qkv: Linear
    heads: Heads
    output: Linear
    mlp_norm: Norm | None
    up: Linear | None
    activation: Activation  # Gated where `up` has two parts
    down: Linear | None
    attention_out_norm: Norm | None = None
    mlp_out_norm: Norm | None = None
    embedded: EmbeddedParts | None = None
    scale: Tensor | None = None  # [1]
    experts: Mixture | None = None
    shared_gate: Linear | None = None  # D → 1
    dense_out_norm: Norm | None = None


class Undescribed(ConfigError):
    """kind: the name of the class that computes in an order of its own."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind = f"{kind.__module__}.{kind.__qualname__}"
        super().__init__(f"{self.kind} does not describe how it combines its parts")


COMPUTES = ("forward", "run_layers", "logits")  # the methods that `parts` describes: a model's, and a block's `forward`


def parts_of(model: Model) -> list[LayerParts]:
    """Each layer's parts, which the model's norm, its head and the configuration's soft cap on logits follow.

    Raises Undescribed for a model, or a layer, that has no description, or only an inherited one: a subclass that
    computes in another way inherits `parts` as well, which is then wrong.
    """
    for part in (model, *model.layers):
        if not _describes_itself(type(part)):
            raise Undescribed(type(part))
    return cast(list[LayerParts], cast(Any, model).parts())


def _describes_itself(kind: type[nn.Module]) -> bool:
    """Whether the class that describes also computes, or derives from the one that does."""
    order = kind.__mro__

    def home(name: str) -> int:
        return next((number for number, base in enumerate(order) if name in vars(base)), len(order))

    return home("parts") < len(order) and all(home("parts") <= home(name) for name in COMPUTES)
