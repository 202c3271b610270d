"""int4: weights of 4 bits in groups along a row, each with a scale and an offset. Activations are rounded only if asked
for.

    w ≈ scale q + offset,  q in 0 … 15

The offset is a float, which covers every format of such weights: symmetric (offset = -8 scale), an integer
zero point z (offset = -z scale: AWQ, GPTQ), and a minimum (Q4_1 of llama.cpp).

The weight is this sum rounded once, to the type of the activations, and products are float products. So a prompt may
widen the matrix first and multiply as usual, while a decode, which reads a quarter of the bytes, unpacks it in
registers: the weights are the same.

A quantizer may have sorted columns by weight before it cut them into groups ("act-order"). The matrix then keeps
the sorted order, and activations are permuted to match.

The storage is made for unpacking in registers: an int16 word holds four weights that lie 32 apart in
their row. Word (t, n, c) has in its nibble j the weight of row n and column 128 t + 32 j + c. The nibbles j of 32 words
are then 32 columns side by side: a plane, unpacked by a shift and a mask, and the smallest group. Scale and offset of a
group are a pair of 16-bit floats in one int32: bfloat16 if activations are, so that a GPU's arithmetic on pairs does
it all, else float16.

The CPU kernels need 16 rows side by side, one per lane of a vector. `use_lanes` rearranges a matrix for this, in place.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.errors import ConfigError
from gradus.models.layers import Linear, MatrixId, parameter
from gradus.quantization.linear import PLANE, QuantizedLinear, product_in_pieces, quotient, rounded_planes

TILE, PLANES = 128, 4
LANES = 16
GROUPS = (128, 64, 32)
MOST = 15


class Int4Linear(QuantizedLinear):
    """words: int16 [T, N, 32], T = ⌈K / 128⌉; pairs: int32 [128 T / group, N], scale in the lower half, of type `kind`.

    group: weights with one scale; None: the largest of 128, 64 and 32 that divides K. Raises ConfigError if it
    does not divide K, or none does. ordered: whether there is `order`, int64 [K], the original column of each stored
    one. rounds: whether activations are rounded to int8, 32 stored columns with one scale.
    panels: a kernel's iterator over the widened matrix, [K, rows] in the type of activations, or in float32 where this
    processor multiplies that faster, piece by piece, including rows that pad its lanes; None without such a kernel.
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
        group: int | None = None,
        ordered: bool = False,
    ) -> None:
        self.group, self.ordered = group_for(in_features, group), ordered
        super().__init__(matrix_id, in_features, out_features, bias, dtype, device)

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        self.kind = torch.bfloat16 if dtype == torch.bfloat16 else torch.float16
        rows, tiles = sum(self.out_features), -(-self.in_features // TILE)
        self.words = parameter((tiles, rows, PLANE), torch.int16, device)
        self.pairs = parameter((tiles * TILE // self.group, rows), torch.int32, device)
        self.order = parameter((self.in_features,), torch.int64, device) if self.ordered else None
        self.in_lanes, self.above = False, 0  # rows of another part, with which this one shares its first lanes
        self.panels: Iterable[Tensor] | None = None

    def use_lanes(self) -> None:
        """Put 16 rows side by side: words int32 [B, T, 16, 16], B = ⌈N / 16⌉, pairs int32 [B, groups, 16].

        Rows that pad the last 16 are zeros. Afterwards nothing can be stored any more.
        """
        if not self.in_lanes:
            self.in_lanes = True
            self.words.data, self.pairs.data = to_lanes(self.words.data), pairs_to_lanes(self.pairs.data)

    def rows_of(self, name: str, value: Tensor, first: int, end: int) -> Tensor:
        if name == "order":
            return value
        if name == "bias":
            return value[first:end]
        return (
            value[(self.above + first) // LANES : -(-(self.above + end) // LANES)]
            if self.in_lanes
            else value[:, first:end]
        )

    def part(self, first: int, end: int) -> Linear:
        part = cast(Int4Linear, super().part(first, end))
        part.panels = None  # they are the whole matrix's
        part.above = (self.above + first) % LANES if self.in_lanes else 0
        return part

    def quantize(self, start: int, weight: Tensor) -> None:
        self.store(start, *to_int4(weight, self.group, self.kind))

    def store(self, start: int, values: Tensor, scales: Tensor, offsets: Tensor, order: Tensor | None = None) -> None:
        """Store rows of a checkpoint: integers 0 … 15 [rows, K]; scales, offsets: [rows, K / group].

        order: the order of the columns, the same for all rows, or None.
        """
        assert not self.in_lanes, "stored before it is used"
        rows = slice(start, start + len(values))
        if self.order is not None:
            self.order.copy_(torch.arange(self.in_features) if order is None else order)
        self.words[:, rows] = packed(values)
        pairs = torch.stack([scales.to(self.kind), offsets.to(self.kind)], -1).view(torch.int32).squeeze(-1)
        self.pairs[:, rows] = F.pad(pairs, (0, len(self.pairs) - pairs.shape[1])).t()

    def dequantized(self) -> Tensor:
        wide = self.wide_rows(0, sum(self.out_features))
        return wide if self.order is None else torch.empty_like(wide).index_copy_(1, self.order, wide)

    def wide_rows(self, first: int, end: int) -> Tensor:
        """Widen rows to float32 [end - first, K], with columns in stored order."""
        words, pairs = self._stored(first, end)
        pairs = pairs.t().flatten().view(self.kind).view(end - first, -1, 2).float()
        values = unpacked(words).unflatten(1, (-1, self.group))
        wide = torch.addcmul(pairs[..., 1:], values.float(), pairs[..., :1])
        return wide.flatten(1)[:, : self.in_features]

    def _stored(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Return words and pairs of some rows, in the layout without lanes."""
        if not self.in_lanes:
            return self.words[:, first:end], self.pairs[:, first:end]
        first, end = first + self.above, end + self.above
        blocks, rows = slice(first // LANES, -(-end // LANES)), slice(first % LANES, first % LANES + end - first)
        words = from_lanes(self.words[blocks])
        return words[:, rows], self.pairs[blocks].permute(1, 0, 2).flatten(1)[:, rows]

    def forward(self, x: Tensor) -> Tensor:
        x, rows = x if self.order is None else x[:, self.order], sum(self.out_features)
        x = rounded_planes(x) if self.rounds else x
        if self.panels is None:
            out = product_in_pieces(x, self.wide_rows, rows)
        else:
            out = torch.cat([x.to(panel.dtype) @ panel for panel in self.panels], 1)[:, :rows].to(x.dtype)
        return out if self.bias is None else out + self.bias


def group_for(width: int, asked: int | None) -> int:
    """Choose the group size. Raises ConfigError if the requested one, or every one, does not divide the width."""
    fitting = [group for group in GROUPS if width % group == 0]
    if asked in fitting:
        return asked
    if not fitting:
        raise ConfigError(f"int4: rows of {width} weights have no groups of {', '.join(map(str, GROUPS))}")
    if asked is not None:
        raise ConfigError(f"int4: groups of {asked} do not divide rows of {width} weights; {fitting[0]} would")
    return fitting[0]


def to_int4(weight: Tensor, group: int, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Round to nearest: integers [N, K], scales and offsets [N, K / group], which span each group's range.

    Scales and offsets are rounded to their type first, so that weights are rounded by the stored values.
    """
    groups = weight.float().unflatten(1, (-1, group))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    offsets = low.to(kind).float()
    scales = quotient(high - offsets, MOST).to(kind).float()
    steps = torch.where(scales > 0, scales, 1.0)  # in a group of equal weights, all equal the offset
    values = ((groups - offsets) / steps).round().clamp(0, MOST)
    return values.flatten(1).to(torch.uint8), scales.squeeze(-1), offsets.squeeze(-1)


def packed(values: Tensor) -> Tensor:
    """Pack integers 0 … 15, [N, K], into words: int16 [T, N, 32]."""
    padded = F.pad(values.int(), (0, -values.shape[1] % TILE))
    planes = padded.unflatten(1, (-1, PLANES, PLANE))
    shifts = 4 * torch.arange(PLANES, device=values.device, dtype=torch.int32).view(1, 1, PLANES, 1)
    return (planes << shifts).sum(2, dtype=torch.int32).to(torch.int16).transpose(0, 1)


def unpacked(words: Tensor) -> Tensor:
    """Unpack words to int32 [N, 128 T]."""
    shifts = 4 * torch.arange(PLANES, device=words.device, dtype=torch.int32).view(1, 1, PLANES, 1)
    planes = (words.transpose(0, 1).int().unsqueeze(2) >> shifts) & MOST
    return planes.flatten(1)


def to_lanes(words: Tensor) -> Tensor:
    """Rearrange int16 [T, N, 32] → int32 [⌈N / 16⌉, T, 16, 16].

    Byte p of a word has planes 2 p and 2 p + 1 of a column. Entry [b, t, 8 p + i, l] holds these bytes of columns 4 i,
    4 i + 2, 4 i + 1 and 4 i + 3 of tile t and row 16 b + l: two neighbors lie 16 bits apart, and four in four bytes.
    """
    padded = F.pad(words, (0, 0, 0, -words.shape[1] % LANES)).unflatten(1, (-1, LANES))
    halves = padded.view(torch.uint8).unflatten(3, (PLANE // 4, 2, 2, 2))  # [T, B, 16, fours, pair, of a pair, p]
    return halves.permute(1, 0, 6, 3, 2, 5, 4).contiguous().flatten(5).view(torch.int32).flatten(2, 3).squeeze(4)


def from_lanes(lanes: Tensor) -> Tensor:
    """Undo `to_lanes`: → int16 [T, N, 32], with N a multiple of 16."""
    fours = lanes.unsqueeze(-1).view(torch.uint8).unflatten(4, (2, 2)).unflatten(2, (2, PLANE // 4))
    return fours.permute(1, 0, 4, 3, 6, 5, 2).contiguous().view(torch.int16).flatten(3).flatten(1, 2)


def pairs_to_lanes(pairs: Tensor) -> Tensor:
    """Rearrange int32 [groups, N] → [⌈N / 16⌉, groups, 16]."""
    return F.pad(pairs, (0, -pairs.shape[1] % LANES)).unflatten(1, (-1, LANES)).transpose(0, 1).contiguous()
