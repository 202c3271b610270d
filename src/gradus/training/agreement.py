"""How often drafts are right: on texts that heads were not trained on, and in the steps of an engine that drafts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradus.models import Model
from gradus.speculative.heads import EagleHeads, MedusaHeads
from gradus.training.batches import Texts
from gradus.training.learning import logits_of, read
from gradus.training.writing import Conversation


class Places(NamedTuple):
    """One text, place by place, as far as all drafts of a place can be compared. drafts: what would be drafted there,
    the text before it being the model's, below 0 where nothing would; said: what the model says. int64 [places, K]."""

    drafts: Tensor
    said: Tensor

    @property
    def stand(self) -> Tensor:
        """bool [places, K]: right together with all before it."""
        return (self.drafts == self.said).cumprod(-1).bool()

    def in_steps(self) -> tuple[Tensor, Tensor]:
        """How many drafts are verified, and stand, by position, int64 [K] each: in steps that verify all they can.

        Each step begins where the one before ended. So of a text that is easy to guess it meets fewer places. A step
        that the text ends with is left out, as an engine does, which cannot tell what would have stood.
        """
        stand, there = self.stand.cpu(), (self.drafts >= 0).cpu()
        places, drafts = stand.shape
        verified, stood = torch.zeros(2, drafts, dtype=torch.int64)
        place = 0
        while place < places and (following := place + 1 + int(stand[place].sum())) < places + drafts - 1:
            verified += there[place]
            stood += stand[place]
            place = following
        return verified, stood


@dataclass(frozen=True, slots=True)
class Agreement:
    """By position: how often a draft is right, the text before it being the model's; and how often it is right together
    with all before it, as it must be to stand."""

    right: tuple[float, ...]
    stands: tuple[float, ...]

    @classmethod
    def of(cls, texts: Iterable[Places], drafts: int) -> "Agreement":
        """Over all places alike."""
        right, stands, places = torch.zeros(drafts), torch.zeros(drafts), 0
        for text in texts:
            right += (text.drafts == text.said).sum(0).cpu()
            stands += text.stand.sum(0).cpu()
            places += len(text.said)
        return cls(*(tuple((each / max(1, places)).tolist()) for each in (right, stands)))

    @property
    def tokens_per_step(self) -> float:
        """With all drafts verified in every step."""
        return 1 + sum(self.stands)


@torch.no_grad()
def head_drafts(
    model: Model,
    heads: MedusaHeads | EagleHeads,
    head: nn.Module,
    batches: Iterable[Sequence[Conversation]],
    drafts: int,
) -> Iterator[Places]:
    """What heads draft greedily, for each conversation."""
    for batch in batches:
        texts = Texts.of(batch, model.device)
        hidden, embedded = read(model, texts)
        features = heads.unrolled(hidden.float(), embedded.float())
        whole = texts.counts(drafts).all(-1)
        for row in range(len(batch)):  # one at a time: logits are many
            said = texts.tokens[row].unfold(0, drafts, 1)[2 : 2 + features.shape[1]]  # [t, i] is token t + 2 + i
            there = whole[row, : len(said)]
            found = logits_of(head, features[row, : len(said)][there].to(hidden.dtype)).argmax(-1)
            yield Places(found, said[there])


def agreement(
    model: Model,
    heads: MedusaHeads | EagleHeads,
    head: nn.Module,
    batches: Iterable[Sequence[Conversation]],
    drafts: int,
) -> Agreement:
    """Of greedy drafts with what was said."""
    return Agreement.of(head_drafts(model, heads, head, batches, drafts), drafts)
