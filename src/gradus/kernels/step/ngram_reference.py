"""Looks drafts up in the text itself, in torch: the tokens that followed the last time the same tokens occurred."""

import torch
from torch import Tensor

SHORTEST, LONGEST = 2, 4
"""The tokens that must agree, and the longest agreement that counts."""

NO_DRAFT = -1


def look_up(tokens: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Look up `count` drafts for each sequence. tokens: integers [B, L]; lengths: int64 [B]. Returns int64 [B, count].

    A match near the end is followed by fewer than `count` tokens: these are then repeated, as the text does.
    """
    width = tokens.shape[1]
    places = torch.arange(width, device=tokens.device)
    newest = lengths.unsqueeze(1) - 1
    agree = torch.ones_like(tokens, dtype=torch.bool)
    agreed = torch.zeros_like(tokens)  # how many tokens up to each place agree with the newest ones
    for back in range(LONGEST):
        wanted = tokens.gather(1, (newest - back).clamp(min=0))
        agree[:, back:] &= tokens[:, : max(width - back, 0)] == wanted
        agree &= (places >= back) & (newest >= back)
        agreed += agree
    scores = torch.where(places < newest, agreed.long() * width + places, 0)  # by length, then by place
    best, found = scores.max(dim=1, keepdim=True)
    steps = torch.arange(count, device=tokens.device)
    period = (newest - found).clamp(min=1)
    drafts = tokens.gather(1, (found + 1 + steps % period).clamp(max=width - 1)).long()
    return torch.where(best >= SHORTEST * width, drafts, NO_DRAFT)
