"""One row through its chosen experts, with weights on their way before what they multiply is ready, in Gluon.

Idea: as in `linear/streamed_gemv.py`, there is one program per multiprocessor, which owns a slice of the outputs and
copies its weights into shared memory as far ahead as there is room. Here the weights are those of experts that the
router chose, and what a program must wait for before it may copy is the router's logits alone:

- *Every program chooses for itself* (as in `routing.py`): no launch lies between the router's product and these two.
- *The first product's outputs are all chosen experts' features, side by side*, k F of them. A program's slice is no
  longer than one expert's, so it has rows of two experts at most.
- *The second product's columns are all chosen experts' features, side by side*: its matrix is k matrices next to each
  other, and each feature is multiplied by its expert's weight. So the sum over experts is part of the product's own,
  and so is the residual's. Its copies begin while the first product is still at work, for its choice needs no features.

Bytes: k (2 F D + D F) of weights, once. Layout: as in `pairs.py`, for one row; D is a multiple of 8, and F of 64 for
each of the warps that share columns of the second product.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.experts.routing import Routed
from gradus.kernels.linear.epilogue import Norm, finish, vector
from gradus.kernels.linear.launches import WARP_COLUMNS, StreamedLaunch
from gradus.kernels.linear.layouts import indices, normed, one_by_one
from gradus.kernels.linear.streamed_gemv import LANES, VECTOR, by_output, places, row_in_parts, slices_on
from gradus.models.layers import Activation

MOST_COMPARED = 256  # experts that each program ranks
TOGETHER = constexpr(32)  # experts that are compared with every other one at a time

# -- the choice --------------------------------------------------------------------------------------------------------


@gluon.constexpr_function
def square(warps: int) -> gl.BlockedLayout:
    """[experts, TOGETHER]: all comparisons of an expert in one thread."""
    return gl.BlockedLayout([1, TOGETHER.value], [32, 1], [warps, 1], [1, 0])


@gluon.jit
def logits_at(logits_ptr: tensor, expert: tensor, E: constexpr) -> tensor:
    """Logits in float32, -inf for NaN and beyond E; from the L2 cache, as in `routing.logits_of`."""
    logits = gl.load(logits_ptr + expert, mask=expert < E, other=float("-inf"), cache_modifier=".cg").to(gl.float32)
    return gl.where(logits == logits, logits, float("-inf"))  # NaN is not equal to itself


@gluon.jit
def ranks(logits_ptr: tensor, E: constexpr, BLOCK_E: constexpr, WARPS: constexpr) -> tensor:
    """The row's logits and each expert's rank: those with a higher logit, or an equal one and a lower number."""
    HERE: constexpr = square(WARPS)
    mine = gl.arange(0, BLOCK_E, gl.SliceLayout(1, HERE))
    logits = logits_at(logits_ptr, mine, E)
    before = gl.full([BLOCK_E], 0, gl.int32, gl.SliceLayout(1, HERE))
    for part in gl.static_range(BLOCK_E // TOGETHER):
        other = part * TOGETHER + gl.arange(0, TOGETHER, gl.SliceLayout(0, HERE))
        theirs = gl.expand_dims(logits_at(logits_ptr, other, E), 0)
        own, lower = gl.expand_dims(logits, 1), gl.expand_dims(other, 0) < gl.expand_dims(mine, 1)
        before += gl.sum(((theirs > own) | ((theirs == own) & lower)).to(gl.int32), 1)
    return logits, before, mine


@gluon.jit
def expert_at(before: tensor, mine: tensor, place: tensor) -> tensor:
    return gl.sum(gl.where(before == place, mine, 0), 0)


@gluon.jit
def weights_by_place(
    logits: tensor, before: tensor, experts: tensor, factors_ptr: tensor,
    CHOSEN: constexpr, SIGMOID: constexpr, NORMALIZED: constexpr, SCALE: constexpr,
) -> tensor:  # fmt: skip
    """The weight of each place: a tuple of numbers. See `Router`."""
    if SIGMOID:
        scores = 1 / (1 + gl.exp(-logits))
    else:
        scores = gl.exp(logits - gl.max(logits, 0))
    total = gl.sum(scores, 0)
    if NORMALIZED:
        total = gl.maximum(gl.sum(gl.where(before < CHOSEN, scores, 0.0), 0), 1.1754943508222875e-38)
    elif SIGMOID:
        total = 1.0
    weights: tensor = ()
    for place in gl.static_range(CHOSEN):
        weight = gl.sum(gl.where(before == place, scores, 0.0), 0) / total * SCALE
        if factors_ptr is not None:
            weight *= gl.load(factors_ptr + experts[place]).to(gl.float32)
        weights += (weight,)
    return weights


# -- the first product -------------------------------------------------------------------------------------------------


@gluon.jit
def streamed_up_kernel(
    x_ptr: tensor, gain_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, out_ptr: tensor, logits_ptr: tensor,
    eps: float,
    E: constexpr, BLOCK_E: constexpr, CHOSEN: constexpr, K: constexpr, F: constexpr, ACTIVATION: constexpr,
    ROWS: constexpr, COLUMNS: constexpr, ROW_WARPS: constexpr, COLUMN_WARPS: constexpr, GROUPS: constexpr,
    PLACES: constexpr, STAGES: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """The features of slice program_id(0), of the CHOSEN * F. gain, bias may be None. See `streamed_gemv_kernel`."""
    PARTS: constexpr = COLUMNS // (COLUMN_WARPS * LANES * VECTOR)
    STEPS: constexpr = (K + COLUMNS - 1) // COLUMNS
    LAST: constexpr = by_output(ROW_WARPS * COLUMN_WARPS, COLUMN_WARPS)
    first = gl.program_id(0) * (CHOSEN * F) // gl.num_programs(0)
    outputs = (gl.program_id(0) + 1) * (CHOSEN * F) // gl.num_programs(0) - first
    gain = row_in_parts(gain_ptr, K, ROW_WARPS, COLUMN_WARPS, PARTS * STEPS) if gain_ptr is not None else ()
    tiles: tensor = ()
    shape: constexpr = [STAGES, ROWS, COLUMN_WARPS, LANES, VECTOR]
    for _ in gl.static_range(PARTS * 2):
        tiles += (gl.allocate_shared_memory(weight_ptr.dtype.element_ty, shape, one_by_one(4)),)
    wait_for_previous(PDL)
    let_next_start(PDL)  # not before the wait: the next launch reads the logits without one
    _, before, mine = ranks(logits_ptr, E, BLOCK_E, ROW_WARPS * COLUMN_WARPS)
    place = first // F
    edge = (place + 1) * F  # where the second expert's features begin
    starts = expert_at(before, mine, place) * F - place * F, expert_at(before, mine, place + 1) * F - edge
    for step in range(STAGES):
        _copy_features(
            tiles, weight_ptr, starts, first, edge, step, outputs, E, F, K, ROWS, ROW_WARPS, COLUMN_WARPS, PARTS,
            STEPS, STAGES,
        )  # fmt: skip
        async_copy.commit_group()
    output = gl.arange(0, PLACES * ROWS, gl.SliceLayout(1, LAST))
    inside = output < outputs
    output += first
    row = output + gl.where(output < edge, starts[0], starts[1])
    bias, up_bias = vector(bias_ptr, row, inside), vector(bias_ptr, E * F + row, inside)
    x = row_in_parts(x_ptr, K, ROW_WARPS, COLUMN_WARPS, PARTS * STEPS)
    squares = gl.allocate_shared_memory(gl.float32, [COLUMN_WARPS], one_by_one(1))
    if gain_ptr is not None:
        x, squared = normed(x, gain, gl.float32)
        squares.store(gl.sum(gl.sum(gl.sum(squared, 3), 2), 0))
    sums = gl.allocate_shared_memory(gl.float32, [2 * PLACES, ROWS, COLUMN_WARPS], one_by_one(2))
    HERE: constexpr = places(ROW_WARPS, COLUMN_WARPS)
    for group in range(GROUPS):
        gates = gl.full([ROWS, COLUMN_WARPS, LANES, VECTOR], 0.0, gl.float32, HERE)
        ups = gates
        for i in gl.static_range(STEPS):
            step = group * STEPS + i
            async_copy.wait_group(STAGES - 1)
            for part in gl.static_range(PARTS):
                wide = x[i * PARTS + part].to(gl.float32)
                gates += tiles[part * 2].index(step % STAGES).load(HERE).to(gl.float32) * wide
                ups += tiles[part * 2 + 1].index(step % STAGES).load(HERE).to(gl.float32) * wide
            if i + STAGES < GROUPS * STEPS:  # noqa: SIM102  # where no group asks for more, nothing is compiled
                if step + STAGES < GROUPS * STEPS:
                    _copy_features(
                        tiles, weight_ptr, starts, first, edge, step + STAGES, outputs, E, F, K, ROWS, ROW_WARPS,
                        COLUMN_WARPS, PARTS, STEPS, STAGES,
                    )  # fmt: skip
            async_copy.commit_group()
        sums.index(group).store(gl.sum(gl.sum(gates, 3), 2))
        sums.index(PLACES + group).store(gl.sum(gl.sum(ups, 3), 2))
    scale = 1.0
    if gain_ptr is not None:
        scale = gl.rsqrt(gl.sum(squares.load(gl.SliceLayout(0, LAST)), 0) / K + eps)
    of_slice = sums._reinterpret(gl.float32, [2, PLACES * ROWS, COLUMN_WARPS], one_by_one(2))
    gate = gl.sum(of_slice.index(0).load(LAST), 1) * scale
    up = gl.sum(of_slice.index(1).load(LAST), 1) * scale
    finish(gate, up, bias, up_bias, vector(None, output, inside), out_ptr + output, inside, ACTIVATION, True)


@gluon.jit
def _copy_features(
    tiles: tensor, weight_ptr: tensor, starts: tensor, first: tensor, edge: tensor, step: tensor, outputs: tensor,
    E: constexpr, F: constexpr, K: constexpr, ROWS: constexpr, ROW_WARPS: constexpr, COLUMN_WARPS: constexpr,
    PARTS: constexpr, STEPS: constexpr, STAGES: constexpr,
) -> None:  # fmt: skip
    """Request that step's tiles of gates and of features; zeros beyond the slice and beyond K.

    starts: what is added to an output before `edge`, and from there on, to make it a row of the stack.
    """
    HERE: constexpr = places(ROW_WARPS, COLUMN_WARPS)
    number = step // STEPS * ROWS + indices(ROWS, 0, HERE, 4)
    output = first + number
    row = (output + gl.where(output < edge, starts[0], starts[1])).to(gl.int64) * K
    for part in gl.static_range(PARTS):
        warp = (step % STEPS * PARTS + part) * COLUMN_WARPS + indices(COLUMN_WARPS, 1, HERE, 4)
        column = (warp * LANES + indices(LANES, 2, HERE, 4)) * VECTOR
        inside = (number < outputs) & (column < K)
        at = row + (column + indices(VECTOR, 3, HERE, 4))
        for matrix in gl.static_range(2):
            async_copy.async_copy_global_to_shared(
                tiles[part * 2 + matrix].index(step % STAGES),
                (weight_ptr if matrix == 0 else weight_ptr + E * F * K) + at,
                inside,
            )


# -- the second product ------------------------------------------------------------------------------------------------


@gluon.jit
def streamed_down_kernel(
    features_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, out_ptr: tensor,
    logits_ptr: tensor, factors_ptr: tensor,
    E: constexpr, BLOCK_E: constexpr, CHOSEN: constexpr, SIGMOID: constexpr, NORMALIZED: constexpr, SCALE: constexpr,
    D: constexpr, F: constexpr, ROWS: constexpr, COLUMNS: constexpr, ROW_WARPS: constexpr, COLUMN_WARPS: constexpr,
    GROUPS: constexpr, PLACES: constexpr, STAGES: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """The columns of slice program_id(0), of the D. bias, residual, factors may be None."""
    K: constexpr = CHOSEN * F
    PARTS: constexpr = COLUMNS // (COLUMN_WARPS * LANES * VECTOR)
    STEPS: constexpr = K // COLUMNS
    LAST: constexpr = by_output(ROW_WARPS * COLUMN_WARPS, COLUMN_WARPS)
    HERE: constexpr = places(ROW_WARPS, COLUMN_WARPS)
    let_next_start(PDL)
    first = gl.program_id(0) * D // gl.num_programs(0)
    outputs = (gl.program_id(0) + 1) * D // gl.num_programs(0) - first
    # of the launch before the previous one, which has ended
    logits, before, mine = ranks(logits_ptr, E, BLOCK_E, ROW_WARPS * COLUMN_WARPS)
    experts: tensor = ()
    for place in gl.static_range(CHOSEN):
        experts += (expert_at(before, mine, place),)
    tiles: tensor = ()
    shape: constexpr = [STAGES, ROWS, COLUMN_WARPS, LANES, VECTOR]
    for _ in gl.static_range(PARTS):
        tiles += (gl.allocate_shared_memory(weight_ptr.dtype.element_ty, shape, one_by_one(4)),)
    for tile in gl.static_range(STAGES):
        _copy_columns(
            tiles, weight_ptr, experts, first, tile // STEPS, tile % STEPS, tile, outputs,
            D, F, ROWS, ROW_WARPS, COLUMN_WARPS, PARTS,
        )  # fmt: skip
        async_copy.commit_group()
    weights = weights_by_place(logits, before, experts, factors_ptr, CHOSEN, SIGMOID, NORMALIZED, SCALE)
    output = gl.arange(0, PLACES * ROWS, gl.SliceLayout(1, LAST))
    inside = output < outputs
    output += first
    bias = vector(None, output, inside)
    if bias_ptr is not None:
        for place in gl.static_range(CHOSEN):
            bias += vector(bias_ptr, experts[place] * D + output, inside) * weights[place]
    wait_for_previous(PDL)  # weights are on their way; features and the residual are the previous kernels'
    x = row_in_parts(features_ptr, K, ROW_WARPS, COLUMN_WARPS, PARTS * STEPS)
    onto = vector(residual_ptr, output, inside)
    sums = gl.allocate_shared_memory(gl.float32, [PLACES, ROWS, COLUMN_WARPS], one_by_one(2))
    for group in range(GROUPS):
        total = gl.full([ROWS, COLUMN_WARPS, LANES, VECTOR], 0.0, gl.float32, HERE)
        for i in gl.static_range(STEPS):
            step = group * STEPS + i
            async_copy.wait_group(STAGES - 1)
            for part in gl.static_range(PARTS):
                wide = x[i * PARTS + part].to(gl.float32)
                wide *= weights[(i * PARTS + part) * COLUMN_WARPS * LANES * VECTOR // F]
                total += tiles[part].index(step % STAGES).load(HERE).to(gl.float32) * wide
            if i + STAGES < GROUPS * STEPS:  # noqa: SIM102  # where no group asks for more, nothing is compiled
                if step + STAGES < GROUPS * STEPS:
                    _copy_columns(
                        tiles, weight_ptr, experts, first, group + (i + STAGES) // STEPS, (i + STAGES) % STEPS,
                        (step + STAGES) % STAGES, outputs, D, F, ROWS, ROW_WARPS, COLUMN_WARPS, PARTS,
                    )  # fmt: skip
            async_copy.commit_group()
        sums.index(group).store(gl.sum(gl.sum(total, 3), 2))
    of_slice = sums._reinterpret(gl.float32, [PLACES * ROWS, COLUMN_WARPS], one_by_one(2))
    out = gl.sum(of_slice.load(LAST), 1)
    finish(out, out, bias, bias, onto, out_ptr + output, inside, None, False)


@gluon.jit
def _copy_columns(
    tiles: tensor, weight_ptr: tensor, experts: tensor, first: tensor, group: tensor, I: constexpr, stage: tensor,
    outputs: tensor,
    D: constexpr, F: constexpr, ROWS: constexpr, ROW_WARPS: constexpr, COLUMN_WARPS: constexpr, PARTS: constexpr,
) -> None:  # fmt: skip
    """Request tile I of a group: each part's columns are one expert's. Zeros beyond the slice."""
    HERE: constexpr = places(ROW_WARPS, COLUMN_WARPS)
    WIDE: constexpr = COLUMN_WARPS * LANES * VECTOR
    number = group * ROWS + indices(ROWS, 0, HERE, 4)
    lane = indices(COLUMN_WARPS, 1, HERE, 4) * LANES + indices(LANES, 2, HERE, 4)
    for part in gl.static_range(PARTS):
        row = (experts[(I * PARTS + part) * WIDE // F] * D + (first + number)).to(gl.int64) * F
        column = (I * PARTS + part) * WIDE % F + lane * VECTOR
        at = row + (column + indices(VECTOR, 3, HERE, 4))
        inside = (number < outputs) & (lane >= 0)  # of a whole tile's shape
        async_copy.async_copy_global_to_shared(tiles[part].index(stage), weight_ptr + at, inside)


# -- launches ----------------------------------------------------------------------------------------------------------


def streams(routed: Routed, hidden: int, gated: bool, down: StreamedLaunch) -> bool:
    """Whether one row can take this path: an ordinary choice, and sizes that the launches divide."""
    experts = routed.experts
    plain = routed.correction is None and experts.groups == 1 and gated and experts.count <= MOST_COMPARED
    fits = (
        experts.width % (down.column_warps * WARP_COLUMNS) == 0 and experts.chosen * experts.width % down.columns == 0
    )
    return plain and fits and hidden % VECTOR.value == 0


def streamed_up(
    x: Tensor, weight: Tensor, routed: Routed, activation: Activation, launch: StreamedLaunch,
    bias: Tensor | None = None, norm: Norm | None = None,
) -> Tensor:  # fmt: skip
    """activation(norm(x) weightᵀ + bias) of the row's chosen experts. x: [1, D]; weight: [2 E F, D]; norm: an RMSNorm.

    Returns features [k, F].
    """
    experts, hidden, early = routed.experts, x.shape[1], starts_early()
    assert len(x) == 1 and x.is_contiguous() and weight.is_contiguous() and weight.element_size() == 2
    out = torch.empty(experts.chosen, experts.width, dtype=x.dtype, device=x.device)
    slices = slices_on(x.device, launch, out.numel(), hidden, True)
    assert slices.programs >= experts.chosen, "a slice must not be longer than an expert"
    gain, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    streamed_up_kernel[(slices.programs,)](
        x, gain, weight, bias, out, routed.logits, eps,
        experts.count, triton.next_power_of_2(max(experts.count, TOGETHER.value)), experts.chosen, hidden,
        experts.width, activation.name, *_constants(launch, slices), early, num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return out


def streamed_down(
    features: Tensor, weight: Tensor, routed: Routed, launch: StreamedLaunch,
    bias: Tensor | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The weighted sum of the row's experts' results, from what `streamed_up` returned in the launch before this one.

    weight: [E D, F]; residual: [1, D], takes the sum in place. Returns [1, D].
    """
    experts, early = routed.experts, starts_early()
    hidden = weight.shape[0] // experts.count
    out = torch.empty(1, hidden, dtype=features.dtype, device=features.device) if residual is None else residual
    slices = slices_on(features.device, launch, hidden, features.numel(), False)
    streamed_down_kernel[(slices.programs,)](
        features, weight, bias, residual, out, routed.logits, routed.factors,
        experts.count, triton.next_power_of_2(max(experts.count, TOGETHER.value)), experts.chosen, experts.sigmoid,
        experts.normalized, float(experts.scale), hidden, experts.width, *_constants(launch, slices), early,
        num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return out


def _constants(launch: StreamedLaunch, slices: Any) -> tuple[int, ...]:
    tile = launch.outputs, launch.columns, launch.row_warps, launch.column_warps
    return *tile, slices.groups, triton.next_power_of_2(slices.groups), slices.stages
