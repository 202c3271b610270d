"""RoPE (rotary position embedding): queries and keys are turned by an angle that grows with their position."""

import torch
from torch import Tensor


def angles(length: int, head_dim: int, theta: float) -> Tensor:
    """[T, Dh/2]: at position p, pair i turns by p / theta^(2i / Dh) radians: pair 0 fast, the last one slowly."""
    positions = torch.arange(length)  # [T]
    pairs = torch.arange(head_dim // 2)  # [Dh/2]
    speeds = 1 / theta ** (2 * pairs / head_dim)  # [Dh/2], in radians per position
    return positions[:, None] * speeds[None, :]  # [T, 1] · [1, Dh/2] → [T, Dh/2]


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn every head of every token. x: [T, H, Dh], turns: [T, Dh/2] → [T, H, Dh].

    Pair i is (a, b) = (x[i], x[i + Dh/2]). Turned by the angle α it is (a cos α - b sin α, b cos α + a sin α).
    """
    cos, sin = turns.cos()[:, None, :], turns.sin()[:, None, :]  # [T, 1, Dh/2] each: the same for all heads
    a, b = x.chunk(2, dim=-1)  # [T, H, Dh/2] each
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)  # [T, H, Dh]
