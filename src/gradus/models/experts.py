"""A mixture of experts (Shazeer et al. 2017; Fedus et al. 2021): many MLPs, and each token takes a few.

The router multiplies a token's row by a small matrix, one logit per expert, and keeps the best. The token's result is
the sum of the chosen experts' results, each times its weight. So a model of thirty billion weights reads three billion
of them for a token, and nearly all of them for a batch of a hundred tokens that choose differently.

All experts' matrices are stacked in two, so that whatever keeps a matrix by rows (in fewer bits, in a file's memory)
keeps experts as well. Expert e's gates are rows e F to (e + 1) F of the first, and its features lie E F rows further
on. Its rows of the second are e D to (e + 1) D.

Shapes: N tokens, D hidden_size, E experts of F features, k of them chosen.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradus.models.config import Experts, ModelConfig
from gradus.models.layers import Activation, LinearFactory, MatrixId, RMSNorm, gated, parameter


class Router(nn.Module):
    """Chooses each token's experts.

    norm: of the rows that it reads, where they are not those that the experts read (Gemma 4). correction: [E], added to
    the scores for the choice alone (DeepSeek V3). factors: [E], of the weights (Gemma 4).
    """

    def __init__(
        self, config: ModelConfig, layer: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        experts = config.experts_at(layer)
        assert experts is not None
        count, hidden = experts.count, config.hidden_size
        self.experts = experts
        self.norm = RMSNorm(hidden, config.norm_eps, dtype, device) if config.experts_apart else None
        self.product = linear(MatrixId("router", layer), hidden, (count,), experts.biased, dtype, device)
        self.correction = parameter((count,), torch.float32, device) if experts.corrected else None
        self.factors = parameter((count,), torch.float32, device) if experts.scaled else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [N, D]. Returns the chosen experts, int64 [N, k], and their weights, float32 [N, k]."""
        experts, logits = self.experts, self.product(x).float()
        scores = torch.sigmoid(logits) if experts.sigmoid else logits.softmax(-1)
        ranked = scores if self.correction is None else scores + self.correction
        if experts.groups > 1:
            ranked = _in_best_groups(ranked, experts)
        chosen = ranked.topk(experts.chosen, dim=-1).indices
        weights = scores.gather(1, chosen)
        if experts.normalized:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        weights = weights * experts.scale
        return chosen, weights if self.factors is None else weights * self.factors[chosen]


def _in_best_groups(ranked: Tensor, experts: Experts) -> Tensor:
    """Put experts outside of the best groups last. A group's score is the sum of its two best."""
    groups = ranked.unflatten(-1, (experts.groups, -1))
    best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1).topk(experts.chosen_groups, dim=-1).indices
    outside = torch.ones(groups.shape[:2], dtype=torch.bool, device=ranked.device).scatter_(1, best, False)
    return groups.masked_fill(outside[..., None], float("-inf")).flatten(1)


class Mixture(nn.Module):
    """A layer's router and experts.

    norm, out_norm: of the rows that experts read, and of their sum, where the layer's norms are not theirs (Gemma 4).
    grouped: computes what `one_by_one` does, faster, where there are kernels for it.
    """

    grouped: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def __init__(
        self, config: ModelConfig, layer: int, linear: LinearFactory, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        experts, hidden = config.experts_at(layer), config.hidden_size
        assert experts is not None
        count, width = len(experts.own), experts.width
        parts = (count * width,) * (2 if config.gated else 1)
        self.experts = experts
        self.norm, self.out_norm = (
            RMSNorm(hidden, config.norm_eps, dtype, device) if config.experts_apart else None for _ in ("in", "out")
        )
        self.router = Router(config, layer, linear, dtype, device)
        self.up = linear(MatrixId("experts_up", layer), hidden, parts, experts.biased, dtype, device)
        self.activation = gated(config.activation) if config.gated else Activation(config.activation)
        self.down = linear(MatrixId("experts_down", layer), width, (count * hidden,), experts.biased, dtype, device)

    def forward(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """`total`, normalized where the model does that."""
        total = self.total(x, norm)
        return total if self.out_norm is None else self.out_norm(total)

    def total(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """The weighted sum of the chosen experts' results: [N, D] → [N, D]. x: the stream; norm: the layer's own.

        A part of a model adds up those of its own experts. The number of rows of each is read on the host: no step of
        this form can be captured in a CUDA graph. Engines that capture steps refuse or replace it before they start.
        """
        norm = norm if self.norm is None else self.norm
        rows = x if norm is None else norm(x)
        chosen, weights = self.router(rows if self.router.norm is None else self.router.norm(x))
        return (self.grouped or self.one_by_one)(rows, chosen, weights).to(x.dtype)

    def one_by_one(self, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of each row's experts, float32: [N, D], with [N, k] experts and weights → [N, D].

        Experts add up in their order, so a token's sum does not depend on the tokens next to it.
        """
        out = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        for expert in chosen.unique().tolist():
            if expert not in self.experts.own:
                continue
            row, place = (chosen == expert).nonzero(as_tuple=True)
            mixed = self.expert(expert, rows[row]).float() * weights[row, place, None]
            out.index_add_(0, row, mixed)
        return out

    def onto(self, stream: Tensor, norm: nn.Module | None) -> Tensor:
        """Return stream + `forward`. It may overwrite `stream`, so the caller must use only the result."""
        return stream + self.forward(stream, norm)

    def expert(self, number: int, rows: Tensor) -> Tensor:
        """One expert's MLP: [n, D] → [n, D]."""
        width, hidden, parts = self.experts.width, self.down_width, len(self.up.out_features)
        number -= self.experts.first
        starts = [(part * len(self.experts.own) + number) * width for part in range(parts)]
        features = torch.cat([self.up.part(start, start + width)(rows) for start in starts], 1)
        down = self.down.part(number * hidden, (number + 1) * hidden)
        return down(self.activation(features).to(rows.dtype))

    @property
    def down_width(self) -> int:
        """D, of a row that an expert writes."""
        return sum(self.down.out_features) // len(self.experts.own)
