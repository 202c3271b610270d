"""int8-g32: integers of 8 bits in groups of 32 along a row, each with a scale. Activations are not rounded.

    w ≈ s_g q,  q in -127 … 127

It is llama.cpp's Q8_0, and the alternative to `int8` that rounds only the weights. As with `int4`, the weight is this
product rounded once to the type of the activations, and products are float products. Scales are float16, as in the
files.
"""

import torch
from torch import Tensor

from gradus.errors import ConfigError
from gradus.models.layers import MatrixId, parameter
from gradus.quantization.int8 import LARGEST
from gradus.quantization.linear import QuantizedLinear, product_in_pieces, quotient

GROUP = 32


class Int8GroupLinear(QuantizedLinear):
    """values: int8 [N, K]; scales: float16 [N, K / 32]. Raises ConfigError if 32 does not divide K."""

    def __init__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if in_features % GROUP:
            raise ConfigError(f"int8-g32: groups of {GROUP} do not divide rows of {in_features} weights")
        super().__init__(matrix_id, in_features, out_features, bias, dtype, device)

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        rows = sum(self.out_features)
        self.values = parameter((rows, self.in_features), torch.int8, device)
        self.scales = parameter((rows, self.in_features // GROUP), torch.float16, device)

    def quantize(self, start: int, weight: Tensor) -> None:
        groups = weight.unflatten(1, (-1, GROUP))
        scales = quotient(groups.abs().amax(-1), LARGEST).half()  # first, so that weights are rounded by stored scales
        steps = torch.where(scales > 0, scales, 1.0).float().unsqueeze(-1)
        self.store(start, (groups / steps).round().clamp(-LARGEST, LARGEST).flatten(1).to(torch.int8), scales)

    def store(self, start: int, values: Tensor, scales: Tensor) -> None:
        """Store rows of a checkpoint: int8 [rows, K], and scales [rows, K / 32]."""
        rows = slice(start, start + len(values))
        self.values[rows], self.scales[rows] = values, scales

    def dequantized(self) -> Tensor:
        return self.wide_rows(0, sum(self.out_features))

    def wide_rows(self, first: int, end: int) -> Tensor:
        """Widen rows to float32 [end - first, K]."""
        groups = self.values[first:end].float().unflatten(1, (-1, GROUP))
        return groups.mul_(self.scales[first:end].unsqueeze(-1)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        out = product_in_pieces(x, self.wide_rows, sum(self.out_features))
        return out if self.bias is None else out + self.bias
