"""A matrix that is not stored as floats: the base of every scheme.

A scheme defines its storage (`allocate`), how it rounds rows of a float matrix (`quantize`), and how it
multiplies (`forward`). Rows arrive in any pieces: whole matrices from a checkpoint, a few at a time from noise.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.models.layers import Linear
from gradus.models.precision import widened_product

PLANE = 32  # activations that are rounded with one scale
PIECE = 1 << 20  # values to widen at a time: 4 MB, which a processor's cache holds
ASSIGNED = 1 << 26  # values to quantize at a time: all experts' weights at once would take gigabytes of float32


class QuantizedLinear(Linear):
    """Subclasses implement `allocate`, `quantize`, `forward` and `dequantized`.

    No scheme has a parameter called `weight`, because other code would take it for floats.
    """

    whole: ClassVar[bool] = False
    """Whether `quantize` needs all rows of a matrix at once, because scales are shared between rows."""

    def assign(self, name: str, start: int, value: Tensor) -> None:
        if name != "weight":
            super().assign(name, start, value)
        elif self.whole:
            self._collect(start, value)
        else:
            for rows in value.split(max(1, ASSIGNED // self.in_features)):
                self.quantize(start, rows.to(self._device).float())
                start += len(rows)

    @property
    def matrices(self) -> tuple[int, ...]:
        """The rows of each matrix that is quantized on its own, one above another."""
        return self.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the scheme's rules, and return x's type."""
        raise NotImplementedError

    def quantize(self, start: int, weight: Tensor) -> None:
        """Store rows start, start + 1, …: float32 [rows, K]."""
        raise NotImplementedError

    store: Callable[..., None]
    """Stores rows start, start + 1, … from a checkpoint's parts, which each scheme defines."""

    def dequantized(self) -> Tensor:
        """The stored matrix as float32 [N, K]."""
        raise NotImplementedError

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _collect(self, start: int, value: Tensor) -> None:
        """Keep rows until a matrix is whole. Fused matrices (q, k and v) are collected separately."""
        first = 0
        for rows in self.matrices:
            low, high = max(start, first), min(start + len(value), first + rows)
            if low < high:
                self._collect_one(first, rows, low, value[low - start : high - start])
            first += rows

    def _collect_one(self, first: int, rows: int, low: int, value: Tensor) -> None:
        if len(value) == rows:
            self.quantize(first, value.to(self._device).float())
            return
        waiting: dict[int, tuple[Tensor, int]] = vars(self).setdefault("_waiting", {})
        kept, count = waiting.pop(first, (None, 0))
        if kept is None:
            kept = torch.empty(rows, self.in_features, device=self._device)
        kept[low - first : low - first + len(value)] = value
        if count + len(value) < rows:
            waiting[first] = kept, count + len(value)
        else:
            self.quantize(first, kept)


def row_scales(x: Tensor, largest: float) -> Tensor:
    """Compute scales, float32 [..., 1]. Dividing a row by its scale makes its largest magnitude `largest`.

    The scale of a row of zeros is positive. NaN or infinity in a row make its scale NaN or infinity, and so its results
    not finite, which ends the sequence.
    """
    magnitudes = x.abs().amax(-1, keepdim=True).float().clamp(min=torch.finfo(torch.float32).tiny * largest)
    return quotient(magnitudes, largest)


def rounded_planes(x: Tensor) -> Tensor:
    """Round activations to int8, each PLANE of a row with a scale of its own, and return them in x's type: [..., K].

    K must be a multiple of PLANE. Source: llama.cpp's Q8_0.
    """
    planes = x.float().unflatten(-1, (-1, PLANE))
    scales = row_scales(planes, 127)
    return ((planes * (1 / scales)).round() * scales).flatten(-2).to(x.dtype)


def quotient(x: Tensor, divisor: float) -> Tensor:
    """Divide, rounding once on every device: for a plain number, torch on a GPU would multiply by 1 / divisor."""
    return x / torch.full_like(x, divisor)


def product_in_pieces(x: Tensor, wide_rows: Callable[[int, int], Tensor], rows: int) -> Tensor:
    """Compute x Wᵀ in x's type, widening a few rows of W at a time. wide_rows(first, end): rows of W as floats."""
    step = max(1, PIECE // x.shape[1])
    parts = (F.linear(x, wide_rows(n, min(n + step, rows)).to(x.dtype)) for n in range(0, rows, step))
    return torch.cat(list(parts), 1)


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """Compute x Wᵀ in float32: x float32 [M, K], weight [N, K] in a narrower type."""
    return F.linear(x, weight.float()) if x.is_cuda else widened_product(x, weight)
