"""Keys and values in 8 bits: e4m3, with a scale per token and head that is a power of two.

The scale comes from the vector alone, when it is stored. So a page's contents depend only on its tokens:
another request may hit it as a prefix, and a preempted sequence computes the same again.

It is a power of two, because multiplying by one is exact. A key is q · 2^n in every type that holds q's 4 bits, whether
the scale multiplies the key when it is read, or the score. So kernels, which multiply late, and torch,
which multiplies at once, work with the same numbers. It costs next to nothing, because e4m3 is a float: its 3 bits of
mantissa are as fine at one exponent as at another. (A scale of largest / 448 would spare the largest value its error,
and little else.)

The scale is the smallest power of two that brings the vector within e4m3's range, up to 448. A vector of zeros has the
smallest scale of float32. A vector with a NaN or an infinity becomes all NaN, with its scale, which ends its sequence.
"""

import torch
from torch import Tensor

from gradus.quantization.fp8 import E4M3

SCALE = torch.float32
EXPONENT = 0x7F800000  # the bits of float32's exponent; as a number, infinity's
# Added to a float's bits, it carries into the exponent where the mantissa is above 1.75: 448 is 1.75 · 2^8
BEYOND_MANTISSA = 0x1FFFFF
EIGHT = 8 << 23
LEAST = 1 << 23  # the bits of 2^-126
INVERSE = 254 << 23  # this minus the bits of a power of two gives the bits of its inverse


def to_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round vectors [..., Dh] of any floating type to e4m3 [..., Dh], with scales, float32 [...]."""
    wide = x.float()
    largest = wide.abs().amax(-1).view(torch.int32)
    scales = (((largest + BEYOND_MANTISSA) & EXPONENT) - EIGHT).clamp(min=LEAST)
    broken = torch.where(largest >= EXPONENT, float("nan"), 1.0)
    inverse = (INVERSE - scales).view(SCALE) * broken
    return (wide * inverse.unsqueeze(-1)).to(E4M3), scales.view(SCALE) * broken


def from_e4m3(values: Tensor, scales: Tensor, out: Tensor) -> Tensor:
    """Fill `out`, [..., Dh] of any floating type, with the values; exact within that type's range."""
    return out.copy_(values).mul_(scales.unsqueeze(-1))


def rounded(x: Tensor) -> Tensor:
    """Round vectors [..., Dh] as a cache in 8 bits would, in their own type."""
    return from_e4m3(*to_e4m3(x), out=torch.empty_like(x))
