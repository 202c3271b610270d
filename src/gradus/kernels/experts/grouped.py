"""Many rows through their experts: the products of all experts in one launch, each with the rows that chose it.

Idea: sorted by expert (`dispatch.py`), the rows of an expert are a range, and a program multiplies a tile of them by a
tile of that expert's matrix. Nothing is padded to the expert with the most rows. Which expert a tile has is known on
the device alone, so a launch has a place for every tile that there could be, and surplus programs end at once.

- *Few rows per expert* are a stream of weights, as in `linear/splitk.py`: weights are the high side of a tile.
- *Many rows* need the matrix units: programs that run at the same time take the column tiles of the same rows, and the
  next rows of the same expert, so that both are found in the L2 cache.

The first product reads its rows where they lie in x, gate and features of an output in one program, and writes features
in sorted order. The second reads those and writes each row to its pair, so that a sum over a row's k results follows.

Bytes: each chosen expert's matrix once per tile of rows (from memory once, if its tiles run together); N k (K + N) of
activations. Layouts: x [N, D]; weights [2 E F, D], all experts' gates above all experts' features, and [E D, F], which
are matrices as `models/experts.py` stacks them; biases alike.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gradus.device.capability import multiprocessors
from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.experts.dispatch import Dispatch, tile_at
from gradus.kernels.experts.grouped_launch import AnyLaunch, HopperGroupedLaunch, HopperLaunch
from gradus.kernels.experts.grouped_tables import Use, choose_launch, hopper_grouped, hopper_streamed
from gradus.kernels.rows.activation import activate, activate_gated


@triton.jit
def weight_tile(
    weight_ptr: tensor, described: tensor, first: tensor, rows: tensor, start: tensor, K: int, BLOCK_K: constexpr,
    EVEN_K: constexpr,
) -> tensor:  # fmt: skip
    """Columns from `start` on of rows `first + rows` of a matrix [any, K]; zeros beyond K. described: for the copy
    engine, or None.
    """
    if described is not None:
        tile = described.load([first, start])
    else:
        k = start + tl.arange(0, BLOCK_K)
        here = weight_ptr + (first + rows).to(tl.int64)[:, None] * K + k[None, :]
        tile = tl.load(here) if EVEN_K else tl.load(here, mask=(k < K)[None, :], other=0.0)
    return tile


@triton.jit
def row_bias(bias_ptr: tensor, rows: tensor) -> tensor:
    return tl.load(bias_ptr + rows).to(tl.float32) if bias_ptr is not None else tl.zeros(rows.shape, tl.float32)


@triton.jit(do_not_specialize=["experts"])
def grouped_kernel(
    x_ptr: tensor, weight_ptr: tensor, described: tensor, bias_ptr: tensor, out_ptr: tensor, pairs_ptr: tensor,
    starts_ptr: tensor, experts: int, N: int, K: int,
    CHOSEN: constexpr, ACTIVATION: constexpr, GATED: constexpr, EVEN_K: constexpr, EXPERTS: constexpr,
    BLOCK_M: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """BLOCK_N of an expert's N outputs, of BLOCK_M of its rows; column tiles of the same rows follow each other.

    described: the matrix for the copy engine, with tiles of BLOCK_N by BLOCK_K; None reads it through pointers.
    CHOSEN: k, of the first product, which finds its rows in x; 0: the second one's rows are sorted, its results not.
    """
    if CHOSEN:  # not before it waits: a next launch may read what `dispatch` wrote as soon as it starts
        wait_for_previous(PDL)
        let_next_start(PDL)
    else:
        let_next_start(PDL)
    tiles = tl.cdiv(N, BLOCK_N)
    expert, first, end = tile_at(starts_ptr, tl.program_id(0) // tiles, experts, EXPERTS, BLOCK_M)
    if first < end:
        column = tl.program_id(0) % tiles * BLOCK_N
        n = tl.arange(0, BLOCK_N)
        inside_n = column + n < N
        row = first + tl.arange(0, BLOCK_M)
        inside_m = row < end
        row = tl.minimum(row, end - 1)  # rows behind the last repeat it, and are not stored
        pair = tl.load(pairs_ptr + row, cache_modifier=".cg")
        first_weight = expert * N + column
        rows = tl.minimum(n, N - 1 - column)
        up_weight = experts * N + first_weight
        if CHOSEN:
            x = x_ptr + (pair // CHOSEN).to(tl.int64)[None, :] * K
        else:
            wait_for_previous(PDL)
            x = x_ptr + row.to(tl.int64)[None, :] * K
        k = tl.arange(0, BLOCK_K)
        sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        ups = sums
        for start in range(0, K, BLOCK_K):
            w = weight_tile(weight_ptr, described, first_weight, rows, start, K, BLOCK_K, EVEN_K)
            if EVEN_K:
                v = tl.load(x + (start + k)[:, None])
            else:
                v = tl.load(x + (start + k)[:, None], mask=(start + k < K)[:, None], other=0.0)
            sums = tl.dot(w, v, sums, input_precision="ieee")
            if GATED:
                up = weight_tile(weight_ptr, described, up_weight, rows, start, K, BLOCK_K, EVEN_K)
                ups = tl.dot(up, v, ups, input_precision="ieee")
        sums += row_bias(bias_ptr, first_weight + rows)[:, None]
        if GATED:
            sums = activate_gated(sums, ups + row_bias(bias_ptr, up_weight + rows)[:, None], ACTIVATION)
        elif ACTIVATION is not None:
            sums = activate(sums, ACTIVATION)
        to = row if CHOSEN else pair
        out = out_ptr + to.to(tl.int64)[None, :] * N + (column + n)[:, None]
        tl.store(out, sums.to(out_ptr.dtype.element_ty), mask=inside_m[None, :] & inside_n[:, None])


def up_product(
    x: Tensor, weight: Tensor, plan: Dispatch, activation: str, *, gated: bool = True, bias: Tensor | None = None,
    launch: AnyLaunch | None = None,
) -> Tensor:  # fmt: skip
    """Multiply each expert's rows by its first matrix, and apply the activation or the gate.

    x: [N, D]. weight: [2 E F, D], or [E F, D] if not gated; bias: as many. launch: None takes the measured one. Returns
    features in sorted order, [N k, F]; undefined behind the last expert's.
    """
    height = weight.shape[0] // (2 if gated else 1)
    more = {"CHOSEN": plan.chosen, "ACTIVATION": activation, "GATED": gated}
    return _multiply("up", x, weight, bias, plan, height // plan.experts, launch, more)


def down_product(
    features: Tensor, weight: Tensor, plan: Dispatch, *, bias: Tensor | None = None, launch: AnyLaunch | None = None
) -> Tensor:
    """Multiply each expert's features by its second matrix.

    features: [N k, F] in sorted order. weight: [E D, F]; bias: [E D]. Returns [N k, D] in the order of pairs: row n's
    are at n k to n k + k - 1. Those of no expert here are undefined. Inside `early_launches` it must follow
    `up_product` at once: it reads the dispatch before it waits, and only that launch lets it start late enough.
    """
    more = {"CHOSEN": 0, "ACTIVATION": None, "GATED": False}
    return _multiply("down", features, weight, bias, plan, weight.shape[0] // plan.experts, launch, more)


def _multiply(
    use: Use, x: Tensor, weight: Tensor, bias: Tensor | None, plan: Dispatch, n: int, launch: AnyLaunch | None,
    more: dict[str, Any],
) -> Tensor:  # fmt: skip
    k, pairs = x.shape[1], len(plan.pairs)
    assert x.is_contiguous() and weight.is_contiguous() and weight.shape[1] == k and weight.dtype == x.dtype
    if launch is None:
        launch = choose_launch(use, pairs, plan.experts, n, k, x.dtype, more["GATED"], x.device)
    out = torch.empty(pairs, n, dtype=x.dtype, device=x.device)
    if isinstance(launch, HopperLaunch):
        kernel = hopper_grouped if isinstance(launch, HopperGroupedLaunch) else hopper_streamed
        assert kernel is not None and more["GATED"] == (use == "up")
        kernel(x, weight, bias, out, plan, multiprocessors(x.device), launch, more["ACTIVATION"])
        return out
    early = launch.early and starts_early()
    described = None
    if launch.copied:
        described = TensorDescriptor(weight, [*weight.shape], [*weight.stride()], [launch.rows, launch.columns])
    grouped_kernel[(plan.tiles(launch.tokens) * triton.cdiv(n, launch.rows),)](
        x, weight, described, bias, out, plan.pairs, plan.starts, plan.experts, n, k,
        **more, EVEN_K=k % launch.columns == 0, EXPERTS=triton.next_power_of_2(plan.experts),
        BLOCK_M=launch.tokens, BLOCK_N=launch.rows, BLOCK_K=launch.columns, PDL=early,
        num_warps=launch.warps, num_stages=launch.stages, launch_pdl=early,
    )  # fmt: skip
    return out
