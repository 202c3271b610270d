"""Qwen3 (Qwen Team 2025): Llama, with every query and key head normalized before it is rotated.

Scores are dot products of queries and keys. With both at a fixed length, no score can grow without bound during
training. One weight vector [Dh] serves all query heads, and another all key heads.
"""

import torch

from gradus.models.config import ModelConfig
from gradus.models.families import llama
from gradus.models.heads import Heads
from gradus.models.layers import LinearFactory, RMSNorm
from gradus.models.source import Source

WEIGHTS: dict[str, Source] = llama.WEIGHTS | {
    "layers.{}.heads.q_norm.weight": "model.layers.{}.self_attn.q_norm.weight",
    "layers.{}.heads.k_norm.weight": "model.layers.{}.self_attn.k_norm.weight",
}


class Block(llama.Block):
    """Llama's layer with one difference: its heads."""

    def __init__(
        self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__(config, index, linear, dtype, device)
        q_norm, k_norm = (RMSNorm(config.head_dim, config.norm_eps, dtype, device) for _ in ("queries", "keys"))
        self.heads = Heads(config, index, q_norm, k_norm)


class Qwen3(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    block = Block
