"""Products of many rows with a matrix that is made wide piece by piece, in memory that all pieces use in turn."""

from typing import Protocol, Unpack

import torch
from torch import Tensor

from gradus.kernels.quantized.tile import Around, result

SCRATCH = 128 << 20  # bytes of a matrix that are wide at a time


class Packed(Protocol):
    """A matrix with that number of rows."""

    @property
    def rows(self) -> int: ...

    def widen(self, first: int, out: Tensor) -> None:
        """Write rows first, first + 1, … of the matrix to out, [rows, K], in its type."""


def product_in_pieces(x: Tensor, weights: Packed, **around: Unpack[Around]) -> Tensor:
    """residual + x weightᵀ + bias by cuBLAS. x: [M, K], contiguous.

    Returns [M, N] in x's dtype: `residual` itself if given.
    """
    rows = weights.rows
    bias, residual = around.get("bias"), around.get("residual")
    out = result(x, x.shape[0], rows, x.dtype, around.get("padded", False)) if residual is None else residual
    scratch = x.new_empty(piece_rows(rows, x.shape[1], x.element_size()), x.shape[1])
    for first in range(0, rows, len(scratch)):
        piece = scratch[: rows - first]
        weights.widen(first, piece)
        columns = out[:, first : first + len(piece)]
        if residual is None:
            torch.mm(x, piece.t(), out=columns)
        else:
            columns.addmm_(x, piece.t())
    return out if bias is None else out.add_(bias)


def piece_rows(n: int, k: int, itemsize: int) -> int:
    """Rows of a matrix [n, k] that are wide at a time: whole tiles of a library's product."""
    return min(n, max(256, SCRATCH // (k * itemsize) // 256 * 256))
