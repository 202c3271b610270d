"""Llama (Touvron et al. 2023), and with it Mistral, SmolLM, Qwen2 and Ministral: most open models vary this decoder.

Unlike GPT-2 it has RMSNorm instead of LayerNorm, rotary positions instead of learned ones, a gated MLP, no biases, and
grouped-query attention: several query heads share one key and value head, which makes the KV cache smaller by that
factor. Qwen2 again has biases, on queries, keys and values. In SmolLM3, every fourth layer does without positions.

Shapes: N tokens, D hidden_size, Hq query heads, Hkv key-value heads, Dh head_dim, F intermediate_size, V vocabulary.
"""

from typing import cast

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.heads import Heads
from gradus.models.layers import Embedding, Gated, LinearFactory, MatrixId, Model, RMSNorm, packed_table
from gradus.models.parts import LayerParts
from gradus.models.rope import RotaryTable, Rotation, Rotations
from gradus.models.source import Source

WEIGHTS: dict[str, Source] = {
    "embedding.weight": "model.embed_tokens.weight",
    "layers.{}.attention_norm.weight": "model.layers.{}.input_layernorm.weight",
    "layers.{}.qkv.weight": (
        "model.layers.{}.self_attn.q_proj.weight",
        "model.layers.{}.self_attn.k_proj.weight",
        "model.layers.{}.self_attn.v_proj.weight",
    ),
    "layers.{}.qkv.bias": (
        "model.layers.{}.self_attn.q_proj.bias",
        "model.layers.{}.self_attn.k_proj.bias",
        "model.layers.{}.self_attn.v_proj.bias",
    ),
    "layers.{}.output.weight": "model.layers.{}.self_attn.o_proj.weight",
    "layers.{}.output.bias": "model.layers.{}.self_attn.o_proj.bias",
    "layers.{}.mlp_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    "layers.{}.gate_up.weight": ("model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"),
    "layers.{}.gate_up.bias": ("model.layers.{}.mlp.gate_proj.bias", "model.layers.{}.mlp.up_proj.bias"),
    "layers.{}.down.weight": "model.layers.{}.mlp.down_proj.weight",
    "layers.{}.down.bias": "model.layers.{}.mlp.down_proj.bias",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


class Block(nn.Module):
    """One layer: look around (attention), then think (MLP), and add the result of each to the input."""

    def __init__(
        self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        hidden, q_width, width = config.hidden_size, config.q_width, config.intermediate_size

        self.attention_norm = RMSNorm(hidden, config.stream_eps, dtype, device)
        self.qkv = linear(MatrixId("qkv", index), hidden, config.qkv_widths, config.attention_bias, dtype, device)
        self.output = linear(
            MatrixId("attn_out", index), q_width, (hidden,), config.attention_output_bias, dtype, device
        )
        self.mlp_norm = RMSNorm(hidden, config.stream_eps, dtype, device)
        self.gate_up = linear(MatrixId("gate_up", index), hidden, config.up_widths, config.mlp_bias, dtype, device)
        self.gate = Gated(config.activation)
        self.down = linear(MatrixId("down", index), width, (hidden,), config.mlp_bias, dtype, device)
        self.heads = Heads(config, index)

    def forward(self, x: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        qkv = self.qkv.after(self.attention_norm, x)  # [N, (Hq + Hkv + Hkv) Dh]
        x = self.output.onto(x, self.heads(qkv.to(x.dtype), rotation, attention))  # [N, Hq Dh] → [N, D]
        features = self.gate_up.after(self.mlp_norm, x, self.gate)  # [N, 2 F] → [N, F]
        return self.down.onto(x, features)

    def parts(self, rope: RotaryTable | None) -> LayerParts:
        attention = self.attention_norm, self.qkv, self.heads, self.output
        mlp = self.mlp_norm, self.gate_up, self.gate, self.down
        return LayerParts(rope, *attention, *mlp)


class Llama(Model):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    block: type[nn.Module] = Block

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.config = config
        head = linear(MatrixId("head", None), config.hidden_size, (config.vocab_size,), False, dtype, device)
        table = config.vocab_size, config.hidden_size, dtype, device
        tied, packed = (head, None) if config.tie_embeddings else (None, packed_table(linear, *table))
        self.embedding = Embedding(*table, shared=tied, table=packed)
        self.rotations = Rotations(config, dtype, device)
        self.layers = nn.ModuleList(
            self.block(config, index, linear, dtype, device) for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.stream_eps, dtype, device)
        self.head = head

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return self.embedding(token_ids)  # positions come in by rotation, inside the layers

    def run_layers(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        for layer, rotation in zip(self.layers, self.rotations(positions), strict=True):
            x = layer(x, rotation, attention)
        return x

    def parts(self) -> list[LayerParts]:
        return [cast(Block, layer).parts(self.rotations.table(number)) for number, layer in enumerate(self.layers)]
