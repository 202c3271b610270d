"""The rate at which drafts are right: on texts that heads were not trained on, and in the steps of a drafting
engine."""

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
    """One text, place by place, up to the last place where all drafts can be compared. drafts: the drafts at each
    place, given the model's text before it, below 0 for none; said: the model's own tokens. Both int64 [places, K]."""

    drafts: Tensor
    said: Tensor

    @property
    def stand(self) -> Tensor:
        """bool [places, K]: whether a draft and all drafts before it are right."""
        return (self.drafts == self.said).cumprod(-1).bool()

    def in_steps(self) -> tuple[Tensor, Tensor]:
        """Count the drafts verified and accepted by position, int64 [K] each, in steps that verify as many as possible.

        Each step begins where the one before ended, so a text that is easy to guess has fewer steps. The step in which
        the text ends is left out, as in an engine, where acceptance cannot be known there.
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
    """Rates by position. right: a draft is right, given the model's text before it. stands: it and all drafts before it
    are right, so it is accepted."""

    right: tuple[float, ...]
    stands: tuple[float, ...]

    @classmethod
    def of(cls, texts: Iterable[Places], drafts: int) -> "Agreement":
        """Average over all places equally."""
        right, stands, places = torch.zeros(drafts), torch.zeros(drafts), 0
        for text in texts:
            right += (text.drafts == text.said).sum(0).cpu()
            stands += text.stand.sum(0).cpu()
            places += len(text.said)
        return cls(*(tuple((each / max(1, places)).tolist()) for each in (right, stands)))

    @property
    def tokens_per_step(self) -> float:
        """The tokens per step if every step verifies all drafts."""
        return 1 + sum(self.stands)


@torch.no_grad()
def head_drafts(
    model: Model,
    heads: MedusaHeads | EagleHeads,
    head: nn.Module,
    batches: Iterable[Sequence[Conversation]],
    drafts: int,
) -> Iterator[Places]:
    """Draft greedily with heads, at every place of each conversation."""
    for batch in batches:
        texts = Texts.of(batch, model.device)
        hidden, embedded = read(model, texts)
        features = heads.unrolled(hidden.float(), embedded.float())
        whole = texts.counts(drafts).all(-1)
        for row in range(len(batch)):  # one at a time, because logits are large
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
    """Compare greedy drafts with the model's own tokens."""
    return Agreement.of(head_drafts(model, heads, head, batches, drafts), drafts)
