"""A layer's mixture with the parts of this lesson, and a model in which it takes the place of the engine's.

Shapes: N tokens, D hidden_size, E experts, k of them chosen for each token.
"""

import copy

from torch import Tensor, nn

from gradus.models import Model
from gradus.models.create import shorten_lookups
from gradus.models.experts import Mixture
from phases.p14_experts.dispatch import combine, sort_by_expert
from phases.p14_experts.grouped import grouped
from phases.p14_experts.router import route


class SortedMixture(nn.Module):
    """Route, sort, multiply group by group, and add up. Weights and norms are those of the mixture it is made from."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.experts, self.mixture = mixture.experts, mixture
        self.seen: Tensor | None = None  # the last choice, int64 [N, k], for programs that watch

    def forward(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """The weighted sum of the chosen experts' results: [N, D] → [N, D]. x: the stream; norm: the layer's own."""
        norm = norm if self.mixture.norm is None else self.mixture.norm
        rows = x if norm is None else norm(x)
        chosen, weights = self.choice(x, rows)
        pairs, starts = sort_by_expert(chosen, self.experts.count)
        results = grouped(rows[pairs // self.experts.chosen], starts, self.mixture.expert)
        total = combine(results, pairs, weights).to(x.dtype)
        return total if self.mixture.out_norm is None else self.mixture.out_norm(total)

    def choice(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Groups of experts, and factors of weights, are left to the engine's router."""
        router = self.mixture.router
        read = rows if router.norm is None else router.norm(x)
        if self.experts.groups > 1 or router.factors is not None:
            chosen, weights = router(read)
        else:
            chosen, weights = route(router.product(read), self.experts, router.correction)
        self.seen = chosen
        return chosen, weights

    def onto(self, stream: Tensor, norm: nn.Module | None) -> Tensor:
        """Return stream + `forward`."""
        return stream + self(stream, norm)


def with_sorted_mixtures(model: Model) -> Model:
    """Copy the model, with a `SortedMixture` for each mixture. All weights are shared, and `model` is unchanged."""
    kept: list[object] = [model.config, *model.parameters()]
    kept += [part for name, part in model.named_children() if name != "layers"]
    instead: dict[int, object] = {id(each): each for each in kept}
    for part in (part for layer in model.layers for part in layer.children()):
        instead[id(part)] = SortedMixture(part) if isinstance(part, Mixture) else part
    made = copy.deepcopy(model, instead)  # a part listed in `instead` is replaced, not copied
    shorten_lookups(made)
    return made


def mixtures(model: Model) -> list[SortedMixture]:
    """The mixtures of a model that `with_sorted_mixtures` has made, in the order of the layers."""
    return [part for part in model.layers.modules() if isinstance(part, SortedMixture)]
