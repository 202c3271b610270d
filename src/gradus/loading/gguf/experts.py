"""Experts in a GGUF file: one tensor [E, rows, K] for all experts of a layer, for gates, features and the way back.

llama.cpp has one set of names for all architectures, where checkpoints of other makers have many. So these tensors keep
llama.cpp's names, and take the places of the checkpoint's own in the model's table. Gates and features lie apart: each
is a matrix of rows here too, which can stay where it is in the file.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from gradus.models.source import ByExpert, Either, Shape, Source, Stack, Stored, tensors_of


@dataclass(frozen=True)
class Row(Stored):
    """The one row of a matrix, stored as a vector."""

    def file_shape(self, shape: Shape) -> Shape:
        return shape[1:]

    def convert(self, value: Tensor) -> Tensor:
        return value[None]

    def restore(self, value: Tensor) -> Tensor:
        return value[0]


_ROUTER: dict[str, Source] = {
    "layers.{}.experts.router.product.weight": "blk.{}.ffn_gate_inp.weight",
    "layers.{}.experts.router.product.bias": "blk.{}.ffn_gate_inp.bias",
    "layers.{}.experts.router.correction": "blk.{}.exp_probs_b.bias",
}
_DOWN: dict[str, Source] = {
    f"layers.{{}}.experts.down.{kind}": Stack(f"blk.{{}}.ffn_down_exps.{kind}") for kind in ("weight", "bias")
}
APART: Mapping[str, Source] = (
    _ROUTER
    | _DOWN
    | {
        f"layers.{{}}.experts.up.{kind}": (
            Stack(f"blk.{{}}.ffn_gate_exps.{kind}"),
            Stack(f"blk.{{}}.ffn_up_exps.{kind}"),
        )
        for kind in ("weight", "bias")
    }
)
"""Gates and features in two tensors, as most architectures have them."""
TOGETHER: Mapping[str, Source] = (
    _ROUTER | _DOWN | {"layers.{}.experts.up.weight": Stack("blk.{}.ffn_gate_up_exps.weight", halves=True)}
)
"""Each expert's features below its gates (Gemma 4): in the order of the model's rows, they are a copy."""
SHARED: Mapping[str, Source] = {
    "layers.{}.gate_up.weight": tuple(
        Either(f"blk.{{}}.ffn_{part}.weight", f"blk.{{}}.ffn_{part}_shexp.weight") for part in ("gate", "up")
    ),
    "layers.{}.down.weight": Either("blk.{}.ffn_down.weight", "blk.{}.ffn_down_shexp.weight"),
    "layers.{}.shared_gate.weight": Row("blk.{}.ffn_gate_inp_shexp.weight"),
}
"""The MLP that all tokens share, and the dense one of layers without experts."""
SINGLE: Mapping[str, Source] = _ROUTER | {
    "layers.{}.experts.up.weight": (
        ByExpert("blk.{}.ffn_gate.{expert}.weight"),
        ByExpert("blk.{}.ffn_up.{expert}.weight"),
    ),
    "layers.{}.experts.down.weight": ByExpert("blk.{}.ffn_down.{expert}.weight"),
}
"""One tensor per expert: files of Mixtral from before April 2024."""


def layout_of(tensors: Iterable[str]) -> Mapping[str, Source]:
    """Entries of a model's table for the experts of a file with these tensors; none if it has no experts."""
    ends = {name.split(".", 2)[-1] for name in tensors}
    if "ffn_gate.0.weight" in ends:
        return SINGLE
    if "ffn_down_exps.weight" not in ends:
        return {}
    stacks = TOGETHER if "ffn_gate_up_exps.weight" in ends else APART
    return {**stacks, **SHARED} if "ffn_down_shexp.weight" in ends else stacks


def names_in(layout: Mapping[str, Source]) -> frozenset[str]:
    """The tensors that a layout has by llama.cpp's names, `{}` being the layer."""
    stored = [each for source in layout.values() for each in tensors_of(source)]
    return frozenset(each.name for each in stored) | {each.shared for each in stored if isinstance(each, Either)}
