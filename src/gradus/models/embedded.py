"""Embeddings of each layer (Gemma 3n, Gemma 4 E2B and E4B): every token is looked up a second time, for all layers.

The second table has P values for each of L layers. They are added to as many that are computed from the token's row,
and come to the layers behind it. A layer's own P values decide how much of P features of the stream passes. A lookup is
no product, so this table can be far larger than all that a step multiplies with.
"""

import torch
from torch import Tensor, nn

from gradus.models.config import ModelConfig
from gradus.models.layers import Activation, Embedding, Linear, LinearFactory, MatrixId, RMSNorm, packed_table
from gradus.models.parts import EmbeddedParts

TABLE = "inputs.embedding.weight"  # the path of the second table in a family's table of weights
BOTH = 0.5**0.5  # of the sum of two values that vary alike


class LayerInputs(nn.Module):
    """Makes every layer's inputs from a token. A model calls it `inputs`."""

    def __init__(
        self, config: ModelConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        hidden, self.width = config.hidden_size, config.per_layer_width
        every = config.num_layers * self.width
        table = config.vocab_size, every, dtype, device
        self.embedding = Embedding(*table, table=packed_table(linear, *table, path=TABLE))
        self.scale = self.embedding.rounded(self.width**0.5)
        self.product = linear(MatrixId("embed_in", None), hidden, (every,), False, dtype, device)
        # The product is divided by sqrt(D) before it is normalized, and a norm sees that in its eps alone.
        self.norm = RMSNorm(self.width, config.norm_eps * hidden, dtype, device)

    def forward(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """[N], [N, D] → [N, L P]."""
        computed = self.norm(self.product(x).to(x.dtype).unflatten(1, (-1, self.width))).flatten(1)
        return (computed + self.embedding(token_ids) * self.scale) * BOTH

    def apart(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What `Model.embed` returns, [N, D + L P] → the stream [N, D], and each layer's inputs [N, P]."""
        hidden = self.product.in_features
        return x[:, :hidden].contiguous(), [*x[:, hidden:].split(self.width, dim=1)]


class Embedded(nn.Module):
    """Adds to the stream what a layer's own embedding of each token lets pass."""

    def __init__(
        self, config: ModelConfig, index: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.per_layer_width
        self.gate: Linear = linear(MatrixId("embed_gate", index), hidden, (width,), False, dtype, device)
        self.activation = Activation(config.activation)
        self.out: Linear = linear(MatrixId("embed_out", index), width, (hidden,), False, dtype, device)
        self.norm = RMSNorm(hidden, config.norm_eps, dtype, device)

    def forward(self, x: Tensor, inputs: Tensor, scale: Tensor | None) -> Tensor:
        """x: [N, D], the stream, to which the result is added. inputs: [N, P]. scale: [1], of the sum."""
        features = self.activation.times(self.gate(x), inputs)
        return self.norm.onto(x, self.out(features), scale)

    def parts(self) -> EmbeddedParts:
        return EmbeddedParts(self.gate, self.activation, self.out, self.norm)
