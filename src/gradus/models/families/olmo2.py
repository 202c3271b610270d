"""OLMo 2 (OLMo Team 2024) and OLMo 3: Llama with its norms behind attention and the MLP instead of before them.

Products read the residual stream as it is, and what they return is normalized before it is added, which kept training
stable. Queries and keys are normalized too, each over all heads of a token at once. OLMo 3 gives three of four layers a
window.

Shapes: N tokens, D hidden_size, Hq query heads, Hkv key-value heads, Dh head_dim, F intermediate_size, V vocabulary.
"""

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.families import llama
from gradus.models.heads import Heads
from gradus.models.layers import Gated, LinearFactory, MatrixId, RMSNorm
from gradus.models.parts import LayerParts
from gradus.models.rope import RotaryTable, Rotation
from gradus.models.source import Source

BEFORE = ("layers.{}.attention_norm.weight", "layers.{}.mlp_norm.weight")
WEIGHTS: dict[str, Source] = {name: source for name, source in llama.WEIGHTS.items() if name not in BEFORE} | {
    "layers.{}.heads.q_norm.weight": "model.layers.{}.self_attn.q_norm.weight",
    "layers.{}.heads.k_norm.weight": "model.layers.{}.self_attn.k_norm.weight",
    "layers.{}.attention_out_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    "layers.{}.mlp_out_norm.weight": "model.layers.{}.post_feedforward_layernorm.weight",
}


class Block(nn.Module):
    """One layer: attention, then an MLP. Both read the stream as it is, and normalize the output that they add."""

    def __init__(
        self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        hidden, q_width, width, eps = config.hidden_size, config.q_width, config.intermediate_size, config.norm_eps
        bias = config.attention_bias, config.attention_output_bias, config.mlp_bias

        self.qkv = linear(MatrixId("qkv", index), hidden, config.qkv_widths, bias[0], dtype, device)
        q_norm, k_norm = (RMSNorm(each, eps, dtype, device) for each in (q_width, config.kv_width))
        self.heads = Heads(config, index, q_norm, k_norm)
        self.output = linear(MatrixId("attn_out", index), q_width, (hidden,), bias[1], dtype, device)
        self.attention_out_norm = RMSNorm(hidden, eps, dtype, device)
        self.gate_up = linear(MatrixId("gate_up", index), hidden, config.up_widths, bias[2], dtype, device)
        self.gate = Gated(config.activation)
        self.down = linear(MatrixId("down", index), width, (hidden,), bias[2], dtype, device)
        self.mlp_out_norm = RMSNorm(hidden, eps, dtype, device)

    def forward(self, x: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        qkv = self.qkv.after(None, x)  # [N, (Hq + Hkv + Hkv) Dh]
        x = self.attention_out_norm.onto(x, self.output(self.heads(qkv.to(x.dtype), rotation, attention)))
        features = self.gate_up.after(None, x, self.gate)  # [N, D] → [N, F]
        return self.mlp_out_norm.onto(x, self.down(features))

    def parts(self, rope: RotaryTable | None) -> LayerParts:
        attention, mlp = (None, self.qkv, self.heads, self.output), (None, self.gate_up, self.gate, self.down)
        return LayerParts(rope, *attention, *mlp, self.attention_out_norm, self.mlp_out_norm)


class Olmo2(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    block = Block
