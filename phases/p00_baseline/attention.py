"""Attention of one head: each token takes a weighted mean of the values that it and the tokens before it offer."""

import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    """[T, T] of bool: row i, column j is True where token i may see token j. It sees itself and all before it."""
    places = torch.arange(length)  # [T]: 0, 1, …
    return places[None, :] <= places[:, None]  # [1, T] with [T, 1] → [T, T]: column j ≤ row i


def softmax(scores: Tensor) -> Tensor:
    """exp(x) / Σ exp(x) of each row: numbers from 0 to 1 that add up to 1. [..., N] → [..., N]."""
    largest = scores.amax(dim=-1, keepdim=True)  # [..., 1]
    powers = (scores - largest).exp()  # [..., N]: exp(large) would be infinite; the quotient stays the same
    return powers / powers.sum(dim=-1, keepdim=True)  # [..., N] / [..., 1] → [..., N]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / √Dh) v, where no token sees a later one. q, k, v: [T, Dh] → [T, Dh]."""
    scores = q @ k.T / q.shape[-1] ** 0.5  # [T, Dh] @ [Dh, T] → [T, T]: row i, how well each key fits query i
    scores = scores.masked_fill(~causal_mask(len(q)), -torch.inf)  # [T, T]: exp(-inf) is 0, so a later token counts 0
    return softmax(scores) @ v  # [T, T] @ [T, Dh] → [T, Dh]
