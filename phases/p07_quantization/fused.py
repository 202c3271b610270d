"""A product that reads four bits: codes become floats in a register, are multiplied there, and are never written.

    y[n] = Σ w x = Σ over the groups of row n: scale · Σ code · x + offset · Σ x

`Int4Linear` writes a wide matrix, which torch then reads again. Here numba compiles a loop that reads each byte of
codes once. What makes the loop fast:

- scale and offset leave the inner sum: a weight costs a mask or a shift, a conversion, and one multiply-add;
- Σ x is the same for all rows of the matrix, so it is computed once per product;
- x is cut into its even and its odd columns, as a byte is into its low and its high half: neighboring bytes then meet
  neighboring values of x, and the processor takes 8 or 16 of them at a time;
- a group's length is a constant that the compiler sees, so 32 bytes become a few vectors without a remainder.
  `fastmath` lets it add them in any order.

With many rows of x, arithmetic is the limit and not bytes. Then a matrix is widened once for all rows, and torch
multiplies.

Shapes: M rows of x, N outputs (rows of the matrix), K inputs, G = K / 64 groups per row.
"""

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from phases.p07_quantization.linears import Int4Linear
from phases.p07_quantization.rounding import GROUP

Codes = NDArray[np.uint8]
Bits = NDArray[np.uint16]  # of float16
Floats = NDArray[np.float32]

BYTES = GROUP // 2  # of a group's codes
FEW = 16  # most rows of x that are multiplied by codes; with more, widening first is faster


@njit(inline="always")
def to_float(bits: np.uint16) -> np.float32:
    """A float16's bits, as an integer, to float32. The exponent has 5 bits there and 8 here, and starts 112 lower."""
    wide = (bits & 0x8000) << 16 | (bits & 0x7FFF) << 13
    return np.uint32(wide).view(np.float32) * np.float32(2.0**112)


@njit(fastmath=True)
def split(x: Floats) -> tuple[Floats, Floats, Floats]:
    """x: float32 [M, K]. Returns its even columns [M, K / 2], its odd ones [M, K / 2], and each group's sum [M, G]."""
    rows, groups = len(x), x.shape[1] // GROUP
    sums = np.empty((rows, groups), np.float32)
    for m in range(rows):
        for group in range(groups):
            sums[m, group] = x[m, group * GROUP : (group + 1) * GROUP].sum()
    return x[:, 0::2].copy(), x[:, 1::2].copy(), sums


@njit(fastmath=True)
def dot(codes: Codes, scale: Bits, offset: Bits, even: Floats, odd: Floats, sums: Floats) -> np.float32:
    """One row of the matrix times one row of x.

    codes: uint8 [K / 2], as `pack` lays them out. scale, offset: bits of float16, uint16 [G]. even, odd: float32
    [K / 2]; sums: float32 [G]; all three from `split`. Returns float32.
    """
    total = np.float32(0)
    for group in range(len(scale)):
        here = slice(group * BYTES, (group + 1) * BYTES)
        pairs, low, high = codes[here], even[here], odd[here]
        part = np.float32(0)
        for i in range(BYTES):
            part += np.float32(np.uint8(pairs[i] & 15)) * low[i] + np.float32(np.uint8(pairs[i] >> 4)) * high[i]
        total += to_float(scale[group]) * part + to_float(offset[group]) * sums[group]
    return total


@njit(parallel=True, fastmath=True, cache=True)
def multiply(codes: Codes, scale: Bits, offset: Bits, x: Floats, y: Floats) -> None:
    """Write y = x Wᵀ, float32 [M, N]. codes: [N, K / 2]; scale, offset: [N, G]; x: float32 [M, K].

    The processor's cores share the rows of the matrix. A row is read from memory once, for all M rows of x.
    """
    even, odd, sums = split(x)
    for n in prange(len(codes)):
        for m in range(len(x)):
            y[m, n] = dot(codes[n], scale[n], offset[n], even[m], odd[m], sums[m])


@njit(parallel=True, fastmath=True, cache=True)
def widen(codes: Codes, scale: Bits, offset: Bits, wide: Floats) -> None:
    """Write the matrix that the codes represent, float32 [N, K], with each byte read once."""
    for n in prange(len(codes)):
        for group in range(scale.shape[1]):
            step, least = to_float(scale[n, group]), to_float(offset[n, group])
            pairs = codes[n, group * BYTES : (group + 1) * BYTES]
            out = wide[n, group * GROUP : (group + 1) * GROUP]
            for i in range(BYTES):
                out[2 * i] = np.float32(np.uint8(pairs[i] & 15)) * step + least
                out[2 * i + 1] = np.float32(np.uint8(pairs[i] >> 4)) * step + least


class FusedInt4Linear(Int4Linear):
    """`Int4Linear` on a CPU: few rows of x are multiplied by codes, many by a matrix that is widened once for all.

    Groups of another length than 64 have no loop here; torch widens them.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.group != GROUP:
            return super().forward(x)
        stored = self.weight.numpy(), bits_of(self.scale), bits_of(self.offset)
        if len(x) > FEW:
            wide = torch.empty(len(self.weight), self.in_features)
            widen(*stored, wide.numpy())
            return F.linear(x, wide.to(x.dtype), self.bias)
        y = torch.empty(len(x), len(self.weight))
        multiply(*stored, x.float().contiguous().numpy(), y.numpy())
        return (y if self.bias is None else y + self.bias).to(x.dtype)


def bits_of(halves: Tensor) -> Bits:
    """float16 → uint16, the same memory: numba computes with no float16 on a CPU."""
    return halves.view(torch.uint16).numpy()
