"""The router: which experts does a token take, and how much does each count?

A small matrix gives every expert a logit. Models differ in three things: whether scores are a softmax over all experts
or a sigmoid of each, whether the weights of the chosen sum to one, and whether the choice is corrected for balance.

Shapes: N tokens, E experts, k of them chosen for each token.
"""

import torch
from torch import Tensor

from gradus.models.config import Experts


def choose(scores: Tensor, count: int, correction: Tensor | None = None) -> Tensor:
    """Return the `count` experts with the highest scores: [N, E] → int64 [N, count], the best first.

    correction: [E], added to the scores for the choice alone (DeepSeek V3): it makes an expert more or less popular.
    """
    ranked = scores if correction is None else scores + correction
    return ranked.topk(count, dim=-1).indices


def weigh(scores: Tensor, chosen: Tensor, normalized: bool, scale: float = 1.0) -> Tensor:
    """Return the weights of the chosen experts, [N, k]: their own scores, times `scale`.

    normalized: divide them by their sum first, so that a token's weights sum to one.
    """
    weights = scores.gather(1, chosen)
    if normalized:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * scale


def route(logits: Tensor, experts: Experts, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Logits [N, E] → the chosen experts, int64 [N, k], and their weights, float32 [N, k]."""
    logits = logits.float()  # two nearly equal experts must not become equal by rounding
    scores = torch.sigmoid(logits) if experts.sigmoid else logits.softmax(dim=-1)
    chosen = choose(scores, experts.chosen, correction)
    return chosen, weigh(scores, chosen, experts.normalized, experts.scale)
