"""Drafts by trained heads, inside the run: from each slot's newest hidden state and token, on the device.

The drafter has nothing to catch up on, and stores nothing but the states: so it works the same after a preemption, a
prefix hit, and steps without drafts. A state belongs to the row that drew the newest token, the last accepted one. The
device knows which row of a step this is before the host does, as with `History`. Every sequence has a state: its
prompt's last token is always run, even if the rest was found in the prefix cache, or the sequence was preempted.

Each draft is drawn with the noise of its position, at the request's temperature. So heads whose distribution is close
to the model's draw the same token, at any temperature.

Launches take most of the time of a small model's heads on a GPU. So one kernel prepares the input of a pass, and two
draw its drafts and write them where they are needed. The heads' own products run in between.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from gradus.kernels.step.rows import DraftInputs
from gradus.models import Linear, Model
from gradus.models.precision import NarrowLinear
from gradus.speculative.drafter import Drafter
from gradus.speculative.heads import DraftHeads
from gradus.speculative.history import History

Guess = Callable[[Tensor, Tensor, Tensor, Tensor], object]
"""(logits [R, V], slots [R], positions [R], out [R]): writes the tokens that these slots would draw there to `out`,
int64; where no logit is finite, -1 or any token."""


class HeadsDrafter(Drafter):
    """Drafts by heads.

    heads: for one draft, for two, and so on. head: from `draft_head`; maps features to the logits of the first tokens.
    states: [slots + 1, D], the newest hidden state of each slot; the last slot is padding's.

    begin, follow: prepare the first pass and the later ones: `first_inputs` and `next_inputs` of `kernels/step`, with
    the model's embeddings.
    """

    def __init__(
        self,
        heads: Sequence[DraftHeads],
        head: nn.Module,
        states: Tensor,
        begin: Callable[..., DraftInputs],
        follow: Callable[[Tensor, Tensor, Tensor], Tensor],
        guess: Guess,
    ) -> None:
        self.heads, self.head, self.states = heads, head, states
        self.begin, self.follow, self.guess = begin, follow, guess

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        heads = self.heads[count - 1]
        together = min(heads.together, count)
        begun = self.begin(slots, history.tokens, history.lengths, self.states, count=count, together=together)
        drafts = torch.empty(len(slots), count, dtype=torch.int64, device=slots.device)

        def draw(features: Tensor, first: int) -> None:
            number = first // together
            out = drafts[:, first : first + together].view(-1)  # never a copy
            self.guess(self.head(features.flatten(0, 1)), begun.slots[number], begun.positions[number], out)

        def join(states: Tensor, after: int) -> Tensor:
            newest = after - 1  # a pass gives one draft, or `heads` would not ask for another
            return self.follow(states, drafts[:, newest], begun.positions[newest])

        heads.draft(begun.joined, count, draw, join)
        return drafts


def draft_head(model: Model, vocabulary: int) -> nn.Module:
    """Make the model's output head for the first `vocabulary` tokens, on its own rows if they can run alone."""
    head = model.head
    if type(head) not in (Linear, NarrowLinear) or head.bias is not None:
        return FirstColumns(head, vocabulary)
    shape = head.matrix_id, head.in_features, (vocabulary,), False, model.dtype, "meta"
    part = NarrowLinear(*shape, widen_from=head.widen_from) if isinstance(head, NarrowLinear) else Linear(*shape)
    part.weight = nn.Parameter(head.weight[:vocabulary], requires_grad=False)
    if isinstance(part, NarrowLinear):
        part.transposed = part.weight.t()
    return part


class FirstColumns(nn.Module):
    """Maps [R, D] to [R, vocabulary], with a head that can only run whole."""

    def __init__(self, head: Linear, vocabulary: int) -> None:
        super().__init__()
        self.head, self.vocabulary = head, vocabulary

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(x))[:, : self.vocabulary]
