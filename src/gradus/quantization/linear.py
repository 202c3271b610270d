"""A matrix that is kept in another way than as floats: what every scheme has in common.

A scheme decides what is stored (`allocate`), how rows of a float matrix become that (`quantize`), and how it is
multiplied (`forward`). Rows come in any pieces: whole matrices from a checkpoint, a few at a time from noise.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.models.layers import Linear
from gradus.models.precision import widened_product

PIECE = 1 << 20  # values that are made wide at a time: 4 MB, which a processor's cache holds


class QuantizedLinear(Linear):
    """Subclass: `allocate`, `quantize`, `forward`, `dequantized`.

    No scheme has a parameter called `weight`: what takes that for floats would read something else.
    """

    whole: ClassVar[bool] = False
    """Whether `quantize` needs all rows of a matrix at once, because scales are shared between rows."""

    def assign(self, name: str, start: int, value: Tensor) -> None:
        if name != "weight":
            super().assign(name, start, value)
        elif self.whole:
            self._collect(start, value)
        else:
            self.quantize(start, value.to(self._device).float())

    def forward(self, x: Tensor) -> Tensor:
        """The scheme's product, in x's type."""
        raise NotImplementedError

    def quantize(self, start: int, weight: Tensor) -> None:
        """Store rows start, start + 1, …: float32 [rows, K]."""
        raise NotImplementedError

    store: Callable[..., None]
    """A scheme's own: takes rows start, start + 1, … in the parts that a checkpoint has them in."""

    def dequantized(self) -> Tensor:
        """What is stored, as the float32 matrix [N, K] that it stands for."""
        raise NotImplementedError

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _collect(self, start: int, value: Tensor) -> None:
        """Keep rows until a matrix is whole. Fused ones (q, k and v) are matrices of their own."""
        first = 0
        for rows in self.out_features:
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
    """float32 [..., 1]: by which a row is divided so that its largest magnitude becomes `largest`.

    A row of zeros is divided by something. NaN and infinity make a scale of the same kind, and so a row without a
    finite result: what a sequence ends by.
    """
    magnitudes = x.abs().amax(-1, keepdim=True).float().clamp(min=torch.finfo(torch.float32).tiny * largest)
    return quotient(magnitudes, largest)


def quotient(x: Tensor, divisor: float) -> Tensor:
    """x / divisor, rounded once on every device: torch on a GPU multiplies by 1 / divisor where it is a number."""
    return x / torch.full_like(x, divisor)


def product_in_pieces(x: Tensor, wide_rows: Callable[[int, int], Tensor], rows: int) -> Tensor:
    """x Wᵀ, a few rows of W at a time made floats, and rounded to x's type. wide_rows(first, end): rows of W."""
    step = max(1, PIECE // x.shape[1])
    parts = (F.linear(x, wide_rows(n, min(n + step, rows)).to(x.dtype)) for n in range(0, rows, step))
    return torch.cat(list(parts), 1)


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ in float32: x float32 [M, K], weight [N, K] in a narrower type."""
    return F.linear(x, weight.float()) if x.is_cuda else widened_product(x, weight)
