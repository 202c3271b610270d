"""Keys and values in 8 bits: e4m3, with a scale per token and head that is a power of two.

The scale comes from the vector alone, when it is stored. So what a page holds depends on its tokens and on nothing
else: another request may hit it as a prefix, and a preempted sequence computes it again.

A power of two, because multiplying by one is exact. A key is q · 2^n in every type that holds q's 4 bits, wherever the
scale comes in: on the key when it is read, or on the score that it led to. So kernels that multiply late and torch,
which multiplies at once, work with the same numbers. It costs next to nothing, for e4m3 is a float: its 3 bits of
mantissa are as fine at one exponent as at another. (largest / 448 would spare the largest value its error, and little
else.)

The least power of two is taken that brings the vector within e4m3's range, up to 448. A vector of zeros has the least
scale that float32 has. One with a NaN or an infinity is NaN altogether, its scale too: its sequence ends by it.
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
INVERSE = 254 << 23  # minus the bits of a power of two: the bits of its inverse


def to_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors [..., Dh] of any floating type as e4m3 [..., Dh], and their scales, float32 [...]."""
    wide = x.float()
    largest = wide.abs().amax(-1).view(torch.int32)
    scales = (((largest + BEYOND_MANTISSA) & EXPONENT) - EIGHT).clamp(min=LEAST)
    broken = torch.where(largest >= EXPONENT, float("nan"), 1.0)
    inverse = (INVERSE - scales).view(SCALE) * broken
    return (wide * inverse.unsqueeze(-1)).to(E4M3), scales.view(SCALE) * broken


def from_e4m3(values: Tensor, scales: Tensor, out: Tensor) -> Tensor:
    """Fill `out`, [..., Dh] of any floating type, with what is meant; exact unless it is beyond that type's range."""
    return out.copy_(values).mul_(scales.unsqueeze(-1))


def rounded(x: Tensor) -> Tensor:
    """Vectors [..., Dh] as they would be read again, in their own type."""
    return from_e4m3(*to_e4m3(x), out=torch.empty_like(x))
