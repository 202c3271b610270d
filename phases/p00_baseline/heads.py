"""Many heads attend side by side, and with grouped queries several of them share one head of keys and values."""

import torch
from torch import Tensor

from phases.p00_baseline.attention import attend


def split(x: Tensor, head_dim: int) -> Tensor:
    """[T, H Dh] → [T, H, Dh]. The first Dh numbers of a row belong to head 0, the next Dh to head 1, and so on."""
    return x.reshape(len(x), -1, head_dim)  # [T, H, Dh]


def attend_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q: [T, Hq, Dh], k and v: [T, Hkv, Dh] → [T, Hq, Dh].

    The first Hq / Hkv query heads read key and value head 0, the next as many read head 1, and so on.
    """
    group = q.shape[1] // k.shape[1]  # query heads per key head: 3 in SmolLM2
    heads = [attend(q[:, h], k[:, h // group], v[:, h // group]) for h in range(q.shape[1])]  # Hq times [T, Dh]
    return torch.stack(heads, dim=1)  # [T, Hq, Dh]
