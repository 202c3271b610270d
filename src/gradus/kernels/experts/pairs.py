"""One row through its experts, or a few rows, each alone: a pair is a row and one of its chosen experts.

Idea: at one row, a mixture is two products of a matrix and a vector whose matrices are known only when the router has
spoken. Speed depends on how soon after that the weights are on their way, and on nothing else in between:

- *Every program chooses for itself.* The first product's reads the row's logits, ranks them in registers
  (`routing.py`) and asks for its expert's weights. No launch lies between the router's product and this one.
- *The second product's weights are requested while the first is still at work.* The choice depends on the logits
  alone. They are complete, because the first product's programs let the next launch start only after their own wait
  (`core/overlap.py`). So a program of the second ranks, finds its weights and waits for nothing but the features.
- *The norm is computed within*, as in `linear/gemv.py`: its factor is put off to the end of the product.
- *The second product's programs own columns of the result*, for all of a row's experts: the weighted sum and the
  residual's are theirs, without a second pass.

Rows that chose the same expert read it twice, the second time mostly from the cache: good for a row or two.

Bytes per row: k (2 F D + D F) of weights, once. Layout: up [2 E F, D], the gates first; down [E D, F]; features
[N k, F], the pair of place p of row r being r k + p; x [N, D].
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.experts.launches import PairLaunch
from gradus.kernels.experts.routing import Routed, chosen_of, ranks_of, weights_of
from gradus.kernels.linear.epilogue import Norm, finish, vector
from gradus.models.layers import Activation, Gated

UNROLLED = constexpr(4)  # up to this many tiles along a row of weights are requested together


@triton.jit
def up_pairs_kernel(
    x_ptr: tensor, gain_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, out_ptr: tensor, logits_ptr: tensor,
    correction_ptr: tensor, factors_ptr: tensor, eps: float,
    E: constexpr, BLOCK_E: constexpr, CHOSEN: constexpr, PLACES: constexpr, SIGMOID: constexpr, NORMALIZED: constexpr,
    SCALE: constexpr, GROUPS: constexpr, CHOSEN_GROUPS: constexpr,
    D: constexpr, F: constexpr, ACTIVATION: constexpr, GATED: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr,
    TILES: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """TILES times BLOCK_N features of pair program_id(1): program_id(0)'s share. gain and bias may be None."""
    wait_for_previous(PDL)
    let_next_start(PDL)  # not before the wait: the next launch reads the logits without one
    pair = tl.program_id(1)
    row, place = pair // CHOSEN, pair % CHOSEN
    _, ranks = ranks_of(logits_ptr, correction_ptr, row, E, BLOCK_E, SIGMOID, GROUPS, CHOSEN_GROUPS)
    expert = tl.sum(tl.where(ranks == place, tl.arange(0, BLOCK_E), 0), 0)
    first = tl.program_id(0) * (BLOCK_N * TILES) + tl.arange(0, BLOCK_N)
    x_ptr += row.to(tl.int64) * D
    out_ptr += pair.to(tl.int64) * F
    ahead = _requested(weight_ptr, expert, first, F, E, D, F, GATED, BLOCK_K)
    for tile in range(TILES):
        feature = first + tile * BLOCK_N
        later = ahead
        if TILES > 1:  # the next tile's weights are under way before this one's are used
            end = tl.where(tile + 1 < TILES, F, 0)
            later = _requested(weight_ptr, expert, feature + BLOCK_N, end, E, D, F, GATED, BLOCK_K)
        sums, ups, squares = _products(
            ahead, weight_ptr, x_ptr, gain_ptr, expert, feature, E, D, F, GATED, BLOCK_N, BLOCK_K
        )
        inside, scale = feature < F, 1.0
        if gain_ptr is not None:
            scale = tl.rsqrt(tl.sum(squares, 0) / D + eps)
        bias = vector(bias_ptr, expert * F + feature, inside)
        up, up_bias = bias, bias
        if GATED:
            up, up_bias = tl.sum(ups, 1) * scale, vector(bias_ptr, (E + expert) * F + feature, inside)
        onto = vector(None, feature, inside)
        finish(tl.sum(sums, 1) * scale, up, bias, up_bias, onto, out_ptr + feature, inside, ACTIVATION, GATED)
        ahead = later


