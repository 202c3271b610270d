"""Batches of conversations of about the same length, so that little of a batch is padding."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradus.training.writing import Conversation


@dataclass(frozen=True, slots=True)
class Texts:
    """S conversations. tokens: int64 [S, L]; starts, lengths: int64 [S], the start and the end of each answer."""

    tokens: Tensor
    starts: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, conversations: Sequence[Conversation], device: torch.device) -> "Texts":
        longest = max(len(one.tokens) for one in conversations)
        rows = [[*one.tokens, *[0] * (longest - len(one.tokens))] for one in conversations]
        starts, lengths = [one.start for one in conversations], [len(one.tokens) for one in conversations]
        return cls(*(torch.tensor(each).to(device, non_blocking=True) for each in (rows, starts, lengths)))

    def counts(self, drafts: int) -> Tensor:
        """bool [S, L - K, K]: whether the token t + 2 + i, which draft i at place t predicts, belongs to the answer."""
        place = torch.arange(self.tokens.shape[1] - drafts, device=self.tokens.device).unsqueeze(1)
        drafted = place + 2 + torch.arange(drafts, device=self.tokens.device)
        newest_is_answer = place + 1 >= self.starts[:, None, None]
        return newest_is_answer & (drafted < self.lengths[:, None, None])


def batches(conversations: Sequence[Conversation], size: int, drafts: int) -> list[list[Conversation]]:
    """Divide conversations into batches of about `size` tokens each, including padding."""
    found: list[list[Conversation]] = [[]]
    for one in sorted(conversations, key=lambda one: len(one.tokens)):
        if len(one.tokens) <= drafts + 1:
            continue
        if found[-1] and len(one.tokens) * (len(found[-1]) + 1) > size:
            found.append([])
        found[-1].append(one)
    return [batch for batch in found if batch]


def shuffled(found: Sequence[list[Conversation]], seed: int, passes: int) -> Iterator[list[Conversation]]:
    """Yield all batches, `passes` times, each time in another order."""
    generator = random.Random(seed)
    for _ in range(passes):
        order = list(found)
        generator.shuffle(order)
        yield from order
