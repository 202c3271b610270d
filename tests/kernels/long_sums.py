"""Attention of one query to a long text in which one key matters, and sums in registers of too few bits."""

import math

import torch
from torch import Tensor

from gradus.quantization.kv import rounded

SHARE = 1 / 500
"""The needle's weight, as a share of all weights."""
WIDTH = 32
SCALE = 0.3
HAY, NEEDLE = 1.0, -1.0
"""The mean of the others' values, and the needle's."""


def haystack(keys: int, depth: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, int]:
    """(q [1, 1, D], k [keys, 1, D], v the same, the needle's position), in float32. 8 bits hold k and v exactly."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 1, WIDTH, generator=generator)
    k = 0.1 * torch.randn(keys, 1, WIDTH, generator=generator)
    v = HAY + 0.25 * torch.randn(keys, 1, WIDTH, generator=generator)
    at = int(depth * keys)
    k[at] = q[0] * math.log(SHARE * keys) / (SCALE * q.square().sum())
    v[at] = NEEDLE
    return q, rounded(k), rounded(v), at


def weights(q: Tensor, k: Tensor) -> Tensor:
    """The softmax's weights, in float64 [keys]."""
    return torch.softmax(SCALE * (k[:, 0].double() @ q[0, 0].double()), 0)


def missed(q: Tensor, k: Tensor, v: Tensor, at: int) -> Tensor:
    """The needle's part of the result, in float64 [D]: what is missing if a usual value takes its place."""
    return weights(q, k)[at] * (v[at, 0].double() - HAY)


def in_register(terms: Tensor, bits: int, at_once: int = 32) -> Tensor:
    """Sum terms [n, D] as a tensor core does: `at_once` exactly, then onto a register that keeps `bits` bits and drops
    the others. 32: e4m3 products per instruction on Hopper, whose registers were found to keep about 14 bits
    (DeepSeek-V3, section 3.3.2)."""
    total = torch.zeros_like(terms[0])
    for part in terms.split(at_once):
        fraction, exponent = torch.frexp(total + part.sum(0))
        total = torch.ldexp(torch.trunc(torch.ldexp(fraction, torch.tensor(bits))), exponent - bits)
    return total
