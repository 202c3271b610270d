"""The weighted sum of a row's experts, and the residual: what ends a mixture whose pairs were computed apart.

Idea: experts are computed expert by expert, rows are summed row by row. Adding each result to its row with atomics
would add them in another order each time. Here one program per piece of a row adds its k results in the order of their
places: a row's sum does not depend on the other rows.

Elements moved per row: k D read, D read and written. Layout: pairs [N k, D], place p of row r in row r k + p.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.linear.epilogue import vector

BLOCK = 512  # columns per program: few rows are enough to fill the GPU


@triton.jit
def combine_kernel(
    pairs_ptr: tensor, weights_ptr: tensor, residual_ptr: tensor, out_ptr: tensor,
    D: constexpr, CHOSEN: constexpr, BLOCK: constexpr, PARTIAL: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Row program_id(0), columns from program_id(1) * BLOCK on. residual: None, or added."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    total = vector(residual_ptr, row * D + column, inside)
    mixed = tl.zeros((BLOCK,), tl.float32)
    for place in tl.static_range(CHOSEN):
        pair = row * CHOSEN + place
        weight, there = tl.load(weights_ptr + pair), inside
        if PARTIAL:
            there = inside & (tl.zeros((BLOCK,), tl.float32) + weight != 0)
        mixed += weight * tl.load(pairs_ptr + pair * D + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * D + column, (total + mixed).to(out_ptr.dtype.element_ty), mask=inside)


def combine(pairs: Tensor, weights: Tensor, residual: Tensor | None = None, *, partial: bool = False) -> Tensor:
    """pairs: [N k, D]; weights: float32 [N, k]. Returns [N, D], or the residual, which takes the sum in place.

    partial: pairs of weight 0 have not been computed, and hold anything.
    """
    (rows, chosen), hidden, early = weights.shape, pairs.shape[1], starts_early()
    assert len(pairs) == rows * chosen and pairs.is_contiguous() and weights.is_contiguous()
    out = torch.empty(rows, hidden, dtype=pairs.dtype, device=pairs.device) if residual is None else residual
    assert out.is_contiguous() and out.shape == (rows, hidden)
    if rows:
        combine_kernel[(rows, triton.cdiv(hidden, BLOCK))](
            pairs, weights, residual, out, hidden, chosen, BLOCK, partial, early, num_warps=4, launch_pdl=early
        )
    return out
