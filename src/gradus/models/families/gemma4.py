"""Gemma 4's dense text models (Gemma Team 2026): 12B and 31B, and E2B and E4B, whose layers have their own embeddings.

Most layers see only a window back, and attention and MLP normalize what they read and add, as in Gemma 3. But a long
context costs less. In 12B and 31B, layers that see everything have fewer key-value heads, twice as wide, and their
values are their keys before norm and rotation. In E2B and E4B, the last layers attend to the keys and values of an
earlier layer of their kind. Only a quarter of each wide head turns, and all values are normalized.

Shapes: N tokens, D hidden_size, L layers, P per_layer_width; and of each layer Hq query heads, Hkv key-value heads, Dh
head_dim, F intermediate_size.
"""

from typing import cast

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.embedded import Embedded, LayerInputs
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
    parameter,
)
from gradus.models.parts import LayerParts
from gradus.models.rope import RotaryTable, Rotation, Rotations
from gradus.models.source import Ignored, Source

LAYER, ATTENTION = "model.layers.{}", "model.layers.{}.self_attn"
Q, K, V = (f"{ATTENTION}.{name}_proj" for name in "qkv")  # of a layer that has them all
WEIGHTS: dict[str, Source] = {
    "embedding.weight": "model.embed_tokens.weight",
    "inputs.embedding.weight": "model.embed_tokens_per_layer.weight",
    "inputs.product.weight": "model.per_layer_model_projection.weight",
    "inputs.norm.weight": "model.per_layer_projection_norm.weight",
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


class Block(nn.Module):
    """One layer: attention, an MLP, and in E2B and E4B the layer's own embedding of the token."""

    def __init__(
        self, whole: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        config = whole.layer(index)
        hidden, bias = config.hidden_size, (config.attention_bias, config.attention_output_bias)

        def norm(width: int) -> RMSNorm:
            return RMSNorm(width, config.norm_eps, dtype, device)

        self.attention_norm, self.attention_out_norm = norm(hidden), norm(hidden)
        self.qkv = linear(MatrixId("qkv", index), hidden, whole.qkv_parts(index), bias[0], dtype, device)
        k_norm = norm(config.head_dim) if whole.stores_kv(index) else None
        self.heads = Heads(whole, index, norm(config.head_dim), k_norm)
        self.output = linear(MatrixId("attn_out", index), config.q_width, (hidden,), bias[1], dtype, device)
        self.mlp_norm, self.mlp_out_norm = norm(hidden), norm(hidden)
        self.gate_up = linear(MatrixId("gate_up", index), hidden, config.up_widths, False, dtype, device)
        self.gate = Gated(config.activation)
        self.down = linear(MatrixId("down", index), config.intermediate_size, (hidden,), False, dtype, device)
        self.embedded = Embedded(config, index, linear, dtype, device) if config.per_layer_width else None
        self.scale = parameter((1,), dtype, device)

    def forward(self, x: Tensor, inputs: Tensor | None, rotation: Rotation | None, attention: Attention) -> Tensor:
        qkv = self.qkv.after(self.attention_norm, x)  # [N, (Hq + Hkv + Hkv) Dh], or [N, Hq Dh]
        x = self.attention_out_norm.onto(x, self.output(self.heads(qkv.to(x.dtype), rotation, attention)))
        features = self.gate_up.after(self.mlp_norm, x, self.gate)  # [N, 2 F] → [N, F]
        if self.embedded is None or inputs is None:
            return self.mlp_out_norm.onto(x, self.down(features), self.scale)
        x = self.mlp_out_norm.onto(x, self.down(features))
        return self.embedded(x, inputs, self.scale)

    def parts(self, rope: RotaryTable | None) -> LayerParts:
        attention = self.attention_norm, self.qkv, self.heads, self.output
        mlp = self.mlp_norm, self.gate_up, self.gate, self.down
        embedded = None if self.embedded is None else self.embedded.parts()
        return LayerParts(rope, *attention, *mlp, self.attention_out_norm, self.mlp_out_norm, embedded, self.scale)


class Gemma4(Model):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    renamed = (("model.language_model.", "model."),)  # the multimodal checkpoints' names for the text part
    ignored = (*Model.ignored, Ignored(r"^(model\.)?(vision_(tower|embedder)|audio_tower|embed_(vision|audio))\."))

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
        self.inputs = LayerInputs(config, linear, dtype, device) if config.per_layer_width else None
        self.rotations = Rotations(config, dtype, device)
        self.layers = nn.ModuleList(Block(config, index, linear, dtype, device) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, dtype, device)
        self.head = head
        if without := [str(layer) for layer in range(config.num_layers) if not config.stores_kv(layer)]:
            # published files have matrices of keys and values for these layers too, which nothing reads
            unread = rf"^model\.layers\.({'|'.join(without)})\.self_attn\.(k_proj|v_proj|k_norm)\."
            self.ignored = (*type(self).ignored, Ignored(unread))

    @property
    def token_tables(self) -> tuple[str, ...]:
        return ("embedding",) if self.inputs is None else ("embedding", "inputs.embedding")

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(token_ids) * self.embedding_scale
        return x if self.inputs is None else torch.cat((x, self.inputs(token_ids, x)), dim=1)  # [N, D + L P]

    def embedding_tables(self) -> EmbeddingTables:
        return EmbeddingTables(self.embedding.floats(), scale=self.embedding_scale)

    def run_layers(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        x, inputs = (x, [None] * len(self.layers)) if self.inputs is None else self.inputs.apart(x)
        for layer, mine, rotation in zip(self.layers, inputs, self.rotations(positions), strict=True):
            x = layer(x, mine, rotation, attention)
        return x

    def parts(self) -> list[LayerParts]:
        return [cast(Block, layer).parts(self.rotations.table(number)) for number, layer in enumerate(self.layers)]
