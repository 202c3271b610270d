"""The distance between two models' predictions: the arithmetic, without models and texts.

At each position, p is the reference's distribution over the vocabulary and q is the other model's, from float32 logits.
All later arithmetic is in float64, because similar models differ in the last digits:

    KL divergence              Σ p (log p - log q), in nats; 0 where the two are the same
    top-1 agreement            the likeliest token of p is the likeliest of q
    negative log-likelihood    -log q(t) of the text's token t; perplexity is exp of its mean

Perplexity alone hides changes: a token that became likelier offsets one that became less likely. So likelihoods are
compared position by position (the ratio of two perplexities is exp of the mean difference), which cancels the text's
own difficulty.

Neighboring positions are not independent, but documents nearly are. So a standard error is the spread over resamples of
whole documents (the bootstrap, Efron 1979). A single document gives none.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradus.bench.workloads import SEED

CHUNK_VALUES = 1 << 22
"""The most logits of one model in memory at once: 32 MiB in float64, 27 positions of a vocabulary of 151,936."""
RESAMPLES = 1000

Logits = Callable[[Tensor], Tensor]
"""Hidden states [n, D] to float32 logits [n, V]: `Model.logits`."""


class Scores(NamedTuple):
    """One value per position, [n] each, in float64 on the models' device. top1: 1 if the models agree, else 0."""

    kl: Tensor
    top1: Tensor
    nll: Tensor
    reference_nll: Tensor


# -- positions ---------------------------------------------------------------------------------------------------------


def compare(reference: Tensor, other: Tensor, targets: Tensor) -> Scores:
    """reference, other: float32 logits [n, V] of the same positions; targets: int64 [n], the tokens of the text."""
    log_p, log_q = (torch.log_softmax(logits, dim=-1, dtype=torch.float64) for logits in (reference, other))
    chosen = targets.unsqueeze(1)
    return Scores(
        kl=(log_p.exp() * (log_p - log_q)).sum(-1),
        top1=(reference.argmax(-1) == other.argmax(-1)).double(),
        nll=-log_q.gather(1, chosen).squeeze(1),
        reference_nll=-log_p.gather(1, chosen).squeeze(1),
    )


def compare_hidden(
    reference: Logits, reference_hidden: Tensor, other: Logits, other_hidden: Tensor, targets: Tensor
) -> Scores:
    """Compare hidden states [n, D]; logits exist for only a few positions at a time."""
    vocab_size = reference(reference_hidden[:1]).shape[-1]
    return join(
        compare(reference(reference_hidden[rows]), other(other_hidden[rows]), targets[rows])
        for rows in chunks(len(targets), vocab_size)
    )


def chunks(positions: int, vocab_size: int) -> Iterator[slice]:
    """Slices of positions, each with at most CHUNK_VALUES logits (and at least one position)."""
    step = max(1, CHUNK_VALUES // vocab_size)
    return (slice(start, min(start + step, positions)) for start in range(0, positions, step))


def join(parts: Iterable[Scores]) -> Scores:
    """Concatenate scores."""
    return Scores(*(torch.cat(values) for values in zip(*parts, strict=True)))


# -- figures -----------------------------------------------------------------------------------------------------------


def summarize(scores: Scores, documents: Tensor) -> dict[str, float | None]:
    """The report's figures over all positions, each with its standard error under a name that ends in _error.

    documents: int64 [n], each position's document number. Errors are None for a single document.
    """
    kl, top1, nll, reference_nll = (values.cpu() for values in scores)
    _, index, counts = torch.unique(documents.cpu(), return_inverse=True, return_counts=True)

    def error(values: Tensor, figure: Callable[[Tensor], Tensor] = lambda mean: mean) -> float | None:
        means = resampled_means(torch.bincount(index, weights=values), counts)
        return figure(means).std().item() if len(counts) > 1 else None

    middle, tail = np.percentile(kl.numpy(), [50, 99.9])
    return {
        "kl": kl.mean().item(),
        "kl_error": error(kl),
        "kl_p50": float(middle),
        "kl_p999": float(tail),
        "kl_max": kl.max().item(),
        "top1": top1.mean().item(),
        "top1_error": error(top1),
        "perplexity": nll.mean().exp().item(),
        "reference_perplexity": reference_nll.mean().exp().item(),
        "perplexity_ratio": (nll - reference_nll).mean().exp().item(),
        "perplexity_ratio_error": error(nll - reference_nll, torch.exp),
    }


def resampled_means(sums: Tensor, counts: Tensor) -> Tensor:
    """[RESAMPLES] means over positions, each of D documents drawn with replacement.

    sums: [D], a value summed over each document's positions. counts: [D], their number of positions.
    """
    generator = torch.Generator().manual_seed(SEED)
    means = []
    for _ in range(RESAMPLES):
        drawn = torch.randint(len(sums), sums.shape, generator=generator)
        means.append(sums[drawn].sum() / counts[drawn].sum())
    return torch.stack(means)
