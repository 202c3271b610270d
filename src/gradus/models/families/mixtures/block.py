"""One layer of most models with experts: attention of Llama's make, then the MLP, the experts, or both.

The configuration decides whether attention is that of Llama, Qwen3, OLMo or gpt-oss, and whether a layer has a dense
MLP, a mixture of experts, or a mixture next to a dense MLP that all tokens share. So the families differ in their
checkpoints' names alone.

Shapes: N tokens, D hidden_size, Hq query heads, Hkv key-value heads, Dh head_dim, F features of the dense MLP.
"""

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.experts import Mixture
from gradus.models.heads import Heads
from gradus.models.layers import LinearFactory, MatrixId, RMSNorm, gated, parameter
from gradus.models.parts import LayerParts
from gradus.models.rope import RotaryTable, Rotation


class Block(nn.Module):
    """One layer: attention, then the dense MLP, or the experts, or the sum of both."""

    def __init__(
        self, whole: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        config = whole.layer(index)
        hidden, width, eps = config.hidden_size, config.intermediate_size, config.stream_eps
        bias = config.attention_bias, config.attention_output_bias, config.mlp_bias

        self.attention_norm, self.mlp_norm = (RMSNorm(hidden, eps, dtype, device) for _ in ("attention", "mlp"))
        self.qkv = linear(MatrixId("qkv", index), hidden, config.qkv_widths, bias[0], dtype, device)
        sinks = parameter((config.num_heads,), torch.float32, device) if config.attention_sinks else None
        q_norm, k_norm = self._head_norms(config, dtype, device)
        self.heads = Heads(whole, index, q_norm, k_norm, sinks)
        self.output = linear(MatrixId("attn_out", index), config.q_width, (hidden,), bias[1], dtype, device)
        self.gate_up = self.down = self.experts = self.shared_gate = None
        if width:
            self.gate_up = linear(MatrixId("gate_up", index), hidden, config.up_widths, bias[2], dtype, device)
            self.down = linear(MatrixId("down", index), width, (hidden,), bias[2], dtype, device)
        self.gate = gated(config.activation)
        if whole.experts_at(index) is not None:
            self.experts = Mixture(whole, index, linear, dtype, device)
            if whole.shared_gate:
                self.shared_gate = linear(MatrixId("shared_gate", index), hidden, (1,), False, dtype, device)

    @staticmethod
    def _head_norms(
        config: ModelConfig, dtype: torch.dtype, device: torch.device | str
    ) -> tuple[RMSNorm, RMSNorm] | tuple[None, None]:
        if not (config.qk_norm or config.qk_norm_across_heads):
            return None, None
        across = config.qk_norm_across_heads
        widths = (config.q_width, config.kv_width) if across else (config.head_dim, config.head_dim)
        q_norm, k_norm = (RMSNorm(width, config.norm_eps, dtype, device) for width in widths)
        return q_norm, k_norm

    def forward(self, x: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        qkv = self.qkv.after(self.attention_norm, x)  # [N, (Hq + Hkv + Hkv) Dh]
        x = self.output.onto(x, self.heads(qkv.to(x.dtype), rotation, attention))  # [N, Hq Dh] → [N, D]
        features = None if self.gate_up is None else self.gate_up.after(self.mlp_norm, x, self.gate)  # [N, F]
        if features is not None and self.shared_gate is not None:
            features = features * torch.sigmoid(self.shared_gate.after(self.mlp_norm, x))
        if self.experts is not None:
            x = self.experts.onto(x, self.mlp_norm)
        return x if features is None or self.down is None else self.down.onto(x, features)

    def parts(self, rope: RotaryTable | None) -> LayerParts:
        attention = self.attention_norm, self.qkv, self.heads, self.output
        mlp = self.mlp_norm, self.gate_up, self.gate, self.down
        return LayerParts(rope, *attention, *mlp, experts=self.experts, shared_gate=self.shared_gate)
