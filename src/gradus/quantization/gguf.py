"""GGUF's formats: matrices as blocks of bytes, kept as a file of llama.cpp has them. Activations are rounded to int8
or not at all.

    w = scale q + offset

with q in 4, 5, 6 or 8 bits, and a scale and an offset for each group of 32 or 16 weights along a row:

| format | values | bytes | bits each | a block |
|---|---|---|---|---|
| q4_0 | 32 | 18 | 4.5  | scale f16 · nibbles                                         offset -8 scale |
| q4_1 | 32 | 20 | 5    | scale f16 · offset f16 · nibbles |
| q5_0 | 32 | 22 | 5.5  | scale f16 · fifth bits u32 · nibbles                        offset -16 scale |
| q5_1 | 32 | 24 | 6    | scale f16 · offset f16 · fifth bits u32 · nibbles |
| q8_0 | 32 | 34 | 8.5  | scale f16 · int8 |
| q4_k | 256 | 144 | 4.5 | d f16 · m f16 · 8 + 8 integers of 6 bits · nibbles         scale d s, offset -m t |
| q5_k | 256 | 176 | 5.5 | d f16 · m f16 · 8 + 8 integers of 6 bits · fifth bits · nibbles    the same |
| q6_k | 256 | 210 | 6.56 | nibbles · upper two bits · 16 int8 · d f16                 scale d s, offset -32 d s |
| mxfp4 | 32 | 17 | 4.25 | exponent u8 · nibbles, which are floats: see `mxfp4.py` |

A scale of a K-format is a product that float16 cannot hold, and in float32 it would take as many bytes as two more bits
per weight. So the matrix is the file's bytes themselves: on a CPU they are not even copied, but mapped. The weight is
computed in float32, as by llama.cpp, and rounded once to the type of the activations; products are float products.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.errors import ConfigError
from gradus.models.layers import Linear, MatrixId, parameter
from gradus.quantization import mxfp4
from gradus.quantization.linear import PIECE, QuantizedLinear, rounded_planes

NIBBLE = 15


class Format(NamedTuple):
    """values, size: of a block, its number of weights and of bytes. scales: the bytes at which float16 numbers begin.
    unpack: uint8 [n, size] → float32 [n, values]. pack: the same backwards, for the format that matrices may also be
    rounded to here."""

    name: str
    values: int
    size: int
    scales: tuple[int, ...]
    unpack: Callable[[Tensor], Tensor]
    pack: Callable[[Tensor], Tensor] | None = None


class GGUFLinear(QuantizedLinear):
    """blocks: uint8 [N, bytes per row]. Raises ConfigError if rows are not whole blocks.

    from_file: whether the blocks are those of a GGUF file, and not made here, converted, or copied in another order.
    rounds: whether activations are rounded to int8, 32 columns with one scale.
    widen: a kernel that returns rows first to end as floats in the type of activations, or in float32 where this
    processor multiplies that faster, valid until its next call; None without such a kernel.
    """

    rounds = False

    def __init__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        format: str,
        from_file: bool = True,
    ) -> None:
        self.format, self.from_file = FORMATS[format], from_file
        if in_features % self.format.values:
            raise ConfigError(f"{format}: blocks of {self.format.values} do not divide rows of {in_features} weights")
        super().__init__(matrix_id, in_features, out_features, bias, dtype, device)

    def part(self, first: int, end: int) -> Linear:
        part, widen = cast(GGUFLinear, super().part(first, end)), self.widen
        part.widen = None if widen is None else lambda low, high: widen(first + low, first + high)
        return part

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        row = self.in_features // self.format.values * self.format.size
        rows, on_cpu = sum(self.out_features), torch.device(device).type == "cpu"
        self.blocks = parameter((1, 1) if on_cpu else (rows, row), torch.uint8, device)
        if on_cpu:  # a file's memory mostly takes its place: see `store`
            self.blocks.data = self.blocks.data.expand(rows, row)
        self.widen: Callable[[int, int], Tensor] | None = None

    def quantize(self, start: int, weight: Tensor) -> None:
        form = self.format
        assert form.pack is not None, f"{form.name} is only read"
        self._copy(start, form.pack(weight.reshape(-1, form.values)).view(len(weight), -1))

    def store(self, start: int, blocks: Tensor) -> None:
        """Store rows of a file: uint8 [rows, bytes per row]. On a CPU, a whole matrix is not copied but referred to."""
        if self.blocks.is_cpu and blocks.shape == self.blocks.shape and blocks.is_contiguous():
            self.blocks.data = blocks
        else:
            self._copy(start, blocks)

    def _copy(self, start: int, blocks: Tensor) -> None:
        if self.blocks.is_cpu and self.blocks.stride(0) == 0:
            self.blocks.data = torch.empty(self.blocks.shape, dtype=torch.uint8)
        self.blocks[start : start + len(blocks)] = blocks

    @property
    def stays_in_file(self) -> bool:
        """Whether a CPU can leave most of the matrix on disk: it is a stack of experts, and tokens choose a few."""
        return self.from_file and self.matrix_id.role in ("experts_up", "experts_down")

    def dequantized(self) -> Tensor:
        return self.wide_rows(0, sum(self.out_features))

    def wide_rows(self, first: int, end: int) -> Tensor:
        """Widen rows to float32 [end - first, K]."""
        return self._unpacked(self.blocks[first:end])

    def lookup(self, ids: Tensor) -> Tensor:
        """Widen the rows of some tokens to float32: [N] → [N, K]."""
        return self._unpacked(self.blocks[ids])

    def _unpacked(self, rows: Tensor) -> Tensor:
        return self.format.unpack(rows.reshape(-1, self.format.size)).view(len(rows), self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        x = rounded_planes(x) if self.rounds else x
        rows, widen = sum(self.out_features), self.widen or self._rows_as(x.dtype)
        step = max(1, PIECE // self.in_features)
        weight = widen(0, min(rows, step))
        wide, bias = x.to(weight.dtype), None if self.bias is None else self.bias.to(weight.dtype)
        if rows <= step:
            return F.linear(wide, weight, bias).to(x.dtype)
        out = wide.new_empty(len(x), rows)
        for first in range(0, rows, step):
            end = min(first + step, rows)
            weight = weight if first == 0 else widen(first, end)
            torch.mm(wide, weight.t(), out=out[:, first:end])
        return (out if bias is None else out.add_(bias)).to(x.dtype)

    def _rows_as(self, dtype: torch.dtype) -> Callable[[int, int], Tensor]:
        return lambda first, end: self.wide_rows(first, end).to(dtype)


# -- blocks as floats --------------------------------------------------------------------------------------------------


def _half(blocks: Tensor, at: int) -> Tensor:
    """Read the float16 at byte `at` of each block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Unpack uint8 [n, g, b] → [n, g, 2, b]: the lower halves of b bytes, then the upper halves."""
    return torch.stack([packed & NIBBLE, packed >> 4], 2)


def _simple(blocks: Tensor, at: int) -> Tensor:
    """The 32 nibbles of a block from byte `at` on, uint8 [n, 32]."""
    return _nibbles(blocks[:, None, at : at + 16]).flatten(1)


def _fifth(blocks: Tensor, at: int) -> Tensor:
    """The 32 bits from byte `at` on as the fifth bits of 32 integers, uint8 [n, 32]."""
    return _bits(blocks[:, at : at + 4].unsqueeze(2), 8, 1).flatten(1) << 4


def _bits(packed: Tensor, count: int, width: int) -> Tensor:
    """Unpack uint8 [n, g, b] → [n, g, b · count] if b is 1: `count` fields of `width` bits, lowest first."""
    shifts = torch.arange(0, count * width, width, dtype=torch.uint8, device=packed.device)
    return (packed >> shifts) & ((1 << width) - 1)


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_simple(blocks, 2).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _simple(blocks, 4).float() + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * ((_simple(blocks, 6) | _fifth(blocks, 2)).float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_simple(blocks, 8) | _fifth(blocks, 4)).float() + _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _sixes(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and the offsets of a K-block's 8 groups, float32 [n, 8, 1]."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([low & 63, (high & NIBBLE) | ((low >> 6) << 4)], 1)
    minima = torch.cat([middle & 63, (high >> 4) | ((middle >> 6) << 4)], 1)
    return (_half(blocks, 0) * scales.float()).unsqueeze(2), (-_half(blocks, 2) * minima.float()).unsqueeze(2)


def _q4_k(blocks: Tensor) -> Tensor:
    scales, offsets = _sixes(blocks)
    values = _nibbles(blocks[:, 16:].unflatten(1, (4, 32))).view(-1, 8, 32)
    return (scales * values.float() + offsets).flatten(1)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, offsets = _sixes(blocks)
    values = _nibbles(blocks[:, 48:].unflatten(1, (4, 32))).view(-1, 8, 32)
    fifth = _bits(blocks[:, 16:48].unsqueeze(2), 8, 1).transpose(1, 2)  # bit g of byte l: group g, weight l
    return (scales * (values | (fifth << 4)).float() + offsets).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    lower = _nibbles(blocks[:, :128].unflatten(1, (2, 64))).flatten(2)  # [n, 2, 128]
    upper = _bits(blocks[:, 128:192].unflatten(1, (2, 32)).unsqueeze(3), 4, 2).transpose(2, 3).flatten(2)
    scales = _half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    values = (lower | (upper << 4)).float() - 32
    return (scales.unsqueeze(2) * values.view(-1, 16, 16)).flatten(1)


FORMATS = {
    form.name: form
    for form in (
        Format("q4_0", 32, 18, (0,), _q4_0),
        Format("q4_1", 32, 20, (0, 2), _q4_1),
        Format("q5_0", 32, 22, (0,), _q5_0),
        Format("q5_1", 32, 24, (0, 2), _q5_1),
        Format("q8_0", 32, 34, (0,), _q8_0),
        Format("q4_k", 256, 144, (0, 2), _q4_k),
        Format("q5_k", 256, 176, (0, 2), _q5_k),
        Format("q6_k", 256, 210, (208,), _q6_k),
        Format("mxfp4", mxfp4.BLOCK, mxfp4.SIZE, (), mxfp4.wide_blocks, mxfp4.to_blocks),
    )
}
