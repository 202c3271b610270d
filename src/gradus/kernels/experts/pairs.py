"""One row through its experts, or a few rows, each alone: a pair is a row and one of its chosen experts.

Idea: at one row, a mixture is two products of a matrix and a vector whose matrices are known only when the router has
spoken. Speed depends on how soon after that the weights are on their way, and on nothing else in between:

- *The first product's programs* read one number, their pair's expert, and ask for its weights. The norm is computed
  within, as in `linear/gemv.py`: its factor is put off to the end of the product.
- *The second product's weights are requested while the first is still at work.* The choice is complete, because the
  first product's programs let the next launch start only after their own wait (`core/overlap.py`). So a program of the
  second finds its weights and waits for nothing but the features.
- *The second product's programs own columns of the result*, for all of a row's experts: the weighted sum and the
  residual's are theirs, without another launch.

Rows that chose the same expert read it twice, the second time mostly from the cache: good for a row or two.

(Programs that rank the logits themselves save the launch that chooses. On an H200 this took longer: ranking takes as
many instructions as multiplying, and there are hundreds of programs.)

Bytes per row: k (2 F D + D F) of weights, once. Layout: up [2 E F, D], the gates first; down [E D, F]; features
[N k, F], the pair of place p of row r being r k + p; x [N, D]; chosen and weights [N, k].
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.experts.launches import PairLaunch
from gradus.kernels.linear.epilogue import Norm, finish, vector
from gradus.models.layers import Activation, Gated

UNROLLED = constexpr(4)  # up to this many tiles along a row of weights are requested together


@triton.jit
def up_pairs_kernel(
    x_ptr: tensor, gain_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, chosen_ptr: tensor, out_ptr: tensor,
    eps: float,
    E: constexpr, CHOSEN: constexpr, D: constexpr, F: constexpr, ACTIVATION: constexpr, GATED: constexpr,
    BLOCK_N: constexpr, BLOCK_K: constexpr, TILES: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """TILES times BLOCK_N features of pair program_id(1): program_id(0)'s share. gain and bias may be None."""
    wait_for_previous(PDL)
    let_next_start(PDL)  # not before the wait: the next launch reads the choice without one
    pair = tl.program_id(1)
    row, expert = pair // CHOSEN, tl.load(chosen_ptr + pair)
    whole = tl.where(expert < E, F, 0)  # an expert that is not held here has no features
    first = tl.program_id(0) * (BLOCK_N * TILES) + tl.arange(0, BLOCK_N)
    x_ptr += row.to(tl.int64) * D
    out_ptr += pair.to(tl.int64) * F
    ahead = _requested(weight_ptr, expert, first, whole, E, D, F, GATED, BLOCK_K)
    for tile in range(TILES):
        feature = first + tile * BLOCK_N
        later = ahead
        if TILES > 1:  # the next tile's weights are under way before this one's are used
            end = tl.where(tile + 1 < TILES, whole, 0)
            later = _requested(weight_ptr, expert, feature + BLOCK_N, end, E, D, F, GATED, BLOCK_K)
        sums, ups, squares = _products(
            ahead, weight_ptr, x_ptr, gain_ptr, expert, feature, whole, E, D, F, GATED, BLOCK_N, BLOCK_K
        )
        inside, scale = feature < whole, 1.0
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
    """Load all columns of these features' weights, up to feature `end`, in tiles; or the first tile of long rows."""
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
    inside = (feature < end)[:, None] & (column < D)[None, :]
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
    end: tensor, E: constexpr, D: constexpr, F: constexpr, GATED: constexpr, BLOCK_N: constexpr, BLOCK_K: constexpr,
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
                later = _tiles(weight_ptr, expert, feature, end, start + BLOCK_K, E, D, F, GATED, BLOCK_K)
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
    features_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, chosen_ptr: tensor, weights_ptr: tensor,
    residual_ptr: tensor, out_ptr: tensor,
    E: constexpr, CHOSEN: constexpr, PLACES: constexpr, D: constexpr, F: constexpr, BLOCK_N: constexpr,
    BLOCK_K: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Columns from program_id(0) * BLOCK_N on, of row program_id(1). Tiles are [BLOCK_N, PLACES, BLOCK_K]:
    in this order a thread has the same places and columns of the weights as of the features.
    """
    row = tl.program_id(1)
    let_next_start(PDL)
    place, output = tl.arange(0, PLACES), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column, pair = tl.arange(0, BLOCK_K), row * CHOSEN + place
    # of the launch before the previous one, which has ended; this multiprocessor's cache may hold an earlier step's
    chosen = tl.load(chosen_ptr + pair, mask=place < CHOSEN, other=E, cache_modifier=".cg")
    here = chosen < E
    weights = tl.load(weights_ptr + pair, mask=here, other=0.0, cache_modifier=".cg")
    matrices = weight_ptr + (chosen[None, :] * D + output[:, None]).to(tl.int64)[:, :, None] * F
    inside = (output < D)[:, None, None] & here[None, :, None]
    ahead: tensor = ()
    for start in tl.static_range(0, F if F <= UNROLLED * BLOCK_K else BLOCK_K, BLOCK_K):
        ahead = ahead + (_columns(matrices, start + column, inside, F),)  # noqa: RUF005
    biases = vector(bias_ptr, chosen[None, :] * D + output[:, None], (output < D)[:, None] & here[None, :])
    features_ptr += row.to(tl.int64) * CHOSEN * F
    sums = tl.zeros((BLOCK_N, PLACES, BLOCK_K), tl.float32)
    wait_for_previous(PDL)  # weights are on their way; features and the residual are the previous kernels'
    onto = vector(residual_ptr, row.to(tl.int64) * D + output, output < D)
    if F <= UNROLLED * BLOCK_K:
        for start in tl.static_range(0, F, BLOCK_K):
            sums += ahead[start // BLOCK_K].to(tl.float32) * _features(features_ptr, place, here, start + column, F)
    else:
        tile = ahead[0]
        for start in range(0, F, BLOCK_K):
            later = tile
            if start + BLOCK_K < F:
                later = _columns(matrices, start + BLOCK_K + column, inside, F)
            sums += tile.to(tl.float32) * _features(features_ptr, place, here, start + column, F)
            tile = later
    total = tl.sum((tl.sum(sums, 2) + biases) * weights[None, :], 1) + onto
    out = out_ptr + row.to(tl.int64) * D + output
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=output < D)


@triton.jit
def _columns(matrices: tensor, column: tensor, inside: tensor, F: constexpr) -> tensor:
    mask = inside & (column < F)[None, None, :]
    return tl.load(matrices + column[None, None, :], mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _features(features_ptr: tensor, place: tensor, here: tensor, column: tensor, F: constexpr) -> tensor:
    """[1, PLACES, BLOCK_K], in float32."""
    at = place[None, :, None] * F + column[None, None, :]
    inside = here[None, :, None] & (column < F)[None, None, :]
    return tl.load(features_ptr + at, mask=inside, other=0.0).to(tl.float32)


def up_pairs(
    x: Tensor, weight: Tensor, chosen: Tensor, experts: int, activation: Activation, launch: PairLaunch,
    bias: Tensor | None = None, norm: Norm | None = None,
) -> Tensor:  # fmt: skip
    """activation(norm(x) weightᵀ + bias) of each row's chosen experts. x: [N, D]; weight: [2 E F, D], or [E F, D]
    without a gate; chosen: int32 [N, k]; norm: an RMSNorm. Returns features [N k, F].
    """
    (rows, k), hidden, gated, early = chosen.shape, x.shape[1], isinstance(activation, Gated), starts_early()
    assert x.is_contiguous() and weight.is_contiguous() and chosen.is_contiguous()
    assert norm is None or norm.bias is None
    width = weight.shape[0] // (experts * (2 if gated else 1))
    out = torch.empty(rows * k, width, dtype=x.dtype, device=x.device)
    gain, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    up_pairs_kernel[(triton.cdiv(width, launch.rows * launch.tiles), rows * k)](
        x, gain, weight, bias, chosen, out, eps,
        experts, k, hidden, width, activation.name, gated, launch.rows, launch.columns, launch.tiles, early,
        num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return out


def down_pairs(
    features: Tensor, weight: Tensor, chosen: Tensor, weights: Tensor, experts: int, launch: PairLaunch,
    bias: Tensor | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The weighted sum of each row's experts' results. features: [N k, F]; weight: [E D, F]; weights: float32 [N, k];
    residual: [N, D], takes the sum in place. Returns [N, D].

    Inside `early_launches` it must follow the launch that made the features at once: see `core/overlap.py`.
    """
    (rows, k), hidden, width, early = chosen.shape, weight.shape[0] // experts, features.shape[1], starts_early()
    assert features.is_contiguous() and weight.is_contiguous() and chosen.is_contiguous() and weights.is_contiguous()
    out = torch.empty(rows, hidden, dtype=features.dtype, device=features.device) if residual is None else residual
    assert out.is_contiguous()
    down_pairs_kernel[(triton.cdiv(hidden, launch.rows), rows)](
        features, weight, bias, chosen, weights, residual, out,
        experts, k, triton.next_power_of_2(k), hidden, width, launch.rows, launch.columns, early,
        num_warps=launch.warps, launch_pdl=early,
    )  # fmt: skip
    return out
