"""int8: integers of 8 bits for weights, one scale per row, and for activations, one scale per token.

    w ≈ s_n q_w,  x ≈ s_m q_x,  so  y = s_m s_n Σ q_x q_w

The sum is over integers, and so exact in any order. Scales of activations are computed at run time ("dynamic"): a
token's scale depends only on the token. (Dettmers et al. 2022, "LLM.int8()", arXiv 2208.07339, without separate
outliers; Xiao et al. 2023, "SmoothQuant", arXiv 2211.10438, its O3 with scales per token.)

A decode reads half the bytes of bfloat16. A prompt gains from integer arithmetic, which is twice as fast on a GPU.
"""

from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.models.layers import parameter
from gradus.models.precision import race, widened_product
from gradus.quantization.linear import QuantizedLinear, row_scales

LARGEST = 127.0
FEWEST_ROWS = 32  # torch's integer product needs more than 16 on a GPU
ALIGNED = 8  # torch's product also needs widths that are multiples of this


class Int8Linear(QuantizedLinear):
    """values: int8 [N, K]; scales: float32 [N]."""

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        rows = sum(self.out_features)
        self.values = parameter((rows, self.in_features), torch.int8, device)
        self.scales = parameter((rows,), torch.float32, device)

    def quantize(self, start: int, weight: Tensor) -> None:
        self.store(start, *to_int8(weight))

    def store(self, start: int, values: Tensor, scales: Tensor) -> None:
        """Store rows of a checkpoint: int8 [rows, K], and scales [rows, 1]."""
        rows = slice(start, start + len(values))
        self.values[rows], self.scales[rows] = values, scales.squeeze(1)

    def dequantized(self) -> Tensor:
        return self.values.float() * self.scales.unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        values, scales = to_int8(x)
        out = (integer_product(values, self.values) * scales * self.scales).to(x.dtype)
        return out if self.bias is None else out + self.bias


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to integers, int8 [M, K], with a scale, float32 [M, 1]."""
    scales = row_scales(x, LARGEST)
    return (x.float() / scales).round().to(torch.int8), scales


def integer_product(x: Tensor, weight: Tensor) -> Tensor:
    """Compute x Wᵀ of int8 [M, K] and [N, K], summed exactly in int32 [M, N]."""
    if not x.is_cuda:
        if not _prefers_floats(torch.get_num_threads()):
            return torch._int_mm(x, weight.t())
        return product_in_floats(x, weight)
    if (weight.shape[0] | weight.shape[1]) % ALIGNED:
        return (x.double() @ weight.double().t()).int()
    missing = max(0, FEWEST_ROWS - x.shape[0])
    return torch._int_mm(F.pad(x, (0, 0, 0, missing)), weight.t())[: x.shape[0]]


EXACT = (1 << 24) // (127 * 128)
"""Products of an activation and a weight whose sum float32 holds exactly, in any order: 1,032."""


def product_in_floats(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the integer product of int8 [M, K] and [N, K] by products of float32, which are exact.

    The absolute values of an activation and a weight are at most 127 and 128. So no sum of EXACT columns exceeds
    2²⁴, up to which float32 has all integers. Wider rows are cut.
    """
    width = x.shape[1]
    parts = -(-width // EXACT)
    step = -(-width // parts)
    wide = x.float()
    sums = [
        widened_product(wide[:, first : first + step], weight[:, first : first + step]).int()
        for first in range(0, width, step)
    ]
    return sums[0] if parts == 1 else torch.stack(sums).sum(0, dtype=torch.int32)


@cache
def _prefers_floats(threads: int) -> bool:
    """Whether a prompt's integer product is faster by floats on this processor, or only right by floats.

    Torch's own product of integers is a plain loop on processors without VNNI, some 20 times slower; or oneDNN's with
    AVX2's instruction, which saturates: its sums of large values are wrong. threads: torch's.
    """
    x, weight = (torch.full((rows, 512), 127, dtype=torch.int8) for rows in (64, 1024))
    if not torch.equal(torch._int_mm(x, weight.t()), product_in_floats(x, weight)):
        return True
    integers, floats = race(partial(torch._int_mm, x, weight.t()), partial(product_in_floats, x, weight), rounds=2)
    return floats < integers