@triton.jit
def _requested(
    weight_ptr: tensor, expert: tensor, feature: tensor, end: tensor,
    E: constexpr, D: constexpr, F: constexpr, GATED: constexpr, BLOCK_K: constexpr,
) -> tensor:  # fmt: skip
    """Load all columns of these features' weights, up to feature `end`, in tiles; of long rows the first tile."""
    ahead: tensor = ()
    for start in tl.static_range(0, D if D <= UNROLLED * BLOCK_K else BLOCK_K, BLOCK_K):
        ahead = ahead + (_tiles(weight_ptr, expert, feature, end, start, E, D, F, GATED, BLOCK_K),)  # noqa: RUF005
    return ahead


@triton.jit
def _tiles(
    weight_ptr: tensor, expert: tensor, feature: tensor, end: tensor, start: tensor,
    E: constexpr, D: constexpr, F: constexpr, GATED: constexpr, BLOCK_K: constexpr,
) -> tensor:  # fmt: skip
    """Load columns from `start` on of some gates; with a gate, also of the features behind them."""
    column = start + tl.arange(0, BLOCK_K)
    inside = (feature < tl.minimum(end, F))[:, None] & (column < D)[None, :]
    gates = weight_ptr + (expert * F + feature).to(tl.int64)[:, None] * D + column[None, :]
    weight = tl.load(gates, mask=inside, other=0.0, eviction_policy="evict_first")
    up = weight
    if GATED:
        features = weight_ptr + ((E + expert) * F + feature).to(tl.int64)[:, None] * D + column[None, :]
        up = tl.load(features, mask=inside, other=0.0, eviction_policy="evict_first")
    return weight, up


