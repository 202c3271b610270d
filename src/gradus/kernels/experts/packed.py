"""Experts in fewer bits: each expert's rows by its matrix, which is unpacked on its way to the product.

Activations stay as they are, in every form: a step reads weights, and few rows per expert leave nothing to gain from
activations in 8 bits. So a row's result does not depend on the rows next to it.

Which rows a program has is as in `few.py` for up to 64 of them, where every pair of a row and a place has programs, and
as in `grouped.py` for more, which `dispatch.py` has sorted. With a gate, the first half of a tile's rows are gates and
the second half the features that they let through: one product, whose sums then meet.

Bytes: each chosen expert's matrix once, or once per tile of its rows; N k (K + N) of activations. Layouts: as in
`grouped.py`; features and results lie by pair, for few rows, or features in sorted order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.experts.dispatch import Dispatch, tile_at
from gradus.kernels.experts.few import pairs_of_expert
from gradus.kernels.experts.launches import MOST_FEW
from gradus.kernels.experts.packed_launch import PackedLaunch, launch_of
from gradus.kernels.experts.packed_tiles import BY_BLOCK, BY_ROW, Form, add_products
from gradus.kernels.rows.activation import activate, activate_gated

# -- the kernel ------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["M", "experts"])
def packed_experts_kernel(
    x_ptr: tensor, weight_ptr: tensor, scale_ptr: tensor, bias_ptr: tensor, out_ptr: tensor,
    chosen_ptr: tensor, pairs_ptr: tensor, starts_ptr: tensor, M: int, experts: int, N: int, K: int, STRIDE: int,
    FORM: constexpr, DETAIL: constexpr, KIND: constexpr, PAIRED: constexpr, SORTED: constexpr, BY_EXPERT: constexpr,
    FIRST: constexpr, CHOSEN: constexpr, EXPERTS: constexpr, ACTIVATION: constexpr, GATED: constexpr, EVEN_K: constexpr,
    BLOCK_M: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """A tile of an expert's N outputs, of up to BLOCK_M of its rows; column tiles of the same rows follow each other.

    SORTED: rows are `tile_at` place program_id(0) / tiles. Otherwise they are all those of M rows that chose an expert:
    that of a pair, or with BY_EXPERT that number. FIRST: of both products, whose rows are those of x; else x has a row
    for every pair.
    """
    wait_for_previous(PDL)
    let_next_start(PDL)
    OUTPUTS: constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    tiles = tl.cdiv(N, OUTPUTS)
    place, column = tl.program_id(0) // tiles, tl.program_id(0) % tiles * OUTPUTS
    if SORTED:
        expert, first, end = tile_at(starts_ptr, place, experts, EXPERTS, BLOCK_M)
        at = tl.minimum(first + tl.arange(0, BLOCK_M), end - 1)
        mine = first + tl.arange(0, BLOCK_M) < end
        begins = first < end
        pair = tl.load(pairs_ptr + at, mask=mine, other=0, cache_modifier=".cg")
        source = pair // CHOSEN if FIRST else at
        target = at if FIRST else pair
    else:
        expert = place
        if not BY_EXPERT:
            expert = tl.load(chosen_ptr + place)
        PLACES: constexpr = triton.next_power_of_2(CHOSEN)
        earliest, pair = pairs_of_expert(chosen_ptr, expert, M, CHOSEN, PLACES, BLOCK_M)
        mine = pair >= 0
        begins = (earliest == (earliest if BY_EXPERT else place)) & (earliest < M * CHOSEN)
        source = tl.arange(0, BLOCK_M) if FIRST else pair
        target = pair
    if begins:
        r = tl.arange(0, BLOCK_N)
        n = column + r % OUTPUTS
        part = r // OUTPUTS  # 1: features
        inside = tl.minimum(n, N - 1)  # outputs behind the last repeat it, and are not stored
        matrix = part * experts + expert
        row = matrix * N + inside
        block = matrix * ((N + 127) // 128) + inside // 128
        x = x_ptr + tl.where(mine, source, 0).to(tl.int64)[None, :] * K
        there = mine[None, :]
        sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        rows = (2 if GATED else 1) * experts * N
        for start in range(0, K, BLOCK_K):
            sums = add_products(
                sums, weight_ptr, scale_ptr, row, block, x, there, start, rows, STRIDE, K,
                FORM, DETAIL, KIND, PAIRED, BLOCK_K, EVEN_K,
            )  # fmt: skip
        if FORM == BY_ROW:
            sums *= tl.load(scale_ptr + row)[:, None]
        results = _finished(sums, bias_ptr, row, ACTIVATION, GATED)
        n = column + tl.arange(0, OUTPUTS)
        out = out_ptr + target.to(tl.int64)[None, :] * N + n[:, None]
        tl.store(out, results.to(out_ptr.dtype.element_ty), mask=there & (n < N)[:, None])


@triton.jit
def _finished(sums: tensor, bias_ptr: tensor, row: tensor, ACTIVATION: constexpr, GATED: constexpr) -> tensor:
    """Add the bias and apply the activation; with a gate, halve the rows."""
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + row).to(tl.float32)[:, None]
    if GATED:
        halves = tl.reshape(sums, (2, sums.shape[0] // 2, sums.shape[1]))
        gates, features = tl.split(tl.permute(halves, (1, 2, 0)))
        results = activate_gated(gates, features, ACTIVATION)
    elif ACTIVATION is not None:
        results = activate(sums, ACTIVATION)
    else:
        results = sums
    return results


# -- both products, of few rows and of many ----------------------------------------------------------------------------


class Rows(NamedTuple):
    """Which rows have which expert. chosen: int32 [N, k]; plan: for more than MOST_FEW rows, these sorted by expert."""

    chosen: Tensor
    experts: int
    plan: Dispatch | None = None

    @property
    def tokens(self) -> int:
        return len(self.chosen)

    @property
    def places(self) -> int:
        return self.chosen.shape[1]

    @property
    def at_most(self) -> int:
        """The rows of an expert that a tile should have room for: all if they are few, else about their mean."""
        return self.tokens if self.plan is None else -(-self.tokens * self.places // self.experts)


def packed_up(
    x: Tensor, form: Form, rows: Rows, activation: str, *, gated: bool = True, bias: Tensor | None = None,
    launch: PackedLaunch | None = None,
) -> Tensor:  # fmt: skip
    """activation(x weightᵀ + bias) of each row's experts. x: [N, D]. form: of a stack [2 E F, D], or [E F, D] without a
    gate; bias: as long. launch: None takes that of the rule. Returns features [N k, F], for `packed_down`."""
    return _product(x, form, rows, activation, gated, True, bias, launch)


def packed_down(
    features: Tensor, form: Form, rows: Rows, *, bias: Tensor | None = None, launch: PackedLaunch | None = None
) -> Tensor:
    """features weightᵀ + bias of each pair's expert. form: of a stack [E D, F]. Returns [N k, D] by pair."""
    return _product(features, form, rows, None, False, False, bias, launch)


