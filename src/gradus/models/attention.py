"""The one seam between the model and the subject of this project: how keys and values are kept and read."""

from typing import Protocol

from torch import Tensor


class Attention(Protocol):
    """All that a model knows of attention: pass this step's queries, keys and values, and get the attended values."""

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        """Store this step's keys and values of `layer`, then attend causally.

        q: [N, Hq, Dh], k and v: [N, Hkv, Dh], row i being token i of the flat batch. Both are None for a layer without
        keys and values of its own: it attends to those of `ModelConfig.kv_source(layer)`, which ran before it.
        sinks: float32 [Hq]; one more logit of each query head's softmax, whose value is nothing (gpt-oss).
        Returns [N, Hq, Dh]. Query head h reads key head h // (Hq // Hkv) (grouped-query attention).
        """
