"""Phi-3 (Abdin et al. 2024), Phi-3.5, Phi-4 and Phi-4-mini: Llama, stored in fewer matrices.

Checkpoints hold queries, keys and values in one matrix, and the gate and the features of the MLP in another, as we keep
them anyway. In Phi-4-mini only the first three quarters of each head turn. There, value i is paired with value i + 48
and not, as in all other models, with the one half a head on; so the rows of queries and keys are reordered when they
are loaded, which changes no dot product (`rope.half_order`).

Shapes: N tokens, D hidden_size, Hq query heads, Hkv key-value heads, Dh head_dim, F intermediate_size, V vocabulary.
"""

import torch

from gradus.models.config import ModelConfig
from gradus.models.families import llama
from gradus.models.layers import LinearFactory
from gradus.models.rope import half_order
from gradus.models.source import Reordered, Source

QKV = "model.layers.{}.self_attn.qkv_proj"
WEIGHTS: dict[str, Source] = llama.WEIGHTS | {
    "layers.{}.qkv.weight": f"{QKV}.weight",
    "layers.{}.qkv.bias": f"{QKV}.bias",
    "layers.{}.gate_up.weight": "model.layers.{}.mlp.gate_up_proj.weight",
    "layers.{}.gate_up.bias": "model.layers.{}.mlp.gate_up_proj.bias",
}


class Phi3(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__(config, linear, dtype, device)
        rope = config.ropes[0] if config.ropes else None
        if rope is not None and rope.turned is not None:
            order = rows_by_half(config, rope.turned)
            reordered = {f"layers.{{}}.qkv.{name}": Reordered(f"{QKV}.{name}", order) for name in ("weight", "bias")}
            self.weights = {**WEIGHTS, **reordered}


def rows_by_half(config: ModelConfig, turned: int) -> tuple[int, ...]:
    """The order of qkv's rows in which every query and key head's values are paired by half; values stay in place."""
    head, rotated = half_order(config.head_dim, turned), config.num_heads + config.num_kv_heads
    rows = [number * config.head_dim + value for number in range(rotated) for value in head]
    return (*rows, *range(len(rows), sum(config.qkv_widths)))
