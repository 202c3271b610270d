"""Layers divided among the ranks.

A product that reads the residual stream is cut by rows: each rank computes its own heads or features, and nothing is
exchanged. The product after it is cut by columns, so each rank's result is a summand. That makes two sums per layer.
The head is cut by rows of the vocabulary, and its logits are joined. With tied weights the embedding has the same rows:
each rank looks up its own tokens, and the sum is exact, because all other summands are zero. A norm that all heads of a
token share (OLMo) takes the ranks' sums of squares. Experts are not cut: each rank has some of them, and all have the
router. A token's result is then a sum over ranks as well.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.models.experts import Mixture
from gradus.models.layers import Embedding, Linear, MatrixId, Model, RMSNorm
from gradus.parallel.group import Group


class SummedLinear(Linear):
    """A product cut by columns: ranks multiply their features and sum the results. [N, in / size] → [N, out].

    carried: a summand of the rank's experts, for the next product to take along.
    """

    group: Group
    carried: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        out = self.group.sum(self.with_carried(F.linear(x, self.weight)))
        return out if self.bias is None else out + self.bias  # once, not once per rank

    def with_carried(self, summand: Tensor) -> Tensor:
        carried, self.carried = self.carried, None
        return summand if carried is None else summand + carried


class SummedMixture(Mixture):
    """The rank's experts: those of a token that other ranks have are their summands.

    beside: the second product of the MLP next to the experts, which adds this summand to its own, so that both are
    exchanged at once; None where there is none, or where a norm comes between.
    """

    group: Group
    beside: SummedLinear | None = None

    def __init__(self, part: Mixture, group: Group) -> None:
        torch.nn.Module.__init__(self)
        vars(self).update(vars(part))
        self.group = group

    def total(self, x: Tensor, norm: torch.nn.Module | None) -> Tensor:
        return self.group.sum(super().total(x, norm))

    def onto(self, stream: Tensor, norm: torch.nn.Module | None) -> Tensor:
        if self.beside is None:
            return super().onto(stream, norm)
        self.beside.carried = super().total(stream, norm)
        return stream


def meet_neighbors(part: Model) -> None:
    """Let each layer's experts know the product `beside` them, in this model or this view of one."""
    for layer in part.modules():
        experts, down = getattr(layer, "experts", None), getattr(layer, "down", None)
        if isinstance(experts, SummedMixture) and experts.out_norm is None and isinstance(down, SummedLinear):
            vars(experts)["beside"] = down  # a neighbor, and no part of the experts' module


class JoinedLinear(Linear):
    """The head, cut by rows: every rank computes its tokens' logits and gathers the others'. [N, D] → [N, V].

    columns: the size of the whole vocabulary; the last rank's rows beyond it are padding.
    """

    group: Group
    columns: int

    def forward(self, x: Tensor) -> Tensor:
        parts = self.group.gather(F.linear(x, self.weight, self.bias))
        return parts.movedim(0, 1).flatten(1)[:, : self.columns].contiguous()


class SummedEmbedding(Embedding):
    """A table cut by rows: `first` is the token of this rank's first row. [N] ids → [N, D]."""

    def __init__(self, part: Embedding, first: int, group: Group) -> None:
        torch.nn.Module.__init__(self)
        self.dtype, self.weight, self.first, self.group = part.dtype, part.weight, first, group

    def forward(self, ids: Tensor) -> Tensor:
        rows = ids - self.first
        mine = (rows >= 0) & (rows < self.weight.shape[0])
        found = F.embedding(rows.where(mine, 0), self.weight).to(self.dtype)
        return self.group.sum(found.where(mine[:, None], 0.0))


class SummedNorm(RMSNorm):
    """The rank's part of a norm over all heads of a token. [N, part] → [N, part].

    width: of all heads. copies: ranks that hold the same heads, which are counted once.
    """

    def __init__(self, part: RMSNorm, width: int, copies: int, group: Group) -> None:
        torch.nn.Module.__init__(self)
        self.weight, self.eps = part.weight, part.eps
        self.width, self.copies, self.group = width, copies, group

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        total = self.group.sum(wide.square().sum(dim=-1, keepdim=True)) / self.copies
        return (wide * torch.rsqrt(total / self.width + self.eps) * self.weight.float()).to(x.dtype)


class ParallelLinears:
    """Makes a rank's matrices: see `gradus.models.LinearFactory`. stage: the ranks that share them."""

    def __init__(self, stage: Group, vocab_size: int) -> None:
        self._stage, self._vocab_size = stage, vocab_size

    def __call__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Linear:
        shape = matrix_id, in_features, out_features, bias, dtype, device
        if matrix_id.role in ("attn_out", "down"):
            summed = SummedLinear(*shape)
            summed.group = self._stage
            return summed
        if matrix_id.role == "head":
            joined = JoinedLinear(*shape)
            joined.group, joined.columns = self._stage, self._vocab_size
            return joined
        return Linear(*shape)
