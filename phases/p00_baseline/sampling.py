"""Pick a token from the logits of one row: the likeliest one, or one drawn at random."""

import torch
from torch import Tensor

from phases.p00_baseline.attention import softmax


def greedy(logits: Tensor) -> int:
    """The token with the largest logit. logits: [V]."""
    return int(logits.argmax())  # [V] → one number


def keep_top(logits: Tensor, count: int) -> Tensor:
    """[V] → [V]: the `count` largest logits stay, the others become minus infinity, which is probability 0."""
    smallest = logits.topk(count).values[-1]  # [V] → [count], largest first → its last
    return logits.masked_fill(logits < smallest, -torch.inf)  # [V]


def sample(logits: Tensor, temperature: float, top_k: int, draw: float) -> int:
    """A token, drawn from softmax(logits / temperature) over the top_k likeliest. logits: [V], draw: from 0 to below 1.

    The probabilities are laid side by side, from 0 to 1. The token whose piece holds `draw` is taken.
    """
    logits = keep_top(logits, top_k).double() / temperature  # [V]: float64, since many small numbers are added below
    probabilities = softmax(logits)  # [V]
    ends = probabilities.cumsum(dim=0)  # [V]: where each token's piece ends; the last ends at 1, up to rounding
    return int((ends <= draw * ends[-1]).sum())  # as many pieces end before the draw: the number of the next one
