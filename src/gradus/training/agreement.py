"""How often heads are right, on texts that they were not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gradus.models import Model
from gradus.speculative.heads import EagleHeads, MedusaHeads
from gradus.training.batches import Texts
from gradus.training.learning import logits_of, read
from gradus.training.writing import Conversation


@dataclass(frozen=True, slots=True)
class Agreement:
    """By position: how often a draft is right, the text before it being the model's; and how often it is right together
    with all before it, as it must be to stand."""

    right: tuple[float, ...]
    stands: tuple[float, ...]

    @property
    def tokens_per_step(self) -> float:
        """With all drafts verified in every step."""
        return 1 + sum(self.stands)


@torch.no_grad()
def agreement(
    model: Model,
    heads: MedusaHeads | EagleHeads,
    head: nn.Module,
    batches: Sequence[Sequence[Conversation]],
    drafts: int,
) -> Agreement:
    """Of greedy drafts with what was said."""
    right, stands, places = torch.zeros(drafts), torch.zeros(drafts), 0
    for batch in batches:
        texts = Texts.of(batch, model.device)
        hidden, embedded = read(model, texts)
        features = heads.unrolled(hidden.float(), embedded.float())
        whole = texts.counts(drafts).all(-1)
        for row in range(len(batch)):  # one at a time: logits are many
            said = texts.tokens[row].unfold(0, drafts, 1)[2 : 2 + features.shape[1]]  # [t, i] is token t + 2 + i
            there = whole[row, : len(said)]
            found = logits_of(head, features[row, : len(said)][there].to(hidden.dtype)).argmax(-1)
            agree = found == said[there]
            right += agree.sum(0).cpu()
            stands += agree.long().cumprod(-1).sum(0).cpu()
            places += len(agree)
    return Agreement(*(tuple((each / max(1, places)).tolist()) for each in (right, stands)))
