"""Experts in a GGUF file: one tensor [E, rows, K] for all experts of a layer, for gates, features and the way back.

llama.cpp has one set of names for all architectures, where checkpoints of other makers have many. So these tensors keep
llama.cpp's names, and take the places of the checkpoint's own in the model's table. Gates and features lie apart: each
is a matrix of rows here too, which can stay where it is in the file.
"""

from collections.abc import Iterable, Mapping

from gradus.models.source import Source, Stack

STACKS: Mapping[str, Source] = {
    "layers.{}.experts.router.product.weight": "blk.{}.ffn_gate_inp.weight",
    "layers.{}.experts.up.weight": (Stack("blk.{}.ffn_gate_exps.weight"), Stack("blk.{}.ffn_up_exps.weight")),
    "layers.{}.experts.down.weight": Stack("blk.{}.ffn_down_exps.weight"),
}


def layout_of(tensors: Iterable[str]) -> Mapping[str, Source]:
    """Entries of a model's table for the experts of a file with these tensors; none if it has no experts."""
    return STACKS if any("_exps." in name for name in tensors) else {}
