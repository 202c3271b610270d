"""The open task: where the experts live.

A row travels to every rank that has one of its experts. Experts that are chosen together should share a rank,
and then that rank has all rows that choose them. So fewer visits and even loads pull in two directions.
"""

from typing import Any

import torch
from torch import Tensor

from gradus.course.open.declaration import Open, Refused, Trial

START = '''"""p14's open task. So far this is p14's order, which scores 1.00."""

from torch import Tensor

from phases.p14_experts.ranks import own_experts


def place(seen: Tensor, experts: int, ranks: int) -> list[int]:
    """seen: int64 [N, k], the experts that each of N tokens has taken. Returns the rank of each expert, equally many on
    each rank. It is judged on tokens of the same kinds that it has not seen."""
    homes = [0] * experts
    for rank in range(ranks):
        for expert in own_experts(experts, rank, ranks):
            homes[expert] = rank
    return homes
'''

EXPERTS, CHOSEN, RANKS, TOPICS, LIKED, TOKENS = 64, 6, 8, 20, 12, 4096


def choices(seed: int) -> tuple[Tensor, Tensor]:
    """Draw the experts of tokens, [TOKENS, CHOSEN] twice. A token has a topic, and a topic likes some experts."""
    random = torch.Generator().manual_seed(seed)
    liking = torch.randn(TOPICS, EXPERTS, generator=random)
    for topic in range(TOPICS):
        liking[topic, torch.randperm(EXPERTS, generator=random)[:LIKED]] += 5.0
    common = 1 / (1 + torch.arange(TOPICS)) ** 0.7
    topics = torch.multinomial(common, 2 * TOKENS, replacement=True, generator=random)
    noise = -torch.rand(2 * TOKENS, EXPERTS, generator=random).log().neg().log()  # Gumbel's: the top k are a sample
    first, second = (liking[topics] + noise).topk(CHOSEN, dim=1).indices.chunk(2)
    return first, second


def measured(homes: list[int], chosen: Tensor) -> Trial:
    """visits: rows that ranks get from other places' tokens, on average per token. fullest: pairs of a token and an
    expert on the rank with the most, as a multiple of the average."""
    ranks = torch.tensor(homes)[chosen]
    visits = torch.zeros(len(chosen), RANKS).scatter_(1, ranks, 1.0).sum()
    loads = ranks.flatten().bincount(minlength=RANKS).float()
    return {"visits": float(visits / len(chosen)), "fullest": float(loads.max() / loads.mean())}


def trial(yours: Any, seed: int) -> Trial:
    seen, unseen = choices(seed)
    homes = list(yours.place(seen.clone(), EXPERTS, RANKS))
    if sorted(homes) != sorted(list(range(RANKS)) * (EXPERTS // RANKS)):
        raise Refused(f"each of {RANKS} ranks must have {EXPERTS // RANKS} of the {EXPERTS} experts")
    return measured(homes, unseen)


TASK = Open(
    goal="Place 64 experts on 8 ranks so that a token visits 15 % fewer of them, and the fullest rank has 10 % "
    "less than in p14's order.",
    counts="visits",
    unit="ranks that a token visits (the sum of all trials)",
    reach=0.85,
    needs={"fullest": 0.9},
    trial=trial,
    start=START,
    trials=5,
)
