"""Four rules for accepting a draft that was sampled from q where the target says p.

    python -m phases.p08_speculation.rules

prints how often each accepts, by temperature, for a made-up pair of models: the target's logits are normal, and the
drafter's are the same with an error. Under all four rules the output has the target's distribution. Under those that
compare with the target's own sample, all but rejection sampling, it is also the very same text.
"""

import torch
from torch import Tensor

VOCABULARY, CONTEXTS = 1000, 50
SPREAD, ERROR = 3.5, 0.6  # standard deviations of the target's logits, and of the drafter's error
TEMPERATURES = (0.1, 0.3, 0.5, 0.7, 1.0)


def rejection(p: Tensor, q: Tensor, draft: int, random: torch.Generator) -> tuple[bool, int]:
    """Leviathan et al. 2023, Chen et al. 2023: accept a draft from q with probability p / q, else draw from the part
    of p that exceeds q. Either way the token has distribution p. Returns whether the draft was accepted, and the token.

    p, q: [V], probabilities.
    """
    if torch.rand((), generator=random, dtype=p.dtype) * q[draft] < p[draft]:
        return True, draft
    missing = (p - q).clamp(min=0)
    return False, int(torch.multinomial(missing, 1, generator=random))


def by_rejection(p: Tensor, q: Tensor) -> float:
    """Σ min(p, q): no rule for one draft accepts more often."""
    return float(torch.minimum(p, q).sum())


def by_shared_noise(p: Tensor, q: Tensor) -> float:
    """The probability that two races with the same noise, E / p and E / q, have the same winner.

    Token i wins both if each other token's noise E_j is at least E_i · max(p_j / p_i, q_j / q_i). The noise is
    exponential, so that has probability 1 / Σ_j max(p_j / p_i, q_j / q_i).
    """
    able = (p > 0) & (q > 0)  # only such a token can win both
    ratios = torch.maximum(p / p[able, None], q / q[able, None])  # [i, j]
    return float((1 / ratios.sum(dim=1)).sum())


def by_likeliest(p: Tensor, q: Tensor) -> float:
    """The drafter always proposes its likeliest token; the target samples it with its own probability."""
    return float(p[q.argmax()])


def by_independent_noise(p: Tensor, q: Tensor) -> float:
    """Target and drafter sample each with noise of their own, and must meet by chance."""
    return float((p * q).sum())


RULES = {
    "rejection sampling": by_rejection,
    "the same noise": by_shared_noise,
    "the drafter's likeliest token": by_likeliest,
    "noise of its own": by_independent_noise,
}
"""Maps p and q, [V] each, to the probability that a draft is accepted."""


def acceptance(temperature: float) -> dict[str, float]:
    """Average each rule's acceptance over made-up contexts, the same in every run."""
    random = torch.Generator().manual_seed(8)
    logits, error = torch.randn(2, CONTEXTS, VOCABULARY, generator=random, dtype=torch.float64)
    target = SPREAD * logits
    p, q = ((each / temperature).softmax(dim=-1) for each in (target, target + ERROR * error))  # [CONTEXTS, V] each
    return {name: sum(map(rule, p, q)) / CONTEXTS for name, rule in RULES.items()}


if __name__ == "__main__":
    print("temperature   " + "   ".join(RULES))
    for degree in TEMPERATURES:
        row = (f"{rate:.0%}".rjust(len(name)) for name, rate in acceptance(degree).items())
        print(f"{degree:11}   " + "   ".join(row))
