"""Attention over one whole sequence that is read in one step: each token sees those before it, and nothing is kept.

For looking at a model without an engine: its statistics, its divergence from another.
"""

from torch import Tensor

from gradus.attention.reference import attend_causal
from gradus.models.config import ModelConfig
from gradus.quantization.kv import rounded


class WholeSequence:
    """An attention backend for a model's forward pass, `gradus.models.attention.Attention`.

    fp8: keys and values are what a cache in 8 bits would keep of them.
    """

    def __init__(self, config: ModelConfig, fp8: bool = False) -> None:
        self.config = config
        self.fp8 = fp8

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.fp8:
            k, v = rounded(k), rounded(v)
        return attend_causal(
            q, k.transpose(0, 1), v.transpose(0, 1), start=0, scale=self.config.attention_scale,
            window=self.config.windows[layer], softcap=self.config.attention_softcap,
        )  # fmt: skip
