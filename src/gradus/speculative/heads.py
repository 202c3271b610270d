"""Heads that draft: trained on one model's hidden states, they say what comes after the next token.

When a step ends, the model's newest hidden state h has just been turned into the newest token. Both are there for
nothing, and a few matrices on top of them guess what follows. The model's own output head turns their answers into
logits, so a head is small: a few MB beside a model of hundreds.

    medusa    draft i = head(W_i layer(h, e)), e being the newest token's embedding: all drafts in one pass, and none
              knows what the others say (Medusa: Cai et al., arXiv 2401.10774, where heads do not see e)
    eagle     state = layer(state, e), draft = head(W state), again with the embedding of that draft: each draft knows
              those before it, and takes a pass of its own (EAGLE: Li et al., arXiv 2401.15077; the layer here has no
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
"""(states [B, D], i) → [B, 2 D]: beside each the embedding of its sequence's token at i positions after the newest."""


@dataclass(frozen=True, slots=True)
class HeadsShape:
    """kind: of KINDS. drafts: K. width: of the layer's MLP. vocabulary: they choose among the first so
    many tokens; these are the most frequent ones where a tokenizer numbers its tokens in the order of its merges."""

    kind: str
    drafts: int
    hidden_size: int
    width: int
    vocabulary: int


class DraftHeads(Protocol):
    """What both kinds are, beside modules. together: how many drafts of a sequence one pass gives."""

    together: int

    def draft(self, x: Tensor, count: int, draw: Draw, join: Join) -> None:
        """Draw `count` drafts of each sequence, K at most. x: [B, 2 D], as `join` gives it for the newest tokens and
        the hidden states that they were drawn from."""

    def unrolled(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """All drafts at all places of S whole sequences, for training: hidden and embedded are [S, L, D], of their
        tokens. Returns features [S, L - K, K, D]: at [t, i] they draft token t + 2 + i, knowing those before it as far
        as this kind does."""


class Layer(nn.Module):
    """What both kinds begin with: a hidden state and the embedding of the token after it, joined, then an MLP."""

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
        """[…, 2 D], a state and an embedding → […, D], not normalized yet."""
        x = self.fuse(x)
        return self.down.onto(x, self.gate_up.after(self.mlp_norm, x, self.gate))


class MedusaHeads(nn.Module):
    """The layer once, then K matrices side by side, as one product."""

    def __init__(self, shape: HeadsShape, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.shape, size, self.drafts = shape, shape.hidden_size, shape.drafts
        self.together = self.drafts
        self.layer = Layer(shape, dtype, device)
        self.blocks = Linear(_MATRIX, size, (size,) * shape.drafts, False, dtype, device)

    def features(self, x: Tensor) -> Tensor:
        """[…, 2 D] → […, K, D]."""
        return self.blocks.after(self.layer.norm, self.layer(x)).unflatten(-1, (self.drafts, -1))

    def draft(self, x: Tensor, count: int, draw: Draw, join: Join) -> None:
        draw(self.features(x)[:, :count], 0)

    def unrolled(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        places = hidden.shape[1] - self.drafts
        return self.features(torch.cat([hidden[:, :places], embedded[:, 1 : places + 1]], dim=-1))


class EagleHeads(nn.Module):
    """The layer once for each draft, on what it made of the draft before."""

    def __init__(self, shape: HeadsShape, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        size, self.drafts, self.together = shape.hidden_size, shape.drafts, 1
        self.layer = Layer(shape, dtype, device)
        self.out = Linear(_MATRIX, size, (size,), False, dtype, device)

    def step(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[…, 2 D] → the next state, and what the model's head takes, […, D] each."""
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


_MATRIX = MatrixId("gate_up", None)  # a matrix of no layer of the model's
_CLASSES: dict[str, type[MedusaHeads] | type[EagleHeads]] = {"medusa": MedusaHeads, "eagle": EagleHeads}


def create_heads(shape: HeadsShape, *, dtype: torch.dtype, device: torch.device | str) -> MedusaHeads | EagleHeads:
    """Heads whose weights are not set yet."""
    return _CLASSES[shape.kind](shape, dtype, device).eval()


def first_heads(heads: MedusaHeads | EagleHeads, count: int) -> MedusaHeads | EagleHeads:
    """Heads for the first `count` drafts alone, on the same weights. Eagle's are the same for every draft."""
    if isinstance(heads, EagleHeads):
        return heads
    blocks = heads.blocks.weight[: count * heads.shape.hidden_size]
    first = MedusaHeads(replace(heads.shape, drafts=count), blocks.dtype, "meta").eval()
    first.layer, first.blocks.weight = heads.layer, nn.Parameter(blocks, requires_grad=False)
    return first
