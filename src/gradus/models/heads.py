"""Attention between the qkv product and the output product: cut rows into heads, rotate queries and keys, attend."""

from torch import Tensor, cat, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.layers import RMSNorm
from gradus.models.rope import Rotation, rotate


class Heads(nn.Module):
    """One layer's attention, from the qkv product's rows to the heads' results.

    q_norm, k_norm: normalize each query and key head separately before it is rotated (Qwen3, Gemma 3).
    """

    def __init__(
        self, config: ModelConfig, layer: int, q_norm: RMSNorm | None = None, k_norm: RMSNorm | None = None
    ) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.q_norm, self.k_norm = q_norm, k_norm

    def forward(self, qkv: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        """qkv: [N, (Hq + Hkv + Hkv) Dh]. rotation: None where positions were added at the start (GPT-2).

        Returns [N, Hq Dh], the heads side by side again.
        """
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        qk, v = heads.split_with_sizes((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split_with_sizes((self.num_heads, self.num_kv_heads), dim=1)
            qk = cat((self.q_norm(q), self.k_norm(k)), dim=1)
        if rotation is not None:
            qk = rotate(qk, rotation)  # values carry no position
        q, k = qk.split_with_sizes((self.num_heads, self.num_kv_heads), dim=1)
        return attention.attend(self.layer, q, k, v).flatten(1)
