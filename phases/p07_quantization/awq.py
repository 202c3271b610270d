"""AWQ: widen the input channels that matter before rounding, and narrow their inputs by the same factors.

x Wᵀ = (x / s) (W s)ᵀ for any factors s of the input channels. Rounding W s instead of W leaves each weight an error of
up to half a step as before, but the input that carries it is smaller by s. So channels with large inputs want a large
s. Too large, and the channel's weights widen the step for all others of their group. A formula with one free exponent
proposes factors, and twenty exponents are tried on real inputs. (Lin et al. 2023, "AWQ: activation-aware weight
quantization".)

Shapes: T tokens, N outputs, K input channels.
"""

import torch
from torch import Tensor

from phases.p07_quantization.rounding import GROUP, TINY, dequantize_groups, quantize_groups

RATIOS = tuple(i / 20 for i in range(20))
SMALLEST = 1e-4  # smallest factor, and smallest divisor


def rounded(w: Tensor, factors: Tensor, group: int = GROUP, bits: int = 4) -> Tensor:
    """The matrix [N, K] that takes the place of `w` where w * factors is rounded. factors: [K]."""
    return dequantize_groups(*quantize_groups(w * factors, group, bits)) / factors


def output_error(x: Tensor, w: Tensor, instead: Tensor) -> float:
    """Mean squared difference between x wᵀ and x insteadᵀ. x: [T, K]; w, instead: [N, K]."""
    return float((x @ (w - instead).T).square().mean())


def size_in_group(w: Tensor, group: int = GROUP) -> Tensor:
    """[N, K] → [K]: how large a column's weights are, as a part of the largest one of their group, on average."""
    groups = w.abs().unflatten(1, (-1, group))
    return (groups / groups.amax(dim=2, keepdim=True).clamp(min=TINY)).flatten(1).mean(dim=0)


def factors_at(ratio: float, x_size: Tensor, w_size: Tensor) -> Tensor:
    """The factors [K] for one exponent: x_size^ratio / w_size^(1 - ratio), balanced around 1.

    x_size: [K], a channel's mean absolute input. w_size: [K], see `size_in_group`. With ratio 1 the inputs alone
    decide, with 0 the weights alone. Balanced means that the largest factor times the smallest is 1.
    """
    factors = (x_size**ratio / (w_size ** (1 - ratio) + SMALLEST)).clamp(min=SMALLEST)
    return factors / (factors.max() * factors.min()).sqrt()


def search(x: Tensor, w: Tensor, group: int = GROUP, bits: int = 4) -> Tensor:
    """The factors [K] with the least error of the layer's output, among those of RATIOS and plain rounding.

    x: [T, K], inputs that the layer has seen. w: [N, K].
    """
    x_size, w_size = x.abs().mean(dim=0), size_in_group(w, group)
    best = torch.ones_like(x_size)
    least = output_error(x, w, rounded(w, best, group, bits))
    for ratio in RATIOS:
        factors = factors_at(ratio, x_size, w_size)
        error = output_error(x, w, rounded(w, factors, group, bits))
        if error < least:
            best, least = factors, error
    return best
