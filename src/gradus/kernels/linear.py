"""Which kernel takes a product: this project's for few rows, cuBLAS for many, by what was measured and not by taste.

`MEASURED` (written by benchmarks/fused_kernels.py) holds the fastest launch for each matrix that the benchmark knows
and each number of rows: a launch of `gemv` or `skinny`, or None where cuBLAS was as fast. A matrix that was never
measured takes the choice of the nearest one: time depends on how many programs N gives and how long each runs over K,
and both change it by ratios, so near means a small log-ratio.
"""

import math
from functools import cache

from torch import Tensor
from torch.nn import functional as F

from gradus.kernels.gemv import GemvLaunch, Norm, gemv
from gradus.kernels.linear_table import GEMV, MEASURED, ROWS
from gradus.kernels.skinny import SkinnyLaunch, skinny


@cache
def choose(m: int, n: int, k: int) -> GemvLaunch | SkinnyLaunch | None:
    """How to multiply [m, k] by a 16-bit matrix [n, k]: a launch of `gemv` (m = 1) or `skinny`, or None for cuBLAS."""
    if not 0 < m <= ROWS[-1]:
        return None
    rows = next(rows for rows in ROWS if rows >= m)
    return MEASURED[_nearest(n, k)][rows]


def _nearest(n: int, k: int) -> tuple[int, int]:
    return min(MEASURED, key=lambda shape: abs(math.log(shape[0] / n)) + abs(math.log(shape[1] / k)))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias, or with `residual` [M, N] that plus the residual, in place (and returned).

    x: [M, K]; weight: [N, K]; bias: [N]. Returns [M, N].
    """
    launch = choose(x.shape[0], *weight.shape) if weight.element_size() == 2 else None
    if isinstance(launch, GemvLaunch):
        return gemv(x, weight, launch, bias=bias, residual=residual)
    if isinstance(launch, SkinnyLaunch):
        return skinny(x, weight, launch, bias=bias, residual=residual)
    if residual is None:
        return F.linear(x, weight, bias)
    if bias is not None:  # cuBLAS adds one on its way out: the bias, for torch is slow to add one row to many
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
    n, k = weight.shape
    launch = GEMV[_nearest(n, k)]
    if gated:  # a program reads two rows of weights for an output
        launch = launch._replace(rows=max(1, launch.rows // 2))
    return gemv(x, weight, launch, bias=bias, norm=norm, activation=activation, gated=gated)
