"""Drafts by trained heads, inside the run: from each slot's newest hidden state and token, on the device.

The drafter has nothing to catch up on, and stores nothing but the states: so it works the same after a preemption, a
prefix hit, and steps without drafts. `kernel_heads_drafter.py` does the same with GPU kernels.

Each draft is drawn with the noise of its position, at the request's temperature. So heads whose distribution is close
to the model's draw the same token, at any temperature.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from gradus.models import Linear, Model
from gradus.models.precision import NarrowLinear
from gradus.speculative.drafter import Drafter
from gradus.speculative.heads import EagleHeads, MedusaHeads
from gradus.speculative.history import History
from gradus.speculative.states import HiddenStates

Guess = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits [R, V], slots [R], positions [R]) → the tokens that these slots would draw there, int64 [R]; where no logit
is finite, -1 or any token."""


class HeadsDrafter(Drafter):
    """Drafts by heads, in torch. head: from `draft_head`; maps features to the logits of the first tokens."""

    def __init__(
        self, heads: MedusaHeads | EagleHeads, head: nn.Module, model: Model, states: HiddenStates, guess: Guess
    ) -> None:
        self.heads, self.head, self.model, self.states, self.guess = heads, head, model, states, guess

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        lengths, config = history.lengths[slots], self.model.config
        said = history.tokens.new_empty(len(slots), 1 + count, dtype=torch.int64)  # the newest token, then drafts
        said[:, 0] = history.tokens[slots, lengths - 1]

        def draw(features: Tensor, first: int) -> None:
            wide = features.shape[1]
            owners, after = slots.unsqueeze(1).expand(-1, wide), torch.arange(first, first + wide, device=slots.device)
            positions = lengths.unsqueeze(1) + after
            drafts = self.guess(self.head(features.flatten(0, 1)), owners.flatten(), positions.flatten())
            said[:, 1 + first : 1 + first + wide] = drafts.view(-1, wide)

        def join(states: Tensor, after: int) -> Tensor:
            tokens = said[:, after].clamp(0, config.vocab_size - 1)
            positions = (lengths - 1 + after).clamp(max=config.context_length - 1)  # in case they are looked up
            return torch.cat([states, self.model.embed(tokens, positions)], dim=-1)

        self.heads.draft(join(self.states.values[slots], 0), count, draw, join)
        return said[:, 1:]


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
