"""Heads of random weights for the tiny models, and what they must draft: worked out from the whole text each time."""

from pathlib import Path

import torch

from gradus.attention.whole import WholeSequence
from gradus.models import Model
from gradus.speculative.heads import HeadsShape, create_heads
from gradus.speculative.heads_drafter import draft_head
from gradus.speculative.heads_folder import HeadsConfig, fingerprint, read_config, read_heads, write_heads

DRAFTS = 3


def heads_of(model: Model, folder: Path, kind: str, vocabulary: int | None = None, repeating: bool = False) -> str:
    """Writes heads for the model; returns what `speculate` takes. repeating: those that only scale the hidden state,
    so that each of medusa's drafts is what the model said: the newest token."""
    config = model.config
    shape = HeadsShape(kind, DRAFTS, config.hidden_size, 96, vocabulary or config.vocab_size)
    heads = create_heads(shape, dtype=torch.float32, device="cpu")
    generator = torch.Generator().manual_seed(11)
    for name, parameter in heads.named_parameters():
        around = 1.0 if "norm" in name else 0.0
        parameter.data.normal_(0, 0 if repeating else 0.3, generator=generator).add_(around)
        if repeating and name in ("layer.fuse.weight", "blocks.weight"):
            size = config.hidden_size
            parameter.data[:, :size] = torch.eye(size).repeat(len(parameter) // size, 1)
    write_heads(folder, HeadsConfig(shape, config.family, config.vocab_size, fingerprint(model)), heads)
    return f"heads:{folder}"


class Reference:
    """What heads draft greedily after a text, from one forward pass over all of it."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model, self.config = model, read_config(folder)
        self.heads = read_heads(folder, self.config, dtype=torch.float32, device=torch.device("cpu"))
        self.head = draft_head(model, self.config.shape.vocabulary)

    @torch.no_grad()
    def drafts(self, said: list[int], count: int) -> list[int]:
        hidden, known = self.hidden(said)[-2:-1], list(said)

        def draw(features, first):
            known.extend(self.head(features).argmax(-1)[0].tolist())

        def join(states, after):
            place = len(said) - 1 + after
            embedded = self.model.embed(torch.tensor(known[place : place + 1]), torch.tensor([place]))
            return torch.cat([states, embedded], dim=-1)

        self.heads.draft(join(hidden, 0), count, draw, join)
        return known[len(said) :]

    def hidden(self, said: list[int]) -> torch.Tensor:
        tokens = torch.tensor(said)
        return self.model(tokens, torch.arange(len(said)), WholeSequence(self.model.config))
