"""Attention over one whole sequence in one step: each token sees those before it, and nothing is kept.

It serves to examine a model without an engine: its statistics, its divergence from another, training heads on it.
"""

import torch
from torch import Tensor

from gradus.attention.lent import Lent
from gradus.attention.reference import attend_causal, attend_masked, attend_side_by_side, causal_mask
from gradus.models.config import ModelConfig
from gradus.quantization.kv import rounded


class WholeSequence:
    """An attention backend for a model's forward pass, `gradus.models.attention.Attention`.

    fp8: round keys and values like a cache in 8 bits.
    """

    def __init__(self, config: ModelConfig, fp8: bool = False) -> None:
        self.config = config
        self.fp8 = fp8
        self._lent = Lent(config)

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if self.fp8 and k is not None and v is not None:
            k, v = rounded(k), rounded(v)
        k, v = self._lent.through(layer, k, v)
        return attend_causal(
            q, k.transpose(0, 1), v.transpose(0, 1), start=0, scale=self.config.attention_scale,
            window=self.config.windows[layer], softcap=self.config.attention_softcap, sinks=sinks,
        )  # fmt: skip


class WholeSequences:
    """Attention for many sequences: the flat batch is `count` sequences of equal length, one after the other.

    Shorter texts are padded at the end, which changes nothing before it.
    """

    def __init__(self, config: ModelConfig, count: int) -> None:
        self.config, self.count = config, count
        self._lent, self._masks = Lent(config), dict[int | None, Tensor]()

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        config, window = self.config, self.config.windows[layer]
        k, v = self._lent.through(layer, k, v)
        q, k, v = (each.unflatten(0, (self.count, -1)) for each in (q, k, v))
        length = q.shape[1]
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        if config.attention_softcap is None and sinks is None and (window is None or window >= length):
            out = attend_side_by_side(q, keys, values, scale=config.attention_scale)
        else:
            visible = self._mask(length, window, q.device)
            out = attend_masked(
                q, keys, values, visible, scale=config.attention_scale, softcap=config.attention_softcap, sinks=sinks
            )
        return out.flatten(0, 1)

    def _mask(self, length: int, window: int | None, device: torch.device) -> Tensor:
        if window not in self._masks:
            mask = causal_mask(length, length, 0, window, device)
            self._masks[window] = mask.expand(self.count, length, length)
        return self._masks[window]
