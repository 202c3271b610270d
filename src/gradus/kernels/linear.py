"""Which kernel takes a product: this project's for few rows, cuBLAS for many, as the device's `launch_tables` say."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.kernels.gemv import GemvLaunch, gemv
from gradus.kernels.launch_tables import Launch, table_of
from gradus.kernels.skinny import SkinnyLaunch, skinny


@cache
def choose(m: int, n: int, k: int, device: torch.device) -> Launch | None:
    """How to multiply [m, k] by a 16-bit matrix [n, k]: a launch of `gemv` or `skinny`, or None for cuBLAS."""
    return table_of(device).choose(m, n, k)


@cache
def choose_fused(m: int, n: int, k: int, gated: bool, device: torch.device) -> GemvLaunch | None:
    """How to multiply [m, k] by a 16-bit matrix [n, k] with something fused in; None where apart is faster."""
    launch = table_of(device).fused(m, n, k)
    # with a gate, a program reads two rows of weights for an output
    return launch._replace(rows=max(1, launch.rows // 2)) if launch and gated else launch


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