@triton.jit
def _products(
    ahead: tensor, weight_ptr: tensor, x_ptr: tensor, gain_ptr: tensor, expert: tensor, feature: tensor,
    E: constexpr, D: constexpr, F: constexpr, GATED: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr,
) -> tensor:  # fmt: skip
    """Sums of products, [BLOCK_N, BLOCK_K], of gates and of features; and of x's squares. ahead: tiles under way."""
    sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    ups, squares, column = sums, tl.zeros((BLOCK_K,), tl.float32), tl.arange(0, BLOCK_K)
    if D <= UNROLLED * BLOCK_K:
        for start in tl.static_range(0, D, BLOCK_K):
            sums, ups, squares = _added(
                sums, ups, squares, ahead[start // BLOCK_K], x_ptr, gain_ptr, start + column, D, GATED
            )
    else:
        tiles = ahead[0]
        for start in range(0, D, BLOCK_K):
            later = tiles
            if start + BLOCK_K < D:
                later = _tiles(weight_ptr, expert, feature, F, start + BLOCK_K, E, D, F, GATED, BLOCK_K)
            sums, ups, squares = _added(sums, ups, squares, tiles, x_ptr, gain_ptr, start + column, D, GATED)
            tiles = later
    return sums, ups, squares


@triton.jit
def _added(
    sums: tensor, ups: tensor, squares: tensor, tiles: tensor, x_ptr: tensor, gain_ptr: tensor, column: tensor,
    D: constexpr, GATED: constexpr,
) -> tensor:  # fmt: skip
    """Sums with x's columns times these tiles added, and x's squares."""
    x = tl.load(x_ptr + column, mask=column < D, other=0.0).to(tl.float32)
    if gain_ptr is not None:
        squares += x * x
        x *= tl.load(gain_ptr + column, mask=column < D, other=0.0).to(tl.float32)
    sums += tiles[0].to(tl.float32) * x[None, :]
    if GATED:
        ups += tiles[1].to(tl.float32) * x[None, :]
    return sums, ups, squares


@triton.jit
def down_pairs_kernel(
    features_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, residual_ptr: tensor, out_ptr: tensor,
    logits_ptr: tensor, correction_ptr: tensor, factors_ptr: tensor,
    E: constexpr, BLOCK_E: constexpr, CHOSEN: constexpr, PLACES: constexpr, SIGMOID: constexpr, NORMALIZED: constexpr,
    SCALE: constexpr, GROUPS: constexpr, CHOSEN_GROUPS: constexpr,
    D: constexpr, F: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Columns from program_id(0) * BLOCK_N on, of row program_id(1). Tiles are [BLOCK_N, PLACES, BLOCK_K]:
    in this order a thread has the same places and columns of the weights as of the features.
    """
    row = tl.program_id(1)
    let_next_start(PDL)
    # of the launch before the previous one, which has ended
    logits, ranks = ranks_of(logits_ptr, correction_ptr, row, E, BLOCK_E, SIGMOID, GROUPS, CHOSEN_GROUPS)
    chosen = chosen_of(ranks, BLOCK_E, CHOSEN, PLACES)
    place, output = tl.arange(0, PLACES), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_K)
    matrices = weight_ptr + (chosen[None, :] * D + output[:, None]).to(tl.int64)[:, :, None] * F
    inside = (output < D)[:, None, None] & (place < CHOSEN)[None, :, None]
    ahead: tensor = ()
    for start in tl.static_range(0, F if F <= UNROLLED * BLOCK_K else BLOCK_K, BLOCK_K):
        ahead = ahead + (_columns(matrices, start + column, inside, F),)  # noqa: RUF005
    biases = vector(bias_ptr, chosen[None, :] * D + output[:, None], (output < D)[:, None] & (place < CHOSEN)[None, :])
    weights = weights_of(logits, ranks, chosen, factors_ptr, CHOSEN, PLACES, SIGMOID, NORMALIZED, SCALE)
    features_ptr += row.to(tl.int64) * CHOSEN * F
    sums = tl.zeros((BLOCK_N, PLACES, BLOCK_K), tl.float32)
    wait_for_previous(PDL)  # weights are on their way; features and the residual are the previous kernels'
    onto = vector(residual_ptr, row.to(tl.int64) * D + output, output < D)
    if F <= UNROLLED * BLOCK_K:
        for start in tl.static_range(0, F, BLOCK_K):
            sums += ahead[start // BLOCK_K].to(tl.float32) * _features(features_ptr, place, start + column, CHOSEN, F)
    else:
        tile = ahead[0]
        for start in range(0, F, BLOCK_K):
            later = tile
            if start + BLOCK_K < F:
                later = _columns(matrices, start + BLOCK_K + column, inside, F)
            sums += tile.to(tl.float32) * _features(features_ptr, place, start + column, CHOSEN, F)
            tile = later
    total = tl.sum((tl.sum(sums, 2) + biases) * weights[None, :], 1) + onto
    out = out_ptr + row.to(tl.int64) * D + output
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=output < D)


@triton.jit
def _columns(matrices: tensor, column: tensor, inside: tensor, F: constexpr) -> tensor:
    mask = inside & (column < F)[None, None, :]
    return tl.load(matrices + column[None, None, :], mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _features(features_ptr: tensor, place: tensor, column: tensor, CHOSEN: constexpr, F: constexpr) -> tensor:
    """[1, PLACES, BLOCK_K], in float32."""
    here = place[None, :, None] * F + column[None, None, :]
    inside = (place < CHOSEN)[None, :, None] & (column < F)[None, None, :]
    return tl.load(features_ptr + here, mask=inside, other=0.0).to(tl.float32)


def up_pairs(
    x: Tensor, weight: Tensor, routed: Routed, activation: Activation, launch: PairLaunch,
    bias: Tensor | None = None, norm: Norm | None = None,
) -> Tensor:  # fmt: skip
    """activation(norm(x) weightᵀ + bias) of each row's chosen experts. x: [N, D]; weight: [2 E F, D], or [E F, D]
    without a gate; norm: an RMSNorm. Returns features [N k, F].
    """
    (rows, hidden), experts, early = x.shape, routed.experts, starts_early()
    assert x.is_contiguous() and weight.is_contiguous() and (norm is None or norm.bias is None)
    out = torch.empty(rows * experts.chosen, experts.width, dtype=x.dtype, device=x.device)
    gain, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    up_pairs_kernel[(triton.cdiv(experts.width, launch.rows * launch.tiles), rows * experts.chosen)](
        x, gain, weight, bias, out, *routed.tensors, eps, *routed.constants,
        hidden, experts.width, activation.name, isinstance(activation, Gated), launch.rows, launch.columns,
        launch.tiles, early, num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return out


def down_pairs(
    features: Tensor, weight: Tensor, routed: Routed, launch: PairLaunch,
    bias: Tensor | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The weighted sum of each row's experts' results, from what `up_pairs` returned in the launch before this one.

    weight: [E D, F]; residual: [N, D], takes the sum in place. Returns [N, D].
    """
    experts, early = routed.experts, starts_early()
    rows, hidden = len(routed.logits), weight.shape[0] // experts.count
    assert features.is_contiguous() and weight.is_contiguous()
    out = torch.empty(rows, hidden, dtype=features.dtype, device=features.device) if residual is None else residual
    assert out.is_contiguous()
    down_pairs_kernel[(triton.cdiv(hidden, launch.rows), rows)](
        features, weight, bias, residual, out, *routed.tensors, *routed.constants,
        hidden, experts.width, launch.rows, launch.columns, early, num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return out
