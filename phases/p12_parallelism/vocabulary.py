"""The two largest matrices, cut by tokens: the table that embeds them, and the head that scores them.

Each rank has vocab_size / parts rows. The last one may have fewer.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.models.layers import Embedding, Linear
from phases.p12_parallelism.exchange import Exchange
from phases.p12_parallelism.linear import all_reduce


def tokens_of(vocab_size: int, part: int, parts: int) -> slice:
    """The tokens whose rows a part has."""
    each = -(-vocab_size // parts)  # rounded up
    return slice(part * each, min((part + 1) * each, vocab_size))


class EmbeddingPart(Embedding):
    """A token's row is on one rank; the others add zeros to it. [N] ids → [N, D] on every rank.

    whole: the embedding that is cut. tied: this rank's head, if it is the same matrix; a rank with both keeps it once.
    """

    def __init__(self, whole: Embedding, tokens: slice, exchange: Exchange, tied: Linear | None = None) -> None:
        mine = whole.weight[tokens]
        super().__init__(len(mine), mine.shape[1], whole.dtype, mine.device, shared=tied)
        self.weight.copy_(mine)
        self.first, self.exchange = tokens.start, exchange

    def forward(self, ids: Tensor) -> Tensor:
        rows = ids - self.first
        mine = (rows >= 0) & (rows < len(self.weight))
        found = F.embedding(rows.where(mine, 0), self.weight).to(self.dtype)
        return all_reduce(self.exchange, found.where(mine[:, None], 0.0))


class HeadPart(Linear):
    """Each rank scores its own tokens, and all get all scores, so that each can draw. [R, D] → [R, V].

    whole: the head that is cut. gathers: whether scores are exchanged; if not, the result is [R, V'], of this rank's
    V' tokens.
    """

    def __init__(self, whole: Linear, tokens: slice, exchange: Exchange, gathers: bool = True) -> None:
        weight = whole.weight[tokens]
        super().__init__(whole.matrix_id, weight.shape[1], (len(weight),), False, weight.dtype, weight.device)
        self.weight.copy_(weight)
        (self.tokens,), self.exchange, self.gathers = whole.out_features, exchange, gathers

    def forward(self, x: Tensor) -> Tensor:
        scores = F.linear(x, self.weight)
        if not self.gathers:
            return scores
        missing = -(-self.tokens // self.exchange.place.parts) - len(self.weight)  # all ranks gather as many columns
        parts = self.exchange.gather(F.pad(scores, (0, missing)))
        return torch.cat(parts.unbind(), dim=-1)[:, : self.tokens]
