"""fp8: floats of 8 bits (e4m3: 4 bits of exponent, 3 of mantissa) for weights and activations.

Rounding is relative to each value, while integers round all values of a row with the same step. So one large value
harms its row less, but all other values lose more: 3 bits of mantissa mean an error of up to 6 % at any magnitude.

There are two kinds: a scale per row of weights and per token (`fp8`), and a scale per block of 128 x 128 weights and
per 128 activations of a token (`fp8-block`, as DeepSeek-V3 was trained: arXiv 2412.19437, section 3.3). Activations get
their scales at run time, from the token alone. Sums are float32. (e4m3: Micikevicius et al. 2022, arXiv 2209.05433.)
"""

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.models.layers import Linear, MatrixId, parameter
from gradus.quantization.linear import QuantizedLinear, row_scales, wide_product

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max  # 448
BLOCK = 128


class Fp8Linear(QuantizedLinear):
    """values: e4m3 [N, K]; scales: float32 [N]."""

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        rows = sum(self.out_features)
        self.values = parameter((rows, self.in_features), E4M3, device)
        self.scales = parameter((rows,), torch.float32, device)

    def quantize(self, start: int, weight: Tensor) -> None:
        self.store(start, *to_fp8(weight))

    def store(self, start: int, values: Tensor, scales: Tensor) -> None:
        """Store rows of a checkpoint: e4m3 [rows, K], and scales [rows, 1]."""
        rows = slice(start, start + len(values))
        self.values[rows], self.scales[rows] = values, scales.squeeze(1)

    def dequantized(self) -> Tensor:
        return self.values.float() * self.scales.unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        values, scales = to_fp8(x)
        out = (wide_product(values.float(), self.values) * scales * self.scales).to(x.dtype)
        return out if self.bias is None else out + self.bias


class Fp8BlockLinear(QuantizedLinear):
    """values: e4m3 [N, K]; scales: float32 [blocks, ⌈K / 128⌉]; block_of_row: int64 [N], the row of `scales`.

    Every fused matrix has its own blocks; its last ones may be smaller than 128. experts: the number of equal matrices
    that each of out_features consists of.
    """

    whole = True
    block_of_row: Tensor

    def __init__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        experts: int = 1,
    ) -> None:
        self.experts = experts
        super().__init__(matrix_id, in_features, out_features, bias, dtype, device)

    @property
    def matrices(self) -> tuple[int, ...]:
        return tuple(rows // self.experts for rows in self.out_features for _ in range(self.experts))

    def rows_of(self, name: str, value: Tensor, first: int, end: int) -> Tensor:
        return value if name == "scales" else value[first:end]

    def part(self, first: int, end: int) -> Linear:
        part = cast(Fp8BlockLinear, super().part(first, end))
        part.experts = 1
        return part

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        rows = sum(self.out_features)
        counts = [blocks(width) for width in self.matrices]
        self.values = parameter((rows, self.in_features), E4M3, device)
        self.scales = parameter((sum(counts), blocks(self.in_features)), torch.float32, device)
        first, places = 0, []
        for width, count in zip(self.matrices, counts, strict=True):
            places.append(first + torch.arange(width, device=device) // BLOCK)
            first += count
        self.register_buffer("block_of_row", torch.cat(places))

    def quantize(self, start: int, weight: Tensor) -> None:
        rows, columns = weight.shape
        padded = F.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
        tiles = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).transpose(1, 2)  # [row, column, 128, 128]
        values, scales = to_fp8(tiles.flatten(2))
        values = values.unflatten(2, (BLOCK, BLOCK)).transpose(1, 2).flatten(2).flatten(0, 1)
        self.store(start, values[:rows, :columns], scales.squeeze(2))

    def store(self, start: int, values: Tensor, scales: Tensor) -> None:
        """Store one matrix of a checkpoint: e4m3 [rows, K], scales [⌈rows / 128⌉, ⌈K / 128⌉] to multiply by."""
        first = int(self.block_of_row[start])
        self.values[start : start + len(values)] = values
        self.scales[first : first + len(scales)] = scales

    def dequantized(self) -> Tensor:
        scales = self.scales[self.block_of_row].repeat_interleave(BLOCK, 1)
        return self.values.float() * scales[:, : self.in_features]

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(rounded_in_blocks(x), self.dequantized()).to(x.dtype)
        return out if self.bias is None else out + self.bias


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to e4m3, [..., K], with a scale, float32 [..., 1]."""
    scales = row_scales(x, LARGEST)
    return (x.float() / scales).to(E4M3), scales


def rounded_in_blocks(x: Tensor) -> Tensor:
    """Round [M, K], each 128 values of a token to e4m3 by their own scale. Returns float32."""
    values, scales = to_fp8(F.pad(x, (0, -x.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK)))
    return (values.float() * scales).flatten(1)[:, : x.shape[1]]


def blocks(width: int) -> int:
    return -(-width // BLOCK)
