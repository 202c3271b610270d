"""mxfp4: floats of 4 bits (e2m1: a sign, 2 bits of exponent, 1 of mantissa) in blocks of 32 along a row, each with a
power of two (e8m0: 8 bits of exponent). Activations are not rounded.

    w = 2^(e - 127) v,  v in 0, ±0.5, ±1, ±1.5, ±2, ±3, ±4, ±6

(OCP Microscaling Formats, version 1.0. gpt-oss is published in it: arXiv 2508.10925.) That is 4.25 bits per weight. A
power of two costs no mantissa, so a product by it is exact, and the weight too in bfloat16.

A block is 17 bytes: e, then 16 bytes whose lower halves are values 0 to 15 and whose upper halves are values 16 to 31.
Files of llama.cpp have that form, and a CPU keeps it (`gguf.py`). On a GPU no load of it could be wider than a byte:
there the values are int16 words of four planes of 16 columns, as those of `int4.py`, and exponents lie apart.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.errors import CheckpointError, ConfigError
from gradus.models.layers import MatrixId, parameter
from gradus.quantization.linear import ASSIGNED, QuantizedLinear, product_in_pieces

BLOCK, SIZE = 32, 17  # values and bytes
BIAS = 127
NOT_A_NUMBER = 255  # the exponent that means NaN
LARGEST_STORED = 128  # exponent that the kernels can multiply by: see `kernels/quantized/mxfp4.py`
TILE, PLANES, PLANE = 64, 4, 16
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NIBBLE = 15
LARGEST_EXPONENT = 2  # of e2m1: 4 is 2²

# the largest magnitude that is still rounded to the code: halfway to the next one, where the tie goes to even codes
_HALFWAY = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
_LIMITS = [half if code % 2 == 0 else half * (1 - 2**-24) for code, half in enumerate(_HALFWAY)]


class Mxfp4Linear(QuantizedLinear):
    """words: int16 [N, 16 T], T = ⌈K / 64⌉: word 16 t + c has in its nibble j column 64 t + 16 j + c. scales: uint8
    [N, 2 T], the exponents; a tile's last half may be nothing. Raises ConfigError if rows are not whole blocks."""

    def __init__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if in_features % BLOCK:
            raise ConfigError(f"mxfp4: blocks of {BLOCK} do not divide rows of {in_features} weights")
        super().__init__(matrix_id, in_features, out_features, bias, dtype, device)

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        rows = sum(self.out_features)
        tiles = -(-self.in_features // TILE)
        self.words = parameter((rows, tiles * PLANE), torch.int16, device)
        self.scales = parameter((rows, tiles * TILE // BLOCK), torch.uint8, device)

    def quantize(self, start: int, weight: Tensor) -> None:
        self.store(start, to_blocks(weight.unflatten(1, (-1, BLOCK)).flatten(0, 1)).view(len(weight), -1))

    def store(self, start: int, blocks: Tensor) -> None:
        """Store rows of a file: uint8 [rows, 17 K / 32]. Raises CheckpointError for weights that no model has."""
        for some in blocks.split(max(1, ASSIGNED // self.in_features)):
            rows, here = slice(start, start + len(some)), some.to(self._device).unflatten(1, (-1, SIZE))
            if (here[..., 0] > LARGEST_STORED).any():
                raise CheckpointError("mxfp4: weights beyond 12 have no form for a GPU's kernels: take another scheme")
            self.scales[rows] = F.pad(here[..., 0], (0, self.scales.shape[1] - here.shape[1]))
            self.words[rows] = to_words(_codes(here[..., 1:]).flatten(1))
            start += len(some)

    def dequantized(self) -> Tensor:
        return self.wide_rows(0, sum(self.out_features))

    def wide_rows(self, first: int, end: int) -> Tensor:
        """Widen rows to float32 [end - first, K]."""
        codes = from_words(self.words[first:end])[:, : self.in_features]
        exponents = self.scales[first:end, : self.in_features // BLOCK]
        return _wide(codes.unflatten(1, (-1, BLOCK)), exponents).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        out = product_in_pieces(x, self.wide_rows, sum(self.out_features))
        return out if self.bias is None else out + self.bias


def to_blocks(weight: Tensor) -> Tensor:
    """Round to nearest: float32 [n, 32] → uint8 [n, 17].

    The largest magnitude decides the power of two, as in the format's definition (6.3): it becomes 4 to 8, and beyond
    6 it is cut off.
    """
    largest = weight.abs().amax(-1)
    exponents = torch.frexp(largest).exponent - 1 - LARGEST_EXPONENT + BIAS
    exponents = torch.where(largest > 0, exponents, 0).clamp(0, NOT_A_NUMBER - 1)
    # in two steps: a single factor could be beyond float32
    halves = (BIAS - exponents) // 2, (BIAS - exponents) - (BIAS - exponents) // 2
    scaled = torch.ldexp(torch.ldexp(weight, halves[0].unsqueeze(1)), halves[1].unsqueeze(1))
    limits = torch.tensor(_LIMITS, device=weight.device)
    codes = torch.bucketize(scaled.abs(), limits).to(torch.uint8) | (scaled < 0).to(torch.uint8) << 3
    low, high = codes.chunk(2, 1)
    return torch.cat([exponents.to(torch.uint8).unsqueeze(1), low | high << 4], 1)


def wide_blocks(blocks: Tensor) -> Tensor:
    """uint8 [n, 17] → float32 [n, 32]."""
    return _wide(_codes(blocks[:, 1:]), blocks[:, 0])


def blocks_of_pairs(values: Tensor, exponents: Tensor) -> Tensor:
    """Blocks from a file that has two neighbors in a byte, the first in its lower half: gpt-oss's.

    values: uint8 [n, 16]; exponents: uint8 [n]. Returns uint8 [n, 17].
    """
    first, second = values[:, :8], values[:, 8:]  # columns 0 to 15, and 16 to 31
    even = (first & NIBBLE) | (second & NIBBLE) << 4
    odd = first >> 4 | (second & ~NIBBLE & 255)
    return torch.cat([exponents.unsqueeze(1), torch.stack([even, odd], 2).flatten(1)], 1)


def _codes(halves: Tensor) -> Tensor:
    """A block's codes: uint8 [..., 16] → [..., 32]."""
    return torch.cat([halves & NIBBLE, halves >> 4], -1)


def _wide(codes: Tensor, exponents: Tensor) -> Tensor:
    """codes: [..., 32], exponents: [...]. → float32 [..., 32]."""
    values = torch.tensor([*VALUES, *(-value for value in VALUES)], device=codes.device)
    powers = torch.tensor([2.0 ** (e - BIAS) for e in range(NOT_A_NUMBER)] + [float("nan")], device=codes.device)
    return values[codes.int()] * powers[exponents.int()].unsqueeze(-1)


def to_words(codes: Tensor) -> Tensor:
    """Pack uint8 [n, K] → int16 [n, 16 T]: see `Mxfp4Linear`."""
    planes = F.pad(codes, (0, -codes.shape[1] % TILE)).short().unflatten(1, (-1, PLANES, PLANE))
    words = planes[:, :, 0]
    for plane in range(1, PLANES):
        words = words | planes[:, :, plane] << 4 * plane
    return words.flatten(1)


def from_words(words: Tensor) -> Tensor:
    """Unpack int16 [n, 16 T] → int32 [n, 64 T]."""
    shifts = 4 * torch.arange(PLANES, device=words.device, dtype=torch.int32).view(1, 1, PLANES, 1)
    return ((words.int().unflatten(1, (-1, 1, PLANE)) >> shifts) & NIBBLE).flatten(1)
