"""Attention over one whole sequence that is read in one step: each token sees those before it, and nothing is kept.

For looking at a model without an engine: its statistics, its divergence from another.
"""

from torch import Tensor

from gradus.attention.reference import attend_causal
from gradus.models.config import ModelConfig


class WholeSequence:
    """An attention backend for a model's forward pass, `gradus.models.attention.Attention`."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_causal(
            q, k.transpose(0, 1), v.transpose(0, 1), start=0, scale=self.config.attention_scale,
            window=self.config.windows[layer], softcap=self.config.attention_softcap,
        )  # fmt: skip
