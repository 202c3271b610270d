"""Attention between the qkv product and the output product: cut rows into heads, rotate queries and keys, attend."""

from torch import Tensor, cat, nn
from torch.nn import functional as F

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.layers import RMSNorm
from gradus.models.rope import Rotation, rotate


class Heads(nn.Module):
    """One layer's attention, from the qkv product's rows to the heads' results.

    source: the layer whose keys and values it attends to. stores: whether that is itself; if not, the rows hold queries
    alone. q_norm, k_norm: normalize each query and key head separately before it is rotated (Qwen3, Gemma), or all of a
    token's query heads together, and all its key heads (across_heads: OLMo). value_eps: of the norm of each value head,
    which has no weights (Gemma 4); None: no norm. sinks: float32 [Hq], one more logit of each query head, without a
    value (gpt-oss); None: the weights of the keys add up to one.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        sinks: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        sizes = config.layer(layer)
        self.layer, self.source, self.stores = layer, config.kv_source(layer), config.stores_kv(layer)
        self.head_dim, self.num_heads, self.num_kv_heads = sizes.head_dim, sizes.num_heads, sizes.num_kv_heads
        self.q_norm, self.k_norm, self.across_heads = q_norm, k_norm, config.qk_norm_across_heads
        self.value_eps = config.norm_eps if config.value_norm else None
        self.sinks = sinks

    def forward(self, qkv: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        """qkv: [N, (Hq + Hkv + Hkv) Dh], or [N, Hq Dh] of a layer that stores nothing. rotation: None does not turn.

        Returns [N, Hq Dh], the heads side by side again.
        """
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        if not self.stores:
            q = heads if self.q_norm is None else self._normalized(self.q_norm, heads)
            q = q if rotation is None else _grown(rotate(q, rotation), rotation)
            return self._attended(attention, q, None, None)
        qk, v = heads.split_with_sizes((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split_with_sizes((self.num_heads, self.num_kv_heads), dim=1)
            qk = cat((self._normalized(self.q_norm, q), self._normalized(self.k_norm, k)), dim=1)
        if self.value_eps is not None:
            v = F.rms_norm(v.float(), (self.head_dim,), None, self.value_eps).to(v.dtype)
        if rotation is not None:
            qk = rotate(qk, rotation)  # values carry no position
        q, k = qk.split_with_sizes((self.num_heads, self.num_kv_heads), dim=1)
        if rotation is not None:
            q = _grown(q, rotation)
        return self._attended(attention, q, k, v)

    def _attended(self, attention: Attention, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        if self.sinks is None:
            return attention.attend(self.layer, q, k, v).flatten(1)
        return attention.attend(self.layer, q, k, v, self.sinks).flatten(1)

    def _normalized(self, norm: RMSNorm, heads: Tensor) -> Tensor:
        """[N, H, Dh] → the same, normalized by the head or by the token."""
        return norm(heads.flatten(1)).view_as(heads) if self.across_heads else norm(heads)


def _grown(q: Tensor, rotation: Rotation) -> Tensor:
    return q if rotation.growth is None else q * rotation.growth
