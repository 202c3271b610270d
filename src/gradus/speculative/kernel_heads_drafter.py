"""The work of `HeadsDrafter` on GPU kernels, in few launches: with a small model, launches take most of the time.

One kernel prepares the input of a pass of the heads; two others draw its drafts and write them where they are needed.
The heads' own products run in between.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradus.kernels.step.draft_inputs import first_inputs, next_inputs
from gradus.models.layers import EmbeddingTables
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.speculative.drafter import Drafter
from gradus.speculative.heads import DraftHeads
from gradus.speculative.history import History
from gradus.speculative.states import HiddenStates


class KernelHeadsDrafter(Drafter):
    """Drafts by heads, on GPU kernels.

    heads: for one draft, for two, and so on, from `first_heads`: the first few of all heads' features need a copy.
    head: as in `HeadsDrafter`. embedding: the model's.
    """

    def __init__(
        self,
        heads: Sequence[DraftHeads],
        head: nn.Module,
        embedding: EmbeddingTables,
        states: HiddenStates,
        sampler: KernelSampler,
    ) -> None:
        self.heads, self.head, self.embedding, self.states, self.sampler = heads, head, embedding, states, sampler

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        heads = self.heads[count - 1]
        begun = first_inputs(
            slots, history.tokens, history.lengths, self.states.values, self.embedding,
            count=count, together=heads.together,
        )  # fmt: skip
        drafts = torch.empty(len(slots), count, dtype=torch.int64, device=slots.device)

        def draw(features: Tensor, first: int) -> None:
            number = first // heads.together
            out = drafts[:, first : first + heads.together].view(-1)  # never a copy
            logits = self.head(features.flatten(0, 1))
            self.sampler.guess_slots(logits, begun.slots[number], begun.positions[number], out)

        def join(states: Tensor, after: int) -> Tensor:
            newest = after - 1  # a pass gives one draft, or `heads` would not ask for another
            return next_inputs(states, drafts[:, newest], begun.positions[newest], self.embedding)

        heads.draft(begun.joined, count, draw, join)
        return drafts
