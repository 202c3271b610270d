"""One row through a matrix (GEMV), and what surrounds the product: norm before, activation and residual after.

Idea: at one row per step, a product is a stream of weights, each used once. Tensor cores have nothing to do; what
counts is how many bytes are in flight on every multiprocessor, and how little stands between one stream and the next.
So a program owns BLOCK_N outputs, reads their rows of the matrix in 16-byte loads, multiplies in float32, and sums
once, at the end. K is split over a program's threads, so N alone gives enough programs and no second pass is needed.

RMSNorm costs nothing here, because it is linear but for one factor: W (x / rms(x) * g) = (W (g x)) / rms(x), and the
sum of x² is gathered on the way. A LayerNorm needs the mean first, so x must fit one tile. Every program recomputes the
norm, from a row that is in the cache: cheaper than a launch.

Bytes: N K of weights, once; x (K) and the vectors are read from the cache. Layout: weight [N, K] row-major, x [1, K].
With a gate, rows 0 … N - 1 are the gate's and rows N … 2 N - 1 are up's; a program owns both rows of an output.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.activation import activate, activation_reference, gated_activation_reference
from gradus.kernels.norm import add_layer_norm_reference, add_rms_norm_reference
from gradus.kernels.overlap import let_next_start, starts_early, wait_for_previous


class Norm(NamedTuple):
    """What x passes before the product: an RMSNorm, or with a bias a LayerNorm. weight, bias: [K]."""

    weight: Tensor
    bias: Tensor | None
    eps: float


class GemvLaunch(NamedTuple):
    """rows, columns: the tile of weights that a program has in flight at a time."""

    rows: int
    columns: int
    warps: int


@triton.jit
def gemv_kernel(
    x_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, gain_ptr: tensor, shift_ptr: tensor,
    out_ptr: tensor, N: int, eps: float,
    K: constexpr, ACTIVATION: constexpr, GATED: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    """Outputs from program_id(0) * BLOCK_N on. Pointers may be None: that part is then not compiled."""
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_n = row < N
    weights = weight_ptr + row.to(tl.int64)[:, None] * K
    up_weights = weight_ptr + (row + N).to(tl.int64)[:, None] * K
    sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    ups = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    column = tl.arange(0, BLOCK_K)
    let_next_start(PDL)
    next_weight = _tile(weights, column, inside_n, K)
    if GATED:
        next_up = _tile(up_weights, column, inside_n, K)
    wait_for_previous(PDL)  # weights are on their way; x and the residual are the previous kernel's
    for start in range(0, K, BLOCK_K):
        weight = next_weight
        if GATED:
            up = next_up
        if start + BLOCK_K < K:  # the next tile's loads are under way before this one's are used
            next_weight = _tile(weights, start + BLOCK_K + column, inside_n, K)
            if GATED:
                next_up = _tile(up_weights, start + BLOCK_K + column, inside_n, K)
        x, squares = _normed(x_ptr, gain_ptr, shift_ptr, start, column, squares, eps, K)
        sums += weight.to(tl.float32) * x[None, :]
        if GATED:
            ups += up.to(tl.float32) * x[None, :]

    scale = 1.0
    if gain_ptr is not None and shift_ptr is None:
        scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
    out = _plus(tl.sum(sums, 1) * scale, bias_ptr, row, inside_n)
    if ACTIVATION is not None:
        out = activate(out, ACTIVATION)
    if GATED:
        out *= _plus(tl.sum(ups, 1) * scale, bias_ptr, N + row, inside_n)
    out = _plus(out, residual_ptr, row, inside_n)
    tl.store(out_ptr + row, out.to(out_ptr.dtype.element_ty), mask=inside_n)


@triton.jit
def _tile(rows: tensor, column: tensor, inside: tensor, K: constexpr) -> tensor:
    """Some columns of some rows of the matrix, which no program reads again."""
    inside = inside[:, None] & (column < K)[None, :]
    return tl.load(rows + column[None, :], mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def _normed(
    x_ptr: tensor, gain_ptr: tensor, shift_ptr: tensor, start: int, column: tensor, squares: tensor, eps: float,
    K: constexpr,
) -> tensor:  # fmt: skip
    """The columns of x from `start` on, normalized but for an RMSNorm's factor, to which they add their `squares`."""
    inside = start + column < K
    x = tl.load(x_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
    if gain_ptr is not None:
        gain = tl.load(gain_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
    if shift_ptr is not None:  # LayerNorm: K fits one tile, so this is the whole row
        shift = tl.load(shift_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, x - tl.sum(x, 0) / K, 0.0)
        x *= tl.rsqrt(tl.sum(x * x, 0) / K + eps)
    elif gain_ptr is not None:
        squares += x * x
    if gain_ptr is not None:
        x *= gain
    if shift_ptr is not None:
        x += shift
    return x, squares


@triton.jit
def _plus(out: tensor, added_ptr: tensor, row: tensor, inside: tensor) -> tensor:
    """out and, if there is one, the vector at `added_ptr`."""
    if added_ptr is not None:
        out += tl.load(added_ptr + row, mask=inside, other=0.0).to(tl.float32)
    return out


def gemv(
    x: Tensor,
    weight: Tensor,
    launch: GemvLaunch,
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    activation: str | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """residual + activation(norm(x) weightᵀ + bias); gated: activation(gate) * up of the product's two halves.

    x: [1, K]; weight: [N, K], or [2 N, K] if gated, contiguous; residual: [1, N], and it takes the sum in place, as a
    residual stream does, so it must not be x.
    Returns [1, N] in x's dtype: `residual` itself if given.
    """
    rows, inner = weight.shape
    outputs = rows // 2 if gated else rows
    assert x.shape == (1, inner) and weight.is_contiguous() and x.is_contiguous()
    early = starts_early()
    gain, shift, eps = norm or (None, None, 0.0)
    columns = triton.next_power_of_2(inner) if shift is not None else launch.columns
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device) if residual is None else residual
    gemv_kernel[(triton.cdiv(outputs, launch.rows),)](
        x, weight, bias, residual, gain, shift, out, outputs, eps,
        inner, activation, gated, launch.rows, columns, early, num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return out


# -- the same in torch -------------------------------------------------------------------------------------------------


def gemv_reference(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    activation: str | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    wide = x.float()
    if norm is not None and norm.bias is not None:
        wide = add_layer_norm_reference(wide, None, norm.weight, norm.bias, norm.eps)
    elif norm is not None:
        wide = add_rms_norm_reference(wide, None, norm.weight, norm.eps)
    out = wide @ weight.float().T
    if bias is not None:
        out += bias.float()
    if activation is not None:
        out = gated_activation_reference(out, activation) if gated else activation_reference(out, activation)
    return out.to(x.dtype) if residual is None else residual.copy_(residual.float() + out)
