"""Gemma 3's text model (Gemma Team 2025): most layers see only a window back, and every sixth sees everything.

Only the layers that see everything need a KV cache as long as the context, which is the point of the design. Each kind
has its own rotary table, with short wavelengths where distances are short. Unlike in Llama, queries and keys are
normalized (as in Qwen3), the outputs of attention and MLP are normalized before they are added (four norms per layer),
embeddings are scaled by sqrt(D), and a configuration may cap the logits softly.

Shapes: N tokens, D hidden_size, Hq query heads, Hkv key-value heads, Dh head_dim, F intermediate_size, V vocabulary.
"""

from typing import cast

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.heads import Heads
from gradus.models.layers import (
    Embedding,
    EmbeddingTables,
    Gated,
    LinearFactory,
    MatrixId,
    Model,
    RMSNorm,
    packed_table,
)
from gradus.models.parts import LayerParts
from gradus.models.rope import RotaryTable, Rotation, Rotations
from gradus.models.source import TEXT_PART, VISION, OnePlus, Source

# Gemma's norms scale by 1 + weight, so that training starts from 0. The 1 is added once, when the file is read.
WEIGHTS: dict[str, Source] = {
    "embedding.weight": "model.embed_tokens.weight",
    "layers.{}.attention_norm.weight": OnePlus("model.layers.{}.input_layernorm.weight"),
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
    "layers.{}.heads.q_norm.weight": OnePlus("model.layers.{}.self_attn.q_norm.weight"),
    "layers.{}.heads.k_norm.weight": OnePlus("model.layers.{}.self_attn.k_norm.weight"),
    "layers.{}.output.weight": "model.layers.{}.self_attn.o_proj.weight",
    "layers.{}.output.bias": "model.layers.{}.self_attn.o_proj.bias",
    "layers.{}.attention_out_norm.weight": OnePlus("model.layers.{}.post_attention_layernorm.weight"),
    "layers.{}.mlp_norm.weight": OnePlus("model.layers.{}.pre_feedforward_layernorm.weight"),
    "layers.{}.gate_up.weight": ("model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"),
    "layers.{}.down.weight": "model.layers.{}.mlp.down_proj.weight",
    "layers.{}.mlp_out_norm.weight": OnePlus("model.layers.{}.post_feedforward_layernorm.weight"),
    "norm.weight": OnePlus("model.norm.weight"),
    "head.weight": "lm_head.weight",
}


def wide_norm(width: int, eps: float, device: torch.device | str) -> RMSNorm:
    """RMSNorm in float32 throughout: 1 + weight would lose the small weights' digits in a narrower type."""
    return RMSNorm(width, eps, torch.float32, device)


class Block(nn.Module):
    """One layer: attention, local or global, then an MLP. Both normalize their input and the output that they add."""

    def __init__(
        self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        hidden, q_width, width = config.hidden_size, config.q_width, config.intermediate_size
        eps = config.norm_eps

        self.attention_norm = wide_norm(hidden, eps, device)
        self.qkv = linear(MatrixId("qkv", index), hidden, config.qkv_widths, config.attention_bias, dtype, device)
        q_norm, k_norm = (wide_norm(config.head_dim, eps, device) for _ in ("queries", "keys"))
        self.heads = Heads(config, index, q_norm, k_norm)
        self.output = linear(
            MatrixId("attn_out", index), q_width, (hidden,), config.attention_output_bias, dtype, device
        )
        self.attention_out_norm = wide_norm(hidden, eps, device)
        self.mlp_norm = wide_norm(hidden, eps, device)
        self.gate_up = linear(MatrixId("gate_up", index), hidden, config.up_widths, config.mlp_bias, dtype, device)
        self.gate = Gated(config.activation)
        self.down = linear(MatrixId("down", index), width, (hidden,), config.mlp_bias, dtype, device)
        self.mlp_out_norm = wide_norm(hidden, eps, device)

    def forward(self, x: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        qkv = self.qkv.after(self.attention_norm, x)  # [N, (Hq + Hkv + Hkv) Dh]
        x = self.attention_out_norm.onto(x, self.output(self.heads(qkv.to(x.dtype), rotation, attention)))
        features = self.gate_up.after(self.mlp_norm, x, self.gate)  # [N, 2 F] → [N, F]
        return self.mlp_out_norm.onto(x, self.down(features))

    def parts(self, rope: RotaryTable | None) -> LayerParts:
        attention = self.attention_norm, self.qkv, self.heads, self.output
        mlp = self.mlp_norm, self.gate_up, self.gate, self.down
        return LayerParts(rope, *attention, *mlp, self.attention_out_norm, self.mlp_out_norm)


class Gemma3(Model):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    renamed = TEXT_PART
    ignored = (*Model.ignored, VISION)

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.config = config
        head = linear(MatrixId("head", None), config.hidden_size, (config.vocab_size,), False, dtype, device)
        table = config.vocab_size, config.hidden_size, dtype, device
        tied, packed = (head, None) if config.tie_embeddings else (None, packed_table(linear, *table))
        self.embedding = Embedding(*table, shared=tied, table=packed)
        self.embedding_scale = self.embedding.rounded(config.embedding_scale)
        self.rotations = Rotations(config, dtype, device)
        self.layers = nn.ModuleList(Block(config, index, linear, dtype, device) for index in range(config.num_layers))
        self.norm = wide_norm(config.hidden_size, config.norm_eps, device)
        self.head = head

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return self.embedding(token_ids) * self.embedding_scale

    def embedding_tables(self) -> EmbeddingTables:
        return EmbeddingTables(self.embedding.floats(), scale=self.embedding_scale)

    def run_layers(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        for layer, rotation in zip(self.layers, self.rotations(positions), strict=True):
            x = layer(x, rotation, attention)
        return x

    def parts(self) -> list[LayerParts]:
        return [cast(Block, layer).parts(self.rotations.table(number)) for number, layer in enumerate(self.layers)]
