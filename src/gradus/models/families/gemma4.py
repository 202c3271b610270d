"""Gemma 4's dense text models (Gemma Team 2026): 12B and 31B, and E2B and E4B, whose layers have embeddings of their own.

As in Gemma 3, most layers see only a window back, and both halves of a layer normalize what they read and what they add.
New is what keeps the cache of a long context small. Layers that see everything have fewer key-value heads, twice as
wide, whose values are their keys before norm and rotation; and only a quarter of each such head turns. In E2B and E4B
the last layers have no keys and values at all: they attend to those of an earlier layer of their kind.

E2B and E4B look every token up a second time, in a table with P values for each layer. Those come with the token's row
to the layers, and each lets its own values decide how much of P features passes to the stream. A lookup costs no
product, so such a table can be far larger than what the model multiplies with.

Shapes: N tokens, D hidden_size, L layers, P per_layer_width; of each layer: Hq query heads, Hkv key-value heads, Dh
head_dim, F intermediate_size.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.heads import Heads
from gradus.models.layers import (
    Activation,
    Embedding,
    EmbeddingTables,
    Gated,
    LinearFactory,
    MatrixId,
    Model,
    RMSNorm,
    packed_table,
    parameter,
)
from gradus.models.parts import EmbeddedParts, LayerParts
from gradus.models.rope import RotaryTable, Rotation, Rotations
from gradus.models.source import Ignored, Source

LAYER, ATTENTION = "model.layers.{}", "model.layers.{}.self_attn"
Q, K, V = (f"{ATTENTION}.{name}_proj" for name in "qkv")
WEIGHTS: dict[str, Source] = {
    "embedding.weight": "model.embed_tokens.weight",
    "layer_embedding.weight": "model.embed_tokens_per_layer.weight",
    "embed_in.weight": "model.per_layer_model_projection.weight",
    "inputs_norm.weight": "model.per_layer_projection_norm.weight",
    "layers.{}.attention_norm.weight": f"{LAYER}.input_layernorm.weight",
    "layers.{}.qkv.weight": (f"{Q}.weight", f"{K}.weight", f"{V}.weight"),
    "layers.{}.qkv.bias": (f"{Q}.bias", f"{K}.bias", f"{V}.bias"),
    "layers.{}.heads.q_norm.weight": f"{ATTENTION}.q_norm.weight",
    "layers.{}.heads.k_norm.weight": f"{ATTENTION}.k_norm.weight",
    "layers.{}.output.weight": f"{ATTENTION}.o_proj.weight",
    "layers.{}.output.bias": f"{ATTENTION}.o_proj.bias",
    "layers.{}.attention_out_norm.weight": f"{LAYER}.post_attention_layernorm.weight",
    "layers.{}.mlp_norm.weight": f"{LAYER}.pre_feedforward_layernorm.weight",
    "layers.{}.gate_up.weight": (f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight"),
    "layers.{}.down.weight": f"{LAYER}.mlp.down_proj.weight",
    "layers.{}.mlp_out_norm.weight": f"{LAYER}.post_feedforward_layernorm.weight",
    "layers.{}.embedded.gate.weight": f"{LAYER}.per_layer_input_gate.weight",
    "layers.{}.embedded.out.weight": f"{LAYER}.per_layer_projection.weight",
    "layers.{}.embedded.norm.weight": f"{LAYER}.post_per_layer_input_norm.weight",
    "layers.{}.scale": f"{LAYER}.layer_scalar",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


class Embedded(nn.Module):
    """What a layer makes of its own embedding of each token: P features, the stream's, as far as the embedding lets them
    pass."""

    def __init__(
        self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.per_layer_width
        self.gate = linear(MatrixId("embed_gate", index), hidden, (width,), False, dtype, device)
        self.activation = Activation(config.activation)
        self.out = linear(MatrixId("embed_out", index), width, (hidden,), False, dtype, device)
        self.norm = RMSNorm(hidden, config.norm_eps, dtype, device)

    def forward(self, x: Tensor, inputs: Tensor, scale: Tensor | None) -> Tensor:
        features = self.gate.after(None, x, self.activation) * inputs  # [N, D] → [N, P]
        return self.norm.onto(x, self.out(features), scale)


class Block(nn.Module):
    """One layer: attention, an MLP, and the layer's own embedding of the token. All normalize what they add."""

    def __init__(
        self, whole: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        config = whole.layer(index)
        hidden, eps, bias = config.hidden_size, config.norm_eps, config.attention_bias
        q_norm, k_norm, *norms = (
            RMSNorm(width, eps, dtype, device) for width in [config.head_dim] * 2 + [hidden] * 4
        )
        self.attention_norm, self.attention_out_norm, self.mlp_norm, self.mlp_out_norm = norms
        self.qkv = linear(MatrixId("qkv", index), hidden, whole.qkv_parts(index), bias, dtype, device)
        self.heads = Heads(whole, index, q_norm, k_norm if whole.stores_kv(index) else None)
        self.output = linear(
            MatrixId("attn_out", index), config.q_width, (hidden,), config.attention_output_bias, dtype, device
        )
        self.gate_up = linear(MatrixId("gate_up", index), hidden, config.up_widths, False, dtype, device)
        self.gate = Gated(config.activation)
        self.down = linear(MatrixId("down", index), config.intermediate_size, (hidden,), False, dtype, device)
        self.embedded = Embedded(config, index, linear, dtype, device) if config.per_layer_width else None
        self.scale = parameter((1,), dtype, device)

    def forward(self, x: Tensor, inputs: Tensor | None, rotation: Rotation | None, attention: Attention) -> Tensor:
        qkv = self.qkv.after(self.attention_norm, x)  # [N, (Hq + Hkv + Hkv) Dh]
        x = self.attention_out_norm.onto(x, self.output(self.heads(qkv.to(x.dtype), rotation, attention)))
        features = self.gate_up.after(self.mlp_norm, x, self.gate)  # [N, 2 F] → [N, F]
        if self.embedded is None or inputs is None:
            return self.mlp_out_norm.onto(x, self.down(features), self.scale)
        x = self.mlp_out_norm.onto(x, self.down(features))
        return self.embedded(x, inputs, self.scale)

    def parts(self, rope: RotaryTable | None) -> LayerParts:
        attention = self.attention_norm, self.qkv, self.heads, self.output
        mlp = self.mlp_norm, self.gate_up, self.gate, self.down
        own = self.embedded
        embedded = None if own is None else EmbeddedParts(own.gate, own.activation, own.out, own.norm)
        return LayerParts(
            rope, *attention, *mlp, self.attention_out_norm, self.mlp_out_norm, embedded=embedded, scale=self.scale
        )


class Gemma4(Model):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    renamed = (("model.language_model.", "model."),)  # the multimodal checkpoints' names for the text part
    ignored = (
        *Model.ignored,
        Ignored(r"^(model\.)?(vision_tower|vision_embedder|embed_vision|audio_tower|embed_audio)\."),
    )

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.config = config
        head = linear(MatrixId("head", None), config.hidden_size, (config.vocab_size,), False, dtype, device)
        table = config.vocab_size, config.hidden_size, dtype, device
        tied, packed = (head, None) if config.tie_embeddings else (None, packed_table(linear, *table))
        self.embedding = Embedding(*table, shared=tied, table=packed)
        # Both factors are rounded to the weights' type, as in training: see gemma3.py.
        self.embedding_scale = _rounded(config.embedding_scale, self.embedding)
        if config.per_layer_width:
            self._add_inputs(config, linear, dtype, device)
        self.rotations = Rotations(config, dtype, device)
        self.layers = nn.ModuleList(Block(config, index, linear, dtype, device) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, dtype, device)
        self.head = head
        without = "|".join(str(layer) for layer in range(config.num_layers) if not config.stores_kv(layer))
        if without:  # published files hold keys' and values' matrices of these layers too
            unused = Ignored(rf"^model\.layers\.({without})\.self_attn\.(k_proj|v_proj|k_norm)\.")
            self.ignored = (*type(self).ignored, unused)

    def _add_inputs(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        """Add what makes every layer's own embedding of a token."""
        hidden, width = config.hidden_size, config.per_layer_width
        every = config.num_layers * width
        table = config.vocab_size, every, dtype, device
        packed = packed_table(linear, *table, path="layer_embedding.weight")
        self.layer_embedding = Embedding(*table, table=packed)
        self.layer_embedding_scale = _rounded(width**0.5, self.layer_embedding)
        self.embed_in = linear(MatrixId("embed_in", None), hidden, (every,), False, dtype, device)
        # The product is divided by sqrt(D) before its norm, which sees that in its eps alone.
        self.inputs_norm = RMSNorm(width, config.norm_eps * hidden, dtype, device)

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(token_ids) * self.embedding_scale
        width = self.config.per_layer_width
        if not width:
            return x
        seen = self.inputs_norm(self.embed_in(x).to(x.dtype).unflatten(1, (-1, width)))  # [N, L P] → [N, L, P]
        own = self.layer_embedding(token_ids) * self.layer_embedding_scale
        return torch.cat((x, (seen.flatten(1) + own) * 0.5**0.5), dim=1)

    def embedding_tables(self) -> EmbeddingTables:
        return EmbeddingTables(self.embedding.floats(), scale=self.embedding_scale)

    def run_layers(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        inputs: Sequence[Tensor | None] = [None] * len(self.layers)
        if width := self.config.per_layer_width:
            x, own = x.split_with_sizes((self.config.hidden_size, len(self.layers) * width), dim=1)
            x, inputs = x.contiguous(), own.split(width, dim=1)
        for layer, mine, rotation in zip(self.layers, inputs, self.rotations(positions), strict=True):
            x = layer(x, mine, rotation, attention)
        return x

    def parts(self) -> list[LayerParts]:
        return [cast(Block, layer).parts(self.rotations.table(number)) for number, layer in enumerate(self.layers)]


def _rounded(factor: float, table: Embedding) -> float:
    return torch.tensor(factor, dtype=table.table_dtype).item()
