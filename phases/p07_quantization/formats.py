"""Floats of 8 and of 4 bits, and the scales that make them useful: FP8, MXFP4, NVFP4.

A float is a sign, an exponent and a mantissa. Its points are dense near zero and sparse far from it, so its error is a
part of the number's own size, where an integer's is a part of the largest one's. A format is named by its bits: E4M3
has four for the exponent and three for the mantissa.

Sources: Micikevicius et al. 2022, "FP8 formats for deep learning"; OCP, "Microscaling formats (MX) specification", 1.0;
NVIDIA 2025, "Pretraining large language models with NVFP4".

Shapes: N outputs (rows of a matrix), K inputs (its columns).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 2.0**-126  # smallest scale: that of a block of zeros
MX, NV = 32, 16  # weights of a block


@dataclass(frozen=True)
class Form:
    """A float's bits besides the sign. largest: where a format keeps its last codes for infinity and NaN, or for NaN
    alone, it is not what the bits would say."""

    exponent: int
    mantissa: int
    largest: float

    @property
    def bias(self) -> int:
        """The number that is subtracted from the exponent's bits: half of them mean powers below 1."""
        return 2 ** (self.exponent - 1) - 1


E4M3 = Form(4, 3, 448.0)
E5M2 = Form(5, 2, 57344.0)
E2M1 = Form(2, 1, 6.0)


def points(form: Form) -> Tensor:
    """The values of the codes 0, 1, 2 … without a sign, up to the largest: float64, in ascending order.

    A code is the exponent's bits e, then the mantissa's m: (1 + m / 2^mantissa) · 2^(e - bias). For e = 0 it is
    (m / 2^mantissa) · 2^(1 - bias): evenly spaced down to zero (subnormal).
    """
    codes = torch.arange(2 ** (form.exponent + form.mantissa))
    exponent, fraction = codes >> form.mantissa, (codes % 2**form.mantissa).double() / 2**form.mantissa
    normal = torch.ldexp(1 + fraction, exponent - form.bias)
    values = torch.where(exponent > 0, normal, torch.ldexp(fraction, torch.tensor(1 - form.bias)))
    return values[values <= form.largest]


def encode(x: Tensor, form: Form) -> Tensor:
    """The code of the nearest point, uint8, with the sign as its highest bit. Ties go to the even code.

    Values beyond the largest point get it: they are not infinite.
    """
    values = points(form).to(x.dtype)
    halfway = (values[1:] + values[:-1]) / 2
    below = torch.bucketize(x.abs(), halfway)  # how many halfway points are below: a tie has the lower code
    tie = x.abs() == halfway[below.clamp(max=len(halfway) - 1)]
    codes = below + (tie & (below % 2 == 1))
    return (codes | (x.signbit().long() << (form.exponent + form.mantissa))).to(torch.uint8)


def decode(codes: Tensor, form: Form) -> Tensor:
    """float32, the shape of `codes`."""
    bits = form.exponent + form.mantissa
    values = points(form).float()[(codes % 2**bits).long()]
    return torch.where(codes >> bits == 1, -values, values)


def power_of_two(largest: Tensor, form: Form = E2M1) -> Tensor:
    """MX's scale of a block: a power of two, so 8 bits of exponent hold it (E8M0). largest: its largest magnitude.

    It moves the largest weight's exponent to that of the form's largest point. What then lies beyond that point, at
    most 4 / 3 of it for E2M1, is cut off to it.
    """
    highest = torch.tensor(form.largest).log2().floor()
    return torch.exp2(largest.clamp(min=TINY).log2().floor() - highest)


def two_scales(largest: Tensor) -> Tensor:
    """NVFP4's scales of blocks. largest: each block's largest magnitude, of any shape.

    A block's scale is an E4M3 that moves its largest weight to 6. E4M3 reaches from 2^-9 to 448 alone, so a float32
    that the whole tensor shares moves the largest of these scales to 448. Returns the products of the two.
    """
    tensor = (largest.max() / (E2M1.largest * E4M3.largest)).clamp(min=TINY)
    blocks = decode(encode(largest / E2M1.largest / tensor, E4M3), E4M3).to(largest.dtype)
    return blocks.clamp(min=2.0**-9) * tensor


def fp8(w: Tensor, group: int = 0, form: Form = E4M3) -> Tensor:
    """Round [N, K] with a scale that moves the largest weight to the largest point.

    group: weights of a row that share a scale; 0 for all weights of the matrix. Returns the points times their scales.
    """
    groups = w.unflatten(1, (-1, group)) if group else w.flatten()[None, None]
    scale = groups.abs().amax(dim=-1, keepdim=True).clamp(min=TINY) / form.largest
    return _rounded(groups, scale, form).view(w.shape)


def mxfp4(w: Tensor) -> Tensor:
    """Round [N, K] to E2M1, 32 weights to a power of two."""
    groups = w.unflatten(1, (-1, MX))
    return _rounded(groups, power_of_two(groups.abs().amax(dim=-1, keepdim=True)), E2M1).flatten(1)


def nvfp4(w: Tensor) -> Tensor:
    """Round [N, K] to E2M1, 16 weights to an E4M3, and all to a float32."""
    groups = w.unflatten(1, (-1, NV))
    return _rounded(groups, two_scales(groups.abs().amax(dim=-1, keepdim=True)), E2M1).flatten(1)


def _rounded(groups: Tensor, scale: Tensor, form: Form) -> Tensor:
    return decode(encode(groups / scale, form), form).to(scale.dtype) * scale
