"""Granite 3 (Granite Team 2024) and the dense models of Granite 4: Llama with four multipliers.

The embedding, the scores, what each half of a layer adds, and the logits are multiplied by numbers of the configuration
(μP, Yang et al. 2022), so that one training recipe fits every size. The scores' is the attention's scale. The others
cost nothing either: the residual stream is kept divided by its multiplier (`ModelConfig.stream_eps`), and the logits'
is part of the final norm's weight.
"""

import torch
from torch import Tensor

from gradus.models.config import ModelConfig
from gradus.models.families import llama
from gradus.models.layers import EmbeddingTables, LinearFactory
from gradus.models.source import Scaled, Source

HYBRID_WEIGHTS: dict[str, Source] = llama.WEIGHTS | {
    "layers.{}.gate_up.weight": "model.layers.{}.shared_mlp.input_linear.weight",
    "layers.{}.down.weight": "model.layers.{}.shared_mlp.output_linear.weight",
}


class Granite(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__(config, linear, dtype, device)
        self.embedding_scale = config.embedding_scale / config.residual_scale
        self.weights = {**type(self).weights, "norm.weight": Scaled("model.norm.weight", config.logit_scale)}

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return self.embedding(token_ids) * self.embedding_scale

    def embedding_tables(self) -> EmbeddingTables:
        return EmbeddingTables(self.embedding.floats(), scale=self.embedding_scale)


class GraniteHybrid(Granite):
    """Granite 4's own names for the same dense layers, which some of its models mix with others."""

    weights = HYBRID_WEIGHTS
