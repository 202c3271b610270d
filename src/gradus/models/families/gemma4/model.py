"""Gemma 4's models: embed, layers, logits.

Shapes: N tokens, D hidden_size, L layers, P per_layer_width, V vocabulary.
"""

from typing import cast

import torch
from torch import Tensor, nn

from gradus.models.attention import Attention
from gradus.models.config import ModelConfig
from gradus.models.embedded import LayerInputs
from gradus.models.families.gemma4.block import Block, MixedBlock
from gradus.models.families.gemma4.names import WEIGHTS, weights_of
from gradus.models.layers import Embedding, EmbeddingTables, LinearFactory, MatrixId, Model, RMSNorm, packed_table
from gradus.models.parts import LayerParts
from gradus.models.rope import Rotations
from gradus.models.source import Ignored


class Gemma4(Model):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    renamed = (("model.language_model.", "model."),)  # the multimodal checkpoints' names for the text part
    ignored = (*Model.ignored, Ignored(r"^(model\.)?(vision_(tower|embedder)|audio_tower|embed_(vision|audio))\."))

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.config = config
        head = linear(MatrixId("head", None), config.hidden_size, (config.vocab_size,), False, dtype, device)
        table = config.vocab_size, config.hidden_size, dtype, device
        tied, packed = (head, None) if config.tie_embeddings else (None, packed_table(linear, *table))
        self.embedding = Embedding(*table, shared=tied, table=packed)
        self.embedding_scale = self.embedding.rounded(config.embedding_scale)
        self.inputs = LayerInputs(config, linear, dtype, device) if config.per_layer_width else None
        self.rotations = Rotations(config, dtype, device)
        blocks = [Block if config.experts_at(layer) is None else MixedBlock for layer in range(config.num_layers)]
        self.layers = nn.ModuleList(kind(config, layer, linear, dtype, device) for layer, kind in enumerate(blocks))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, dtype, device)
        self.head = head
        self.weights = weights_of(config)
        if without := [str(layer) for layer in range(config.num_layers) if not config.stores_kv(layer)]:
            # published files have matrices of keys and values for these layers too, which nothing reads
            unread = rf"^model\.layers\.({'|'.join(without)})\.self_attn\.(k_proj|v_proj|k_norm)\."
            self.ignored = (*type(self).ignored, Ignored(unread))

    @property
    def token_tables(self) -> tuple[str, ...]:
        return ("embedding",) if self.inputs is None else ("embedding", "inputs.embedding")

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(token_ids) * self.embedding_scale
        return x if self.inputs is None else torch.cat((x, self.inputs(token_ids, x)), dim=1)  # [N, D + L P]

    def embedding_tables(self) -> EmbeddingTables:
        return EmbeddingTables(self.embedding.floats(), scale=self.embedding_scale)

    def run_layers(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        x, inputs = (x, [None] * len(self.layers)) if self.inputs is None else self.inputs.apart(x)
        for layer, mine, rotation in zip(self.layers, inputs, self.rotations(positions), strict=True):
            x = layer(x, mine, rotation, attention)
        return x

    def parts(self) -> list[LayerParts]:
        return [cast(Block, layer).parts(self.rotations.table(number)) for number, layer in enumerate(self.layers)]
