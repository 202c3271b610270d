"""Products of many rows with a matrix that is made wide piece by piece, in memory that all pieces use in turn."""

from typing import Protocol, TypedDict, Unpack

import torch
from torch import Tensor

from gradus.kernels.quantized.tile import result

SCRATCH = 128 << 20  # bytes of a matrix that are wide at a time


class Widen(Protocol):
    """Writes rows first, first + 1, … of a matrix to out, [rows, K], in its type."""

    def __call__(self, first: int, out: Tensor, /) -> None: ...


class Around(TypedDict, total=False):
    """Optional bias and residual of a product. padded: its result's rows are aligned."""

    bias: Tensor | None
    residual: Tensor | None
    padded: bool


def product_in_pieces(x: Tensor, rows: int, widen: Widen, **around: Unpack[Around]) -> Tensor:
    """residual + x weightᵀ + bias by cuBLAS, with a matrix of `rows` rows.

    x: [M, K], contiguous. residual: [M, N], which takes the sum in place. padded: rows of the result begin at multiples
    of 16 bytes. Returns [M, N] in x's dtype: `residual` itself if given.
    """
    bias, residual = around.get("bias"), around.get("residual")
    out = result(x, x.shape[0], rows, x.dtype, around.get("padded", False)) if residual is None else residual
    scratch = x.new_empty(piece_rows(rows, x.shape[1], x.element_size()), x.shape[1])
    for first in range(0, rows, len(scratch)):
        piece = scratch[: rows - first]
        widen(first, piece)
        columns = out[:, first : first + len(piece)]
        if residual is None:
            torch.mm(x, piece.t(), out=columns)
        else:
            columns.addmm_(x, piece.t())
    return out if bias is None else out.add_(bias)


def piece_rows(n: int, k: int, itemsize: int) -> int:
    """Rows of a matrix [n, k] that are wide at a time: whole tiles of a library's product."""
    return min(n, max(256, SCRATCH // (k * itemsize) // 256 * 256))
