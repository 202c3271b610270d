"""Choose the kernel of a product: this project's for few rows, cuBLAS for many, as the device's `launch_tables` say."""

from functools import cache
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.kernels.core.counters import Counters
from gradus.kernels.core.gluon import in_gluon
from gradus.kernels.linear.epilogue import Fusions
from gradus.kernels.linear.gemv import gemv
from gradus.kernels.linear.launch_tables import FusedLaunch, Launch, Unmeasured, table_of
from gradus.kernels.linear.launches import VECTOR, FewRowsLaunch, GemvLaunch, SplitKLaunch, StreamedLaunch
from gradus.kernels.linear.splitk import splitk

few_rows = in_gluon("linear.few_rows", "few_rows")
streamed_gemv = in_gluon("linear.streamed_gemv", "streamed_gemv")
streamed_rows = in_gluon("linear.streamed_rows", "streamed_rows")


@cache
def choose(m: int, n: int, k: int, device: torch.device) -> Launch | None:
    """Choose how to multiply [m, k] by a 16-bit matrix [n, k]: a launch of this project's kernels; None for cuBLAS."""
    launch = table_of(device).choose(m, n, k)
    return launch if isinstance(launch, SplitKLaunch) else _there(launch, m, n, k)


@cache
def choose_fused(m: int, n: int, k: int, gated: bool, device: torch.device) -> FusedLaunch | None:
    """Choose how to multiply [m, k] by a 16-bit matrix [n, k] with something fused in; None if separate is faster."""
    launch = _there(table_of(device).fused(m, n, k), m, n, k)
    # with a gate, a program reads two rows of weights for an output
    return launch._replace(rows=max(1, launch.rows // 2)) if isinstance(launch, GemvLaunch) and gated else launch


def _there(launch: FusedLaunch | None, m: int, n: int, k: int) -> FusedLaunch | None:
    """Return that launch if there is its kernel, which Gluon may be missing for. In the place of a stream, which also
    needs matrix rows of multiples of 16 bytes, an unmeasured device's launch.
    """
    if isinstance(launch, StreamedLaunch) and (streamed_gemv is None or k % VECTOR):
        return Unmeasured().fused(m, n, k)
    return None if isinstance(launch, FewRowsLaunch) and few_rows is None else launch


def fused_linear(x: Tensor, weight: Tensor, launch: FusedLaunch, **fusions: Unpack[Fusions]) -> Tensor:
    """Compute residual + activation(norm(x) weightᵀ + bias) in one launch, by that launch's kernel; see `gemv`.

    Only `gemv` has a LayerNorm.
    """
    if isinstance(launch, GemvLaunch):
        return gemv(x, weight, launch, **fusions)
    streamed = streamed_gemv if len(x) == 1 else streamed_rows
    kernel = few_rows if isinstance(launch, FewRowsLaunch) else streamed
    assert kernel is not None
    return kernel(x, weight, launch, **fusions)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    counters: Counters | None = None,
) -> Tensor:
    """x weightᵀ + bias, or with `residual` [M, N] that plus the residual, in place (and returned).

    x: [M, K]; weight: [N, K]; bias: [N]. Returns [M, N].
    """
    launch = choose(x.shape[0], *weight.shape, x.device) if weight.element_size() == 2 else None
    if isinstance(launch, SplitKLaunch):
        return splitk(x, weight, launch, bias=bias, residual=residual, counters=counters)
    if launch is not None:
        return fused_linear(x, weight, launch, bias=bias, residual=residual)
    if residual is None:
        return F.linear(x, weight, bias)
    if bias is not None:  # cuBLAS adds one thing on its way out: the bias, since torch is slow to add one row to many
        return residual.add_(F.linear(x, weight, bias))
    return residual.addmm_(x, weight.t())
