"""Which kernel takes a product: this project's for few rows, cuBLAS for many, as the device's `launch_tables` say."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.kernels.gemv import GemvLaunch, Norm, gemv
from gradus.kernels.launch_tables import Launch, table_of
from gradus.kernels.skinny import SkinnyLaunch, skinny


@cache
def choose(m: int, n: int, k: int, device: torch.device) -> Launch | None:
    """How to multiply [m, k] by a 16-bit matrix [n, k]: a launch of `gemv` (m = 1) or `skinny`, or None for cuBLAS."""
    return table_of(device).choose(m, n, k)


@cache
def choose_fused(n: int, k: int, gated: bool, device: torch.device) -> GemvLaunch:
    """How to multiply one row by a 16-bit matrix [n, k] with something fused in."""
    launch = table_of(device).alone(n, k)
    # with a gate, a program reads two rows of weights for an output
    return launch._replace(rows=max(1, launch.rows // 2)) if gated else launch


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias, or with `residual` [M, N] that plus the residual, in place (and returned).

    x: [M, K]; weight: [N, K]; bias: [N]. Returns [M, N].
    """
    launch = choose(x.shape[0], *weight.shape, x.device) if weight.element_size() == 2 else None
    if isinstance(launch, GemvLaunch):
        return gemv(x, weight, launch, bias=bias, residual=residual)
    if isinstance(launch, SkinnyLaunch):
        return skinny(x, weight, launch, bias=bias, residual=residual)
    if residual is None:
        return F.linear(x, weight, bias)
    if bias is not None:  # cuBLAS adds one thing on its way out: the bias, since torch is slow to add one row to many
        return residual.add_(F.linear(x, weight, bias))
    return residual.addmm_(x, weight.t())


def fused_gemv(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    activation: str | None = None,
    gated: bool = False,
) -> Tensor:
    """One row, [1, K]: activation(norm(x) weightᵀ + bias) in one launch; gated: activation(gate) * up, [1, N / 2].

    Every program normalizes x for itself. That beats a launch of its own up to a hidden size of 2048 (Llama-3.2-1B),
    and loses from 4096 on (the steps in benchmarks/fused_kernels.json).
    """
    launch = choose_fused(*weight.shape, gated, x.device)
    return gemv(x, weight, launch, bias=bias, norm=norm, activation=activation, gated=gated)
