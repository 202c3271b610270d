"""The loss of heads: their predictions should match the model's.

Draft i at place t predicts the token that the model says after t + 1 + i, so it learns the model's distribution there:
cross-entropy against the whole distribution teaches more than against the one token drawn. Later drafts count less,
0.8^i, since they only matter if those before them are accepted.

All logits at once would be tens of gigabytes. So the features' gradient is computed for a few sequences and one draft
at a time, each through the model's head and back at once; only the heads' own part is kept for the backward pass.
"""

import torch
from torch import Tensor, nn

from gradus.attention.whole import WholeSequences
from gradus.models import Model
from gradus.training.batches import Texts

DECAY = 0.8
LOGITS = 1 << 27  # at once


@torch.no_grad()
def read(model: Model, texts: Texts) -> tuple[Tensor, Tensor]:
    """Run the model over texts. Returns its hidden states and embeddings, [S, L, D] each, without layers' inputs."""
    count, length = texts.tokens.shape
    tokens = texts.tokens.flatten()
    positions = torch.arange(length, device=tokens.device).repeat(count)
    embedded = model.embed(tokens, positions)
    hidden = model.norm(model.run_layers(embedded, positions, WholeSequences(model.config, count)))
    embedded = embedded[:, : model.config.hidden_size]
    return hidden.unflatten(0, (count, length)), embedded.unflatten(0, (count, length))


def loss_and_gradient(features: Tensor, hidden: Tensor, counts: Tensor, head: nn.Module) -> tuple[float, Tensor]:
    """Compute the weighted cross-entropy, and its gradient with respect to the features.

    features: [S, L - K, K, D], as `unrolled` gives them; hidden: [S, L, D], the model's; counts: bool [S, L - K, K].
    """
    (_, places, drafts, _), weights = features.shape, [DECAY**i for i in range(features.shape[2])]
    share = [weight / sum(weights) / max(1, int(counts[..., i].sum())) for i, weight in enumerate(weights)]
    gradient, total = torch.zeros_like(features), torch.zeros((), device=features.device)
    for some in slices(features, int(logits_of(head, hidden[:1, :1]).shape[-1])):
        with torch.no_grad():
            expected = logits_of(head, hidden[some]).softmax(-1, dtype=torch.float32)
        for i in range(drafts):
            weight = share[i] * counts[some, :, i]
            losses, part = cross_entropy(expected[:, i + 1 : i + 1 + places], features[some, :, i], head, hidden.dtype)
            gradient[some, :, i] = weight.unsqueeze(-1) * part
            total += (weight * losses).sum()
    return float(total), gradient


def cross_entropy(expected: Tensor, features: Tensor, head: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute the loss at each place, [S, P], and its gradient with respect to that place's features, [S, P, D].

    expected: probabilities [S, P, vocabulary]. The gradient of a logit is its probability minus the expected one. So
    nothing as large as the logits is kept for a backward pass, and the last result has the logits' narrow type.
    """
    part = features.detach().to(dtype).requires_grad_()
    logits = logits_of(head, part)
    with torch.no_grad():
        found = logits.log_softmax(-1, dtype=torch.float32)
        losses = -torch.linalg.vecdot(expected, found)
        by_logit = torch.sub(found.exp_(), expected, out=torch.empty_like(logits))
    return losses, torch.autograd.grad(logits, part, by_logit)[0]


def slices(features: Tensor, vocabulary: int) -> list[slice]:
    """Divide sequences into slices whose logits fit."""
    step = max(1, LOGITS // (features.shape[1] * vocabulary))
    return [slice(first, first + step) for first in range(0, len(features), step)]


def logits_of(head: nn.Module, hidden: Tensor) -> Tensor:
    """Apply the head: […, D] → […, vocabulary]."""
    found: Tensor = head(hidden.flatten(0, -2))
    return found.unflatten(0, hidden.shape[:-1])
