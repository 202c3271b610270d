"""2 to 64 rows through a matrix: still a stream of weights, but with enough arithmetic to need the tensor cores.

Idea: at these sizes a library's tiles, 64 or 128 rows of x high, are mostly padding, and few of them cover the matrix,
so that multiprocessors stand idle. Here the product is turned around: out' = W x'. The weights are the high side of a
tensor-core tile, x' the narrow one (16, 32 or 64 wide), and weight tiles stream through a pipeline in shared memory.
Where N alone gives too few programs, K is split between several (`splits.py`).

Bytes: N K of weights once, M (K + N) of activations; with S splits 2 S M N of float32, which stays in the cache.
Layout: x [M, K], weight [N, K], out [M, N], all row-major.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.counters import Counters, counters_of
from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.linear.epilogue import Operands
from gradus.kernels.linear.launches import SplitKLaunch
from gradus.kernels.linear.splits import finish_tile

MOST_ROWS = 64


@triton.jit
def splitk_kernel(
    x_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, out_ptr: tensor,
    partial_ptr: tensor, arrived_ptr: tensor, M: int, N: int, K: int, chunk: int,
    EVEN_K: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Outputs from program_id(0) * BLOCK_N on, all M rows; of the sum, the chunk of K that is program_id(1)'s."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    inside_n, inside_m = (n < N)[:, None], (m < M)[None, :]
    first = tl.program_id(1) * chunk
    weight = weight_ptr + n.to(tl.int64)[:, None] * K + (first + k)[None, :]
    x = x_ptr + m[None, :] * K + (first + k)[:, None]
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(first, min(first + chunk, K), BLOCK_K):
        if EVEN_K:
            w = tl.load(weight, mask=inside_n, other=0.0)
            v = tl.load(x, mask=inside_m, other=0.0)
        else:
            w = tl.load(weight, mask=inside_n & (start + k < K)[None, :], other=0.0)
            v = tl.load(x, mask=inside_m & (start + k < K)[:, None], other=0.0)
        sums = tl.dot(w, v, sums, input_precision="ieee")
        weight += BLOCK_K
        x += BLOCK_K

    finish_tile(
        sums, sums, n, m, n < N, inside_m & inside_n, tl.program_id(0), partial_ptr, arrived_ptr, None, None,
        bias_ptr, residual_ptr, out_ptr, M, N, None, None, False,
    )  # fmt: skip


def splitk(
    x: Tensor,
    weight: Tensor,
    launch: SplitKLaunch,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    counters: Counters | None = None,
) -> Tensor:
    """x weightᵀ + bias, or with `residual` [M, N] that plus the residual, in place.

    x: [M, K] with M ≤ 64; weight: [N, K]. See `Operands`.
    Launches that split sums and share counters must follow each other (one stream). counters: None takes the device's.
    """
    given, early = Operands.of(x, weight, MOST_ROWS, bias=bias, residual=residual), starts_early()
    rows, outputs, inner = given.rows, given.outputs, given.inner
    tiles = triton.cdiv(outputs, launch.rows)
    chunk = triton.cdiv(triton.cdiv(inner, launch.splits), launch.columns) * launch.columns  # whole tiles per program
    partial = arrived = None
    if launch.splits > 1:
        partial = torch.empty(launch.splits, rows, outputs, dtype=torch.float32, device=x.device)
        arrived = counters_of(x.device, tiles, counters)
    splitk_kernel[(tiles, launch.splits)](
        x, weight, bias, residual, given.out, partial, arrived, rows, outputs, inner, chunk,
        inner % launch.columns == 0, max(16, triton.next_power_of_2(rows)), launch.rows, launch.columns, early,
        num_warps=launch.warps, num_stages=launch.stages, launch_pdl=early,
    )  # fmt: skip
    return given.out
