"""A rank's part on this project's kernels: the twins of layers that are divided among ranks.

`kernels/fuse/model.py` fuses a layer's other parts as on one GPU. Here a product that is cut by columns leaves its
summand to the next norm, which adds all ranks' summands, the residual and the norm in one launch. That works where
nothing but that norm reads the residual stream in between; elsewhere the sum is a launch of its own.
"""

from typing import cast

import torch
from torch import Tensor, nn

from gradus.kernels.core.view import Twin, twin_of
from gradus.kernels.experts.combine import combine
from gradus.kernels.experts.routing import route
from gradus.kernels.fuse.experts import FusedMixture, is_plain
from gradus.kernels.fuse.model import FusedHead, FusedLinear, FusedRMSNorm, fused
from gradus.kernels.linear.dispatch import linear
from gradus.models.layers import Activation, Linear, Model, RMSNorm
from gradus.models.parts import Undescribed, parts_of
from gradus.parallel.exchange import Exchange, Summands
from gradus.parallel.layers import JoinedLinear, SummedEmbedding, SummedLinear, SummedMixture, meet_neighbors


def fused_part(part: Model, exchange: Exchange) -> Model:
    """A rank's part of a model on kernels, whole layers of it: see `gradus.kernels.fuse.model.fused`."""
    seen = fused(part)
    for each in seen.modules():
        if isinstance(each, FusedSummed | FusedSummedMixture | FusedJoined | FusedSummedEmbedding):
            each.exchange = exchange
    meet_neighbors(seen)
    for product, norm in _neighbors(seen):
        if isinstance(product, FusedSummed) and product.bias is None and isinstance(norm, FusedRMSNorm):
            product.summands = norm.summands = Summands(exchange)
    return seen


def _neighbors(seen: Model) -> list[tuple[Linear, nn.Module | None]]:
    """List the products whose results are added to the residual stream as they are, each with the norm that reads the
    stream next. A stream that is scaled, or added to, before then is read by something else."""
    try:
        parts = parts_of(seen)
    except Undescribed:
        return []
    found: list[tuple[Linear, nn.Module | None]] = []
    after = [layer.attention_norm for layer in parts[1:]] + [seen.norm]
    for layer, following in zip(parts, after, strict=True):
        if layer.attention_out_norm is None and layer.experts is None:  # which read the stream, or the norm again
            found.append((layer.output, layer.mlp_norm))
        plain = layer.mlp_out_norm is None and layer.scale is None and layer.embedded is None
        if layer.down is not None and plain:
            found.append((layer.down, following))
    return found


@twin_of(SummedLinear)
class FusedSummed(FusedLinear, SummedLinear):
    """summands: shared with the norm that reads the residual stream next; None if the sum is made at once."""

    exchange: Exchange
    summands: Summands | None = None

    def forward(self, x: Tensor) -> Tensor:
        out = self.exchange.sum(self._summand(x))
        return out if self.bias is None else out + self.bias  # once, not once per rank

    def after(self, norm: RMSNorm | nn.LayerNorm | None, x: Tensor, then: Activation | None = None) -> Tensor:
        return Linear.after(self, norm, x, then)

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        if self.summands is None:
            return stream + self.forward(x)
        self.summands.leave(self._summand(x))
        return stream

    def _summand(self, x: Tensor) -> Tensor:
        return self.with_carried(linear(x, self.weight, counters=self.counters))


@twin_of(SummedMixture)
def twin_of_summed_mixture(part: SummedMixture) -> "FusedSummedMixture | None":
    return FusedSummedMixture(part) if is_plain(part) else None


class FusedSummedMixture(FusedMixture, SummedMixture):
    """The rank's experts: pairs of a row and another rank's expert are not computed."""

    exchange: Exchange

    def forward(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        total = self.exchange.sum(self._summand(x, norm))
        return total if self.out_norm is None else self.out_norm.forward(total)

    def onto(self, stream: Tensor, norm: nn.Module | None) -> Tensor:
        summand = self._summand(stream, norm)
        if self.beside is not None:
            self.beside.carried = summand
            return stream
        total = self.exchange.sum(summand)
        return stream + total if self.out_norm is None else self.out_norm.onto(stream, total)

    def _summand(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        norm, own = norm if self.norm is None else self.norm, self.experts.own
        rows = x if norm is None else norm.forward(x)
        chosen, weights = route(self._routed(x, rows))
        mine = (chosen >= own.start) & (chosen < own.stop)
        chosen, weights = torch.where(mine, chosen - own.start, len(own)), torch.where(mine, weights, 0.0)
        return combine(self.mixed(rows, chosen), weights, partial=True)


@twin_of(JoinedLinear)
class FusedJoined(FusedHead, JoinedLinear):
    exchange: Exchange

    def forward(self, x: Tensor) -> Tensor:
        """[R, D] → [R, V]."""
        parts = self.exchange.join(super().forward(x))
        return parts.movedim(0, 1).flatten(1)[:, : self.columns]


@twin_of(SummedEmbedding)
class FusedSummedEmbedding(Twin, SummedEmbedding):
    exchange: Exchange

    def __init__(self, part: SummedEmbedding) -> None:
        Twin.__init__(self, part)

    def forward(self, ids: Tensor) -> Tensor:
        table = cast(Tensor, self.weight)
        assert table.dtype == self.dtype, "ranks keep weights in the type of activations"
        return self.exchange.look_up(ids, table, self.first)
