"""A product that reads four bits: codes become floats next to where they are multiplied, never in memory.

    y[n] = Σ w x = Σ over the groups of row n: scale · Σ code · x + offset · Σ x

`Int4Linear` writes a wide matrix, which torch then reads again. Here numba compiles loops that read each byte of codes
once. For one row of x (`dot`):

- scale and offset leave the inner sum: a weight costs a mask or a shift, a conversion, and one multiply-add;
- Σ x is the same for all rows of the matrix, and computed once per product;
- x is cut into its even and its odd columns, as a byte is into its low and its high half: neighboring bytes then meet
  neighboring values of x, and the processor takes 8 or 16 of them at a time;
- a group's length is a constant that the compiler sees, so 32 bytes become a few vectors without a remainder.
  `fastmath` lets it add them in any order.

Several rows of x would convert each code once per row. So `multiply_many` converts it once, into a buffer of four rows
of the matrix that stays in a core's first cache, and `tile` multiplies them by four rows of x at a time.

Shapes: M rows of x, N outputs (rows of the matrix), K inputs, G = K / 64 groups per row.
"""

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from phases.p07_quantization.linears import Int4Linear
from phases.p07_quantization.rounding import GROUP

Codes = NDArray[np.uint8]
Bits = NDArray[np.uint16]  # of float16
Floats = NDArray[np.float32]

BYTES = GROUP // 2  # of a group's codes
Four = tuple[np.float32, np.float32, np.float32, np.float32]
Sums = tuple[Four, Four, Four, Four]


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
    """Write y = x Wᵀ for one row of x: float32 [1, K] → [1, N]. codes: [N, K / 2]; scale, offset: [N, G]."""
    even, odd, sums = split(x)
    for n in prange(len(codes)):  # the processor's cores share the rows of the matrix
        y[0, n] = dot(codes[n], scale[n], offset[n], even[0], odd[0], sums[0])


@njit(fastmath=True)
def widen(codes: Codes, scale: Bits, offset: Bits, out: Floats) -> None:
    """Write the weights of one row of the matrix. codes: [K / 2]; scale, offset: [G]; out: float32 [K]."""
    for group in range(len(scale)):
        step, least = to_float(scale[group]), to_float(offset[group])
        pairs, here = codes[group * BYTES : (group + 1) * BYTES], out[group * GROUP : (group + 1) * GROUP]
        for i in range(BYTES):
            here[2 * i] = np.float32(np.uint8(pairs[i] & 15)) * step + least
            here[2 * i + 1] = np.float32(np.uint8(pairs[i] >> 4)) * step + least


@njit(fastmath=True)
def add(sums: Four, w: np.float32, x: Four) -> Four:
    """Add the products of one weight and a column of four rows of x."""
    return sums[0] + w * x[0], sums[1] + w * x[1], sums[2] + w * x[2], sums[3] + w * x[3]


@njit(fastmath=True)
def tile(w0: Floats, w1: Floats, w2: Floats, w3: Floats, x0: Floats, x1: Floats, x2: Floats, x3: Floats) -> Sums:
    """Multiply four rows of weights by four rows of x, [K] each. Returns sums[i][j], of w_i · x_j.

    A number that is read serves four products: two multiply-adds per load, where `dot` has one load for each.
    """
    a = b = c = d = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))
    for k in range(len(w0)):
        x = x0[k], x1[k], x2[k], x3[k]
        a, b, c, d = add(a, w0[k], x), add(b, w1[k], x), add(c, w2[k], x), add(d, w3[k], x)
    return a, b, c, d


@njit(parallel=True, fastmath=True, cache=True)
def multiply_many(codes: Codes, scale: Bits, offset: Bits, x: Floats, y: Floats) -> None:
    """Write y = x Wᵀ for several rows of x: float32 [M, K] → [M, N]. The matrix is as in `multiply`.

    A core widens four rows of the matrix at a time. The last block may repeat the last row, and so may a tile: the
    same number is then written more than once.
    """
    for block in prange((len(codes) + 3) // 4):
        rows = [min(4 * block + i, len(codes) - 1) for i in range(4)]
        w = np.empty((4, x.shape[1]), np.float32)
        for i in range(4):
            widen(codes[rows[i]], scale[rows[i]], offset[rows[i]], w[i])
        for first in range(0, len(x), 4):
            m = [min(first + i, len(x) - 1) for i in range(4)]
            sums = tile(w[0], w[1], w[2], w[3], x[m[0]], x[m[1]], x[m[2]], x[m[3]])
            for i in range(4):
                y[m[0], rows[i]], y[m[1], rows[i]], y[m[2], rows[i]], y[m[3], rows[i]] = sums[i]


class FusedInt4Linear(Int4Linear):
    """`Int4Linear` on a CPU, which reads the matrix once and writes no wide one, for any number of rows of x.

    Groups of another length than 64 have no loop here; torch widens them.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.group != GROUP:
            return super().forward(x)
        stored = self.weight.numpy(), bits_of(self.scale), bits_of(self.offset)
        y = torch.empty(len(x), len(self.weight))
        product = multiply if len(x) == 1 else multiply_many
        product(*stored, x.float().contiguous().numpy(), y.numpy())
        return (y if self.bias is None else y + self.bias).to(x.dtype)


def bits_of(halves: Tensor) -> Bits:
    """float16 → uint16, the same memory: numba computes with no float16 on a CPU."""
    return halves.view(torch.uint16).numpy()
