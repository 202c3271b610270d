"""Qwen3 (Qwen Team 2025): Llama, with every query and key head normalized before it is rotated.

Scores are dot products of queries and keys; with both at a fixed length no pair can grow without bound during
training. One weight vector [Dh] serves all query heads, another all key heads.
"""

import torch
from torch import Tensor

from gradus.attention import Attention
from gradus.models import llama
from gradus.models.config import ModelConfig
from gradus.models.layers import LinearFactory, RMSNorm
from gradus.models.rope import Rotation, rotate
from gradus.models.weights import Source

WEIGHTS: dict[str, Source] = llama.WEIGHTS | {
    "layers.{}.q_norm.weight": "model.layers.{}.self_attn.q_norm.weight",
    "layers.{}.k_norm.weight": "model.layers.{}.self_attn.k_norm.weight",
}


class Block(llama.Block):
    """Llama's layer with one difference, in `attend`."""

    def __init__(
        self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__(config, index, linear, dtype, device)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps, dtype, device)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps, dtype, device)

    def attend(self, x: Tensor, rotation: Rotation, attention: Attention) -> Tensor:
        heads = self.qkv(x).to(x.dtype).view(x.shape[0], -1, self.head_dim)  # [N, Hq + Hkv + Hkv, Dh]
        q, k, v = heads.split_with_sizes((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        q, k = rotate(self.q_norm(q), rotation), rotate(self.k_norm(k), rotation)  # each head on its own
        out = attention.attend(self.index, q, k, v)  # [N, Hq, Dh]
        return self.output(out.flatten(1))


class Qwen3(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    block = Block
