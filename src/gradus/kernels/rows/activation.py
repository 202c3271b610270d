"""The MLP's nonlinearity in one pass: gate and up from one fused product, multiplied where they lie.

Idea: `activation(gate) * up` as two operations writes the activated gate and reads it again. That moves 5 F elements
per token where 3 F suffice. gate and up are halves of one row, so a program reads a piece of each and writes the
product.

Elements moved per token: 2 F read, F written (without a gate: F and F). Layout: gate_up [N, 2 F] contiguous, gate
first; a program takes BLOCK columns of one row. The arithmetic is float32 whatever the dtype, rounded once at the end.

The factor may also come from elsewhere: Gemma 4's layers multiply their activated gate by their own embeddings. These
are columns of a wider tensor, and read in place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous

BLOCK = 1024  # columns per program: 8 per thread, one 16-byte load in bf16


@triton.jit
def activate(x: tensor, ACTIVATION: constexpr) -> tensor:
    """silu, gelu (by erf) or gelu_tanh (its approximation, GPT-2 and Gemma) of float32 values."""
    if ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    else:  # (1 + tanh(z)) / 2 is sigmoid(2 z), and neither overflows
        tl.static_assert(ACTIVATION == "gelu_tanh")
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return x


@triton.jit
def activate_gated(gate: tensor, up: tensor, ACTIVATION: constexpr) -> tensor:
    """activation(gate) * up of float32 values; or gpt-oss's gate, whose two sides are clamped (`Clamped`)."""
    if ACTIVATION == "clamped_silu":
        gate, up = tl.minimum(gate, 7.0), tl.minimum(tl.maximum(up, -7.0), 7.0)
        return gate * tl.sigmoid(1.702 * gate) * (up + 1)
    else:
        return activate(gate, ACTIVATION) * up


@triton.jit
def activation_kernel(
    in_ptr: tensor,
    times_ptr: tensor,
    out_ptr: tensor,
    width: int,
    stride: int,
    ACTIVATION: constexpr,
    GATED: constexpr,
    BLOCK: constexpr,
    PDL: constexpr,
) -> None:
    """Row program_id(0), columns from program_id(1) * BLOCK on. times: factors, rows `stride` apart; None: none."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    if GATED:
        here = in_ptr + row * (2 * width) + column
        up = tl.load(here + width, mask=inside, other=0.0).to(tl.float32)
        out = activate_gated(tl.load(here, mask=inside, other=0.0).to(tl.float32), up, ACTIVATION)
    else:
        out = activate(tl.load(in_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    if times_ptr is not None:
        out *= tl.load(times_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=inside)


def gated_activation(gate_up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up (Shazeer 2020): SwiGLU with "silu", GeGLU with "gelu_tanh" or "gelu"; or "clamped_silu".

    gate_up: [N, 2 F], contiguous, gate first. Returns [N, F].
    """
    return _launch(gate_up, gate_up.shape[1] // 2, activation, gated=True)


def activation(x: Tensor, activation: str, times: Tensor | None = None) -> Tensor:
    """The activation alone (GPT-2), or its product with `times` (Gemma 4). x: [N, F], contiguous. Returns [N, F].

    times: [N, F], of any floating dtype, rows any distance apart.
    """
    return _launch(x, x.shape[1], activation, times, gated=False)


def _launch(x: Tensor, width: int, activation: str, times: Tensor | None = None, *, gated: bool) -> Tensor:
    assert x.is_contiguous() and (times is None or (times.shape == x.shape and times.stride(1) == 1))
    out = torch.empty(x.shape[0], width, dtype=x.dtype, device=x.device)
    if out.numel():
        grid, early = (x.shape[0], triton.cdiv(width, BLOCK)), starts_early()
        stride = 0 if times is None else times.stride(0)
        activation_kernel[grid](
            x, times, out, width, stride, activation, gated, BLOCK, early, num_warps=4, launch_pdl=early
        )
    return out
