"""Balance: how evenly do tokens choose, and what evens it out without training?

Training adds a loss that punishes favorites. Without training, a router still can be corrected after the fact: add a
number to each expert's score, for the choice alone, and move it against the expert's load (DeepSeek V3 does this while
it trains). Weights are computed from the scores as they were.

Shapes: N tokens, E experts.
"""

import torch
from torch import Tensor

from phases.p14_experts.router import choose

ROUNDS = 100


def loads(chosen: Tensor, count: int) -> Tensor:
    """How many tokens each expert has: [N, k] → float32 [count]."""
    return torch.bincount(chosen.flatten(), minlength=count).float()


def fullest(chosen: Tensor, count: int) -> float:
    """The load of the fullest expert, as a multiple of the average: 1 is perfect balance."""
    found = loads(chosen, count)
    return float(found.max() / found.mean())


def correction(scores: Tensor, chosen: int) -> Tensor:
    """Find the corrections [E] that make the loads of these tokens even. scores: [N, E].

    Each round lowers the experts with more than their share, and raises the others, by steps that become smaller.
    """
    found = torch.zeros(scores.shape[1])
    step = float(scores.std())
    for number in range(ROUNDS):
        have = loads(choose(scores, chosen, found), scores.shape[1])
        found -= step * (have / have.mean() - 1).clamp(-1, 1) / (1 + number / 4)
    return found
