"""Log-probabilities of a prompt's own tokens, from the hidden states that its spans compute anyway.

A prefill computes the hidden state of every row, but logits only for the last one, to sample from. `prompt_scores`
computes them for the other rows too: a few rows at a time, because the logits of a whole chunk would take gigabytes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradus.device.transfer import upload
from gradus.engine.plan import Scores
from gradus.models import Model
from gradus.sampling.sampler import DrawnLogprobs, log_probabilities

MOST_LOGITS = 1 << 24  # per matrix product: 64 MiB in float32


def prompt_scores(model: Model, hidden: Tensor, wanted: Sequence[tuple[int, Scores]]) -> list[DrawnLogprobs]:
    """Compute the scores that spans ask for, and start their copy to the host.

    hidden: [N or more, D]. wanted: (first row, scores) of each span that asks.
    """
    return [_scored(model, hidden[first : first + len(scores.targets)], scores).to_host() for first, scores in wanted]


def _scored(model: Model, hidden: Tensor, scores: Scores) -> DrawnLogprobs:
    """Score the token that follows each row. hidden: [R, D]."""
    tokens = upload(scores.targets, torch.int64, hidden.device)
    at_once = max(1, MOST_LOGITS // model.config.vocab_size)
    parts = [
        log_probabilities(model.logits(rows), following, scores.top)
        for rows, following in zip(hidden.split(at_once), tokens.split(at_once), strict=True)
    ]
    ids, values = (torch.cat(each) for each in zip(*parts, strict=True))
    return DrawnLogprobs.of(ids, values, np.full(len(tokens), scores.top))
