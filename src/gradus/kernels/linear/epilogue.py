"""A product's neighbors in its kernel: the norm before it; bias, activation, gate and residual sum after it.

A kernel loads the bias and the residual where that hides their latency: `gemv.py` and the streamed kernels before their
weights have arrived, kernels of tiles when their sums are complete (`splits.finish_tile`). All end in `finish`.

With a gate, rows 0 … N - 1 are the gate's and rows N … 2 N - 1 are up's; a program owns both rows of an output.
"""

from typing import NamedTuple, TypedDict

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.rows.activation import activate, activate_gated

# Every program of a product can normalize a few rows for itself. Up to this width that takes less time than a separate
# launch, where launches start early, and beyond it more (Llama-3.2-1B and 8B with one row on an H200: the
# steps in benchmarks/kernels/fused_kernels.json).
NORM_WITHIN = 2048


class Norm(NamedTuple):
    """Applied to x before the product: an RMSNorm, or with a bias a LayerNorm. weight, bias: [K]."""

    weight: Tensor
    bias: Tensor | None
    eps: float


class Epilogue(TypedDict, total=False):
    """Optional arguments of a product: what follows it in its kernel."""

    bias: Tensor | None
    activation: str | None
    gated: bool
    residual: Tensor | None


class Fusions(Epilogue, total=False):
    """Optional arguments of a product: all that its kernel computes besides."""

    norm: Norm | None


@triton.jit
def vector(pointer: tensor, at: tensor, inside: tensor) -> tensor:
    """Load from a vector, in float32. Without one, return values that change no sum: the compiler drops x + -0.0."""
    if pointer is not None:
        return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)
    else:  # zeros in the layout of `at`, in Triton and in Gluon alike
        return (at - at).to(tl.float32) * -1.0


@triton.jit
def finish(
    sums: tensor, ups: tensor, bias: tensor, up_bias: tensor, residual: tensor, out: tensor, inside: tensor,
    ACTIVATION: constexpr, GATED: constexpr,
) -> None:  # fmt: skip
    """Store residual + activation(sums + bias) where `out` points; with a gate activation(…) * (ups + up_bias)."""
    sums += bias
    if GATED:
        sums = activate_gated(sums, ups + up_bias, ACTIVATION)
    elif ACTIVATION is not None:
        sums = activate(sums, ACTIVATION)
    tl.store(out, (sums + residual).to(out.dtype.element_ty), mask=inside)


class Operands(NamedTuple):
    """The checked arguments of a product of few rows: residual + activation(norm(x) weightᵀ + bias).

    If gated, the matrix has the gate's rows and then up's, and the sum is activation(gate) * up. tensors: x, weight,
    bias, residual, and the norm's gain. shift: a LayerNorm's. out: [rows, outputs] in x's dtype, or the residual, which
    takes the sum in place, as a residual stream does, so it must not be x.
    """

    tensors: tuple[Tensor | None, ...]
    shift: Tensor | None
    out: Tensor
    rows: int
    outputs: int
    eps: float
    inner: int
    activation: str | None
    gated: bool

    @classmethod
    def of(
        cls, x: Tensor, weight: Tensor, most_rows: int, *, bias: Tensor | None = None, norm: Norm | None = None,
        activation: str | None = None, gated: bool = False, residual: Tensor | None = None,
    ) -> "Operands":  # fmt: skip
        """x: [M, K], M up to most_rows; weight: [N, K], or [2 N, K] if gated; both contiguous; residual: [M, N]."""
        (rows, inner), height = x.shape, weight.shape[0]
        assert 0 < rows <= most_rows and weight.shape[1] == inner and weight.is_contiguous() and x.is_contiguous()
        outputs = height // 2 if gated else height
        gain, shift, eps = norm or (None, None, 0.0)
        out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device) if residual is None else residual
        return cls((x, weight, bias, residual, gain), shift, out, rows, outputs, eps, inner, activation, gated)
