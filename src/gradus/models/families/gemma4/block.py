"""Gemma 4's layers: one with a dense MLP, and one (26B-A4B) whose experts are next to it.

Shapes: N tokens, D hidden_size; and of each layer Hq query heads, Hkv key-value heads, Dh head_dim, F
intermediate_size.
"""

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.embedded import Embedded
from gradus.models.experts import Mixture
from gradus.models.heads import Heads
from gradus.models.layers import Gated, LinearFactory, MatrixId, RMSNorm, parameter
from gradus.models.parts import LayerParts
from gradus.models.rope import RotaryTable, Rotation


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


class MixedBlock(Block):
    """The same with experts next to the MLP. Both read and return normalized rows, and so does their sum."""

    def __init__(
        self, whole: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__(whole, index, linear, dtype, device)
        self.dense_out_norm = RMSNorm(whole.hidden_size, whole.norm_eps, dtype, device)
        self.experts = Mixture(whole, index, linear, dtype, device)

    def forward(self, x: Tensor, inputs: Tensor | None, rotation: Rotation | None, attention: Attention) -> Tensor:
        qkv = self.qkv.after(self.attention_norm, x)
        x = self.attention_out_norm.onto(x, self.output(self.heads(qkv.to(x.dtype), rotation, attention)))
        features = self.gate_up.after(self.mlp_norm, x, self.gate)  # [N, 2 F] → [N, F]
        both = self.dense_out_norm(self.down(features)) + self.experts(x, self.mlp_norm)
        if self.embedded is None or inputs is None:
            return self.mlp_out_norm.onto(x, both, self.scale)
        return self.embedded(self.mlp_out_norm.onto(x, both), inputs, self.scale)

    def parts(self, rope: RotaryTable | None) -> LayerParts:
        return super().parts(rope)._replace(experts=self.experts, dense_out_norm=self.dense_out_norm)
