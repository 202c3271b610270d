"""A matrix that keeps statistics of its inputs: all that a quantizer needs to know about activations."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.models.layers import Linear


class ObservedLinear(Linear):
    """A matrix with statistics over all rows since `observe`. gram: float32 [K, K], Σ xᵀx. magnitude: float32 [K], the
    mean |x|."""

    _gram: Tensor | None = None

    def observe(self) -> None:
        """Start new statistics."""
        self._gram = torch.zeros(self.in_features, self.in_features, device=self.weight.device)
        self._sums = torch.zeros(self.in_features, device=self.weight.device)
        self._rows = 0

    def rescaled(self, factors: Tensor) -> None:
        """Divide the statistics by factors [K] of the columns, because later inputs will be divided by them."""
        if self._gram is not None:
            self._gram.div_(factors).div_(factors.unsqueeze(1))
            self._sums.div_(factors)

    def forget(self) -> None:
        self._gram = None

    @property
    def gram(self) -> Tensor:
        assert self._gram is not None, "nothing was observed"
        return self._gram

    @property
    def magnitude(self) -> Tensor:
        return self._sums / max(self._rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self._gram is not None:
            wide = x.float()
            self._gram.addmm_(wide.t(), wide)
            self._sums += wide.abs().sum(0)
            self._rows += len(wide)
        return F.linear(x, self.weight, self.bias)
