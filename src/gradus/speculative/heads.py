"""Draft heads: trained on one model's hidden states, they guess the tokens after the next one.

When a step ends, the model's newest hidden state h has just been turned into the newest token. Both come at no extra
cost, and a few matrices on top of them guess the tokens that follow. The model's own output head turns the guesses into
logits, so a head is small: a few MB for a model of hundreds.

    medusa    draft i = head(W_i layer(h, e)), e being the newest token's embedding: all drafts in one pass, and none
              knows the others (Medusa: Cai et al., arXiv 2401.10774, where heads do not see e)
    eagle     state = layer(state, e), draft = head(W state), again with the embedding of that draft: each draft knows
              the earlier ones, and takes a pass of its own (EAGLE: Li et al., arXiv 2401.15077; the layer here has no
              attention, since h has seen the whole context already)

Shapes: B sequences, D hidden_size, K drafts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from gradus.models.layers import Gated, Linear, MatrixId, RMSNorm

KINDS = ("medusa", "eagle")
EPS = 1e-5

Draw = Callable[[Tensor, int], None]
"""(features [B, n, D], i): draws the drafts i, i + 1, … of each sequence."""
Join = Callable[[Tensor, int], Tensor]
"""(states [B, D], i) → [B, 2 D]: joins to each state the embedding of its sequence's token i after the newest."""


@dataclass(frozen=True, slots=True)
class HeadsShape:
    """The sizes of heads.

    kind: one of KINDS. drafts: K. width: of the layer's MLP. vocabulary: the heads choose tokens below this id; these
    are the most frequent ones where a tokenizer numbers its tokens in the order of its merges.
    """

    kind: str
    drafts: int
    hidden_size: int
    width: int
    vocabulary: int


class DraftHeads(Protocol):
    """The interface of both kinds. together: how many drafts of a sequence one pass gives."""

    together: int

    def draft(self, x: Tensor, count: int, draw: Draw, join: Join) -> None:
        """Draw `count` drafts of each sequence, K at most. x: [B, 2 D], from `join`, for the newest tokens and the
        hidden states that they were drawn from."""

    def unrolled(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Compute the features of all drafts at all positions of S whole sequences, for training.

        hidden, embedded: [S, L, D], of the sequences' tokens. Returns features [S, L - K, K, D]: those at [t, i] draft
        token t + 2 + i, and know the tokens before it as far as this kind does.
        """


class Layer(nn.Module):
    """The first part of both kinds: joins a hidden state and the embedding of the token after it, then runs an MLP."""

    def __init__(self, shape: HeadsShape, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        size = shape.hidden_size
        self.fuse = Linear(_MATRIX, 2 * size, (size,), False, dtype, device)
        self.mlp_norm = RMSNorm(size, EPS, dtype, device)
        self.gate_up = Linear(_MATRIX, size, (shape.width, shape.width), False, dtype, device)
        self.gate = Gated("silu")
        self.down = Linear(_MATRIX, shape.width, (size,), False, dtype, device)
        self.norm = RMSNorm(size, EPS, dtype, device)

    def forward(self, x: Tensor) -> Tensor:
        """Map a state and an embedding, […, 2 D], to […, D], not normalized yet."""
        x = self.fuse(x)
        return self.down.onto(x, self.gate_up.after(self.mlp_norm, x, self.gate))


class MedusaHeads(nn.Module):
    """Runs the layer once, then K matrices side by side, as one product."""

    def __init__(self, shape: HeadsShape, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.shape, size, self.drafts = shape, shape.hidden_size, shape.drafts
        self.together = self.drafts
        self.layer = Layer(shape, dtype, device)
        self.blocks = Linear(_MATRIX, size, (size,) * shape.drafts, False, dtype, device)

    def features(self, x: Tensor) -> Tensor:
        """Map […, 2 D] to the features of all drafts, […, K, D]."""
        return self.blocks.after(self.layer.norm, self.layer(x)).unflatten(-1, (self.drafts, -1))

    def draft(self, x: Tensor, count: int, draw: Draw, join: Join) -> None:
        draw(self.features(x)[:, :count], 0)

    def unrolled(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        places = hidden.shape[1] - self.drafts
        return self.features(torch.cat([hidden[:, :places], embedded[:, 1 : places + 1]], dim=-1))


class EagleHeads(nn.Module):
    """Runs the layer once for each draft, on its own state after the draft before."""

    def __init__(self, shape: HeadsShape, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        size, self.drafts, self.together = shape.hidden_size, shape.drafts, 1
        self.layer = Layer(shape, dtype, device)
        self.out = Linear(_MATRIX, size, (size,), False, dtype, device)

    def step(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map […, 2 D] to the next state and the features for the model's head, […, D] each."""
        state = self.layer(x)
        return state, self.out.after(self.layer.norm, state)

    def draft(self, x: Tensor, count: int, draw: Draw, join: Join) -> None:
        for number in range(count):
            state, features = self.step(x)
            draw(features.unsqueeze(1), number)
            if number + 1 < count:
                x = join(state, number + 1)

    def unrolled(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        places = hidden.shape[1] - self.drafts
        state, found = hidden[:, :places], []
        for number in range(self.drafts):
            state, features = self.step(torch.cat([state, embedded[:, number + 1 : number + 1 + places]], dim=-1))
            found.append(features)
        return torch.stack(found, dim=2)


_MATRIX = MatrixId("gate_up", None)  # belongs to no layer of the model
_CLASSES: dict[str, type[MedusaHeads] | type[EagleHeads]] = {"medusa": MedusaHeads, "eagle": EagleHeads}


def create_heads(shape: HeadsShape, *, dtype: torch.dtype, device: torch.device | str) -> MedusaHeads | EagleHeads:
    """Create heads whose weights are not set yet."""
    return _CLASSES[shape.kind](shape, dtype, device).eval()


def first_heads(heads: MedusaHeads | EagleHeads, count: int) -> MedusaHeads | EagleHeads:
    """Make heads for the first `count` drafts alone, on the same weights. Eagle's are the same for every draft."""
    if isinstance(heads, EagleHeads):
        return heads
    blocks = heads.blocks.weight[: count * heads.shape.hidden_size]
    first = MedusaHeads(replace(heads.shape, drafts=count), blocks.dtype, "meta").eval()
    first.layer, first.blocks.weight = heads.layer, nn.Parameter(blocks, requires_grad=False)
    return first
