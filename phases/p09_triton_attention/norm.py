"""A first kernel: the residual addition and the RMSNorm behind it, in one pass over the rows.

A layer's output is only added to the residual stream, and the next operation to read the sum is a norm. Apart, the
addition reads two rows and writes one, and the norm reads that one again and writes another: five rows' worth of bytes
and two launches. Together a row stays in registers between the two: four rows' worth, and one launch. At few rows the
launch is most of the time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from triton.language import constexpr, tensor


@triton.jit
def add_rms_norm_kernel(
    x_ptr: tensor, delta_ptr: tensor, weight_ptr: tensor, y_ptr: tensor, eps: float, D: constexpr, BLOCK: constexpr
) -> None:
    """One program per row. BLOCK: D, rounded up to a power of two, as all blocks must be."""
    column = tl.arange(0, BLOCK)
    inside = column < D
    here = tl.program_id(0).to(tl.int64) * D + column
    x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)
    delta = tl.load(delta_ptr + here, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    x = (x + delta).to(x_ptr.dtype.element_ty)  # rounded, since later layers read the rounded sum
    tl.store(x_ptr + here, x, mask=inside)
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / D + eps)  # lanes beyond the row hold 0 and add nothing
    tl.store(y_ptr + here, (x * scale * weight).to(y_ptr.dtype.element_ty), mask=inside)


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x += delta, in place; then x / rms(x) * weight (Zhang and Sennrich 2019), which is returned: [N, D].

    x, delta: [N, D], contiguous and of one floating dtype. weight: [D], of any. Statistics are float32.
    """
    assert x.is_contiguous() and delta.is_contiguous() and delta.shape == x.shape
    y = torch.empty_like(x)
    rows, width = x.shape
    if rows:
        add_rms_norm_kernel[(rows,)](x, delta, weight, y, eps, D=width, BLOCK=triton.next_power_of_2(width))
    return y


def add_rms_norm_reference(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in torch, in two passes."""
    x.copy_(x.float() + delta.float())
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)