def _product(
    x: Tensor, form: Form, rows: Rows, activation: str | None, gated: bool, first: bool, bias: Tensor | None,
    launch: PackedLaunch | None,
) -> Tensor:  # fmt: skip
    k, plan, pairs, early = x.shape[1], rows.plan, rows.tokens * rows.places, starts_early()
    n = form.rows // (rows.experts * (2 if gated else 1))
    launch = launch or launch_of(form, n, k, rows.at_most, x.element_size())
    assert x.is_contiguous() and rows.chosen.is_contiguous() and pairs > 0
    assert plan is not None or rows.tokens <= min(MOST_FEW, launch.tokens)
    assert form.number != BY_BLOCK.value or launch.columns == 128
    out = torch.empty(pairs, n, dtype=x.dtype, device=x.device)
    by_expert = rows.experts < pairs
    places = plan.tiles(launch.tokens) if plan is not None else min(rows.experts, pairs)
    sorted_by = (None, None) if plan is None else (plan.pairs, plan.starts)
    outputs = launch.rows // (2 if gated else 1)
    packed_experts_kernel[(places * triton.cdiv(n, outputs),)](
        x, *form.tensors, bias, out, rows.chosen, *sorted_by, rows.tokens, rows.experts, n, k, form.stride,
        *form.constants(x), plan is not None, by_expert, first, rows.places, triton.next_power_of_2(rows.experts),
        activation, gated, k % launch.columns == 0, launch.tokens, launch.rows, launch.columns, early,
        num_warps=launch.warps, num_stages=launch.stages, launch_pdl=early,
    )  # fmt: skip
    return out
