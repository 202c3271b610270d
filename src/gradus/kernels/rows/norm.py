"""Norms fused with the residual addition before them: x += delta, y = norm(x), in one pass over the rows.

Idea: a layer's output is only ever added to the residual stream, and the sum's next reader is always a norm. Apart,
the two move five rows' worth of bytes (add: read x and delta, write x; norm: read x, write y), and at few rows the
launch between them takes most of the time. Together a row is read once, stays in registers, and both results are
written.

Elements moved per row: 2 D read (x, delta), 2 D written (x, y), and D of weights that stay in the cache.
Layout: x, delta, y [N, D] contiguous, one program per row; the statistics are float32 whatever the dtype.

Gemma's norms scale by 1 + weight: the 1 is added when a checkpoint is read, and the sum is kept in float32, so here
they differ only by the weight's dtype. Gemma also normalizes what a layer adds: that is `delta_weight`. Gemma 4 then
multiplies the sum by a number of the layer's own: that is `factor`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous


@triton.jit
def moments(x: tensor, inside: tensor, D: constexpr, CENTER: constexpr, eps: float) -> tensor:
    """x with its mean taken away if CENTER, and 1 / sqrt(mean(x²) + eps) of that. Lanes beyond the row stay 0.

    x: a row in any shape.
    """
    if CENTER:
        x = tl.where(inside, x - tl.sum(x) / D, 0.0)
    return x, tl.rsqrt(tl.sum(x * x) / D + eps)


@triton.jit
def norm_kernel(
    x_ptr: tensor, delta_ptr: tensor, delta_weight_ptr: tensor, factor_ptr: tensor, weight_ptr: tensor,
    bias_ptr: tensor, y_ptr: tensor, eps: float,
    D: constexpr, CENTER: constexpr, BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """One row. delta, delta_weight, factor, bias, and weight with y, may be None: that part is then not compiled."""
    column = tl.arange(0, BLOCK)
    inside = column < D
    here = tl.program_id(0).to(tl.int64) * D + column
    let_next_start(PDL)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + here, mask=inside, other=0.0)
    if delta_ptr is not None:
        delta = tl.load(delta_ptr + here, mask=inside, other=0.0).to(tl.float32)
        if delta_weight_ptr is not None:
            delta, scale = moments(delta, inside, D, False, eps)
            delta = delta * scale * tl.load(delta_weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        delta = x.to(tl.float32) + delta
        if factor_ptr is not None:
            delta *= tl.load(factor_ptr).to(tl.float32)
        x = delta.to(x_ptr.dtype.element_ty)  # normalize the sum as later layers will read it
        tl.store(x_ptr + here, x, mask=inside)
    if weight_ptr is not None:
        centered, scale = moments(x.to(tl.float32), inside, D, CENTER, eps)
        y = centered * scale * weight
        if bias_ptr is not None:
            y += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + here, y.to(y_ptr.dtype.element_ty), mask=inside)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """x += delta (in place), then x / rms(x) * weight (Zhang and Sennrich 2019).

    x, delta: [N, D], or rows in any other shape [..., D], contiguous, of one floating dtype; None adds nothing. weight:
    [D] of any floating dtype. Returns y, shaped as x.
    """
    y = torch.empty_like(x)
    _launch(x, delta, (None, None), weight, None, y, eps, center=False)
    return y


def add_layer_norm(x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x += delta (in place), then (x - mean) / std * weight + bias (Ba et al. 2016). Shapes as in `add_rms_norm`."""
    y = torch.empty_like(x)
    _launch(x, delta, (None, None), weight, bias, y, eps, center=True)
    return y


def add_normalized(x: Tensor, delta: Tensor, delta_weight: Tensor, eps: float, factor: Tensor | None = None) -> None:
    """x = (x + delta / rms(delta) * delta_weight) * factor, in place (Gemma 3; with a factor, Gemma 4).

    factor: [1], of any floating dtype. Other shapes as in `add_rms_norm`.
    """
    _launch(x, delta, (delta_weight, factor), None, None, None, eps, center=False)


def _launch(
    x: Tensor, delta: Tensor | None, of_delta: tuple[Tensor | None, Tensor | None], weight: Tensor | None,
    bias: Tensor | None, y: Tensor | None, eps: float, *, center: bool,
) -> None:  # fmt: skip
    """of_delta: the weight of its norm, and the factor of the sum."""
    width = x.shape[-1]
    rows = x.numel() // width
    assert x.is_contiguous() and (delta is None or (delta.is_contiguous() and delta.shape == x.shape))
    if rows:
        block, early = triton.next_power_of_2(width), starts_early()
        norm_kernel[(rows,)](
            x, delta, *of_delta, weight, bias, y, eps, width, center, block, early,
            num_warps=warps_of(block), launch_pdl=early,
        )  # fmt: skip


def warps_of(block: int) -> int:
    """16 values per thread, two 16-byte loads in bf16: fewer leave a row's latency exposed, more only synchronize."""
    return min(max(block // 512, 1), 16)
