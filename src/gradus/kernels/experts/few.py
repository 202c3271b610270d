"""Up to 64 rows through their experts: each chosen expert's weights are read once, for all rows that chose it.

Idea: eight rows that choose 8 of 128 experts each choose about 52 different ones, most of them for a single row. So the
product is still a stream of weights, and an expert's rows decide only what is multiplied with it. As in
`linear/splitk.py` the product is turned around, out' = W x': tiles of weights stream through shared memory, and all N
rows are the narrow side of the matrix units' tile, with zeros for rows that chose other experts. That is free: the
units compute sixteen rows in the time of one.

No list of experts is needed, and so no launch that makes one. There are programs for every pair of a row and a place;
those of a pair whose expert an earlier pair chose too end at once, and the first one's serve all rows. Where experts
are fewer than pairs, there are programs for every expert. So the grid is fixed, whatever was chosen, and each of its
working programs has the same work.

Both products are this kernel. The first reads rows of x and writes one row of features per pair, with the activation;
the second reads pairs and writes pairs, which `combine.py` adds up.

Bytes: the weights of distinct experts, once; N k (2 F + D) of activations. Layout: x [N, K] or [N k, K], out
[N k, N'], weight [E N', K], or [2 E N', K] with a gate; pair p is row p // k and place p % k.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.experts.launches import MOST_FEW, FewLaunch
from gradus.kernels.linear.epilogue import finish, vector
from gradus.models.layers import Activation, Gated


@triton.jit(do_not_specialize=["M"])
def few_experts_kernel(
    x_ptr: tensor, weight_ptr: tensor, bias_ptr: tensor, chosen_ptr: tensor, out_ptr: tensor, M: int,
    K: constexpr, N: constexpr, E: constexpr, CHOSEN: constexpr, PLACES: constexpr, ROWS: constexpr,
    BY_EXPERT: constexpr, BY_PAIR: constexpr, ACTIVATION: constexpr, GATED: constexpr, BLOCK_N: constexpr,
    BLOCK_K: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Outputs from program_id(0) * BLOCK_N on, of one expert: of pair program_id(1), or that number itself.

    M: rows. BY_EXPERT: there are programs for every expert. BY_PAIR: x has a row for every pair.
    """
    wait_for_previous(PDL)
    let_next_start(PDL)
    number = tl.program_id(1)
    expert = number
    if not BY_EXPERT:
        expert = tl.load(chosen_ptr + number)
    first, pair = pairs_of_expert(chosen_ptr, expert, M, CHOSEN, PLACES, ROWS)
    mine = pair >= 0
    if first == (number if not BY_EXPERT else first) and first < M * CHOSEN and expert < E:
        n, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
        row = pair if BY_PAIR else tl.arange(0, ROWS)
        at = expert.to(tl.int64) * N
        weight = weight_ptr + (at + n)[:, None] * K + k[None, :]
        features = weight_ptr + (at + (E * N + n))[:, None] * K + k[None, :]
        x = x_ptr + row[None, :] * K + k[:, None]
        sums = tl.zeros((BLOCK_N, ROWS), tl.float32)
        ups = sums
        for start in range(0, K, BLOCK_K):
            inside, there = (n < N)[:, None], mine[None, :]
            if K % BLOCK_K:
                inside, there = inside & (start + k < K)[None, :], there & (start + k < K)[:, None]
            rows = tl.load(x + start, mask=there, other=0.0)
            tile = tl.load(weight + start, mask=inside, other=0.0, eviction_policy="evict_first")
            sums = tl.dot(tile, rows, sums, input_precision="ieee")
            if GATED:
                tile = tl.load(features + start, mask=inside, other=0.0, eviction_policy="evict_first")
                ups = tl.dot(tile, rows, ups, input_precision="ieee")
        bias = vector(bias_ptr, at + n, n < N)[:, None]
        up_bias = bias
        if GATED:
            up_bias = vector(bias_ptr, at + (E * N + n), n < N)[:, None]
        place = pair[None, :] * N + n[:, None]
        finish(
            sums, ups, bias, up_bias, vector(None, place, mine[None, :]), out_ptr + place,
            mine[None, :] & (n < N)[:, None], ACTIVATION, GATED,
        )  # fmt: skip


@triton.jit
def pairs_of_expert(
    chosen_ptr: tensor, expert: tensor, M: int, CHOSEN: constexpr, PLACES: constexpr, ROWS: constexpr
) -> tensor:  # fmt: skip
    """The first pair that chose this expert, or M * CHOSEN; and for each row its pair, or -1: [ROWS]."""
    row, place = tl.arange(0, ROWS)[:, None], tl.arange(0, PLACES)[None, :]
    pair = row * CHOSEN + place
    chosen = tl.load(chosen_ptr + pair, mask=(row < M) & (place < CHOSEN), other=-1)
    pair = tl.where(chosen == expert, pair, -1)
    first = tl.min(tl.min(tl.where(pair >= 0, pair, M * CHOSEN), 1), 0)
    return first, tl.max(pair, 1)


def up_few(
    x: Tensor, weight: Tensor, chosen: Tensor, experts: int, activation: Activation, launch: FewLaunch,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """activation(x weightᵀ + bias) of each row's chosen experts. x: [N, D], N up to MOST_FEW; chosen: int32 [N, k], no
    expert twice in a row, and a number from `experts` on is another rank's; weight: [2 E F, D], or [E F, D] without a
    gate. Returns features [N k, F], undefined for other ranks' pairs.
    """
    gated = isinstance(activation, Gated)
    outputs = weight.shape[0] // (experts * (2 if gated else 1))
    return _product(x, weight, chosen, experts, outputs, launch, bias, activation.name, gated)


def down_few(
    features: Tensor, weight: Tensor, chosen: Tensor, experts: int, launch: FewLaunch, bias: Tensor | None = None
) -> Tensor:
    """features weightᵀ + bias of each pair's expert. features: [N k, F]; weight: [E D, F]. Returns [N k, D]."""
    return _product(features, weight, chosen, experts, weight.shape[0] // experts, launch, bias, None, False)


def _product(
    x: Tensor, weight: Tensor, chosen: Tensor, experts: int, outputs: int, launch: FewLaunch, bias: Tensor | None,
    activation: str | None, gated: bool,
) -> Tensor:  # fmt: skip
    (rows, k), inner, early = chosen.shape, x.shape[1], starts_early()
    assert 0 < rows <= MOST_FEW and weight.shape[1] == inner
    assert x.is_contiguous() and weight.is_contiguous() and chosen.is_contiguous()
    out = torch.empty(rows * k, outputs, dtype=x.dtype, device=x.device)
    by_expert = experts < rows * k
    few_experts_kernel[(triton.cdiv(outputs, launch.outputs), experts if by_expert else rows * k)](
        x, weight, bias, chosen, out, rows,
        inner, outputs, experts, k, triton.next_power_of_2(k), max(16, triton.next_power_of_2(rows)), by_expert,
        len(x) > rows, activation, gated, launch.outputs, launch.columns, early,
        num_warps=launch.warps, num_stages=launch.stages, launch_pdl=early,
    )  # fmt: skip
    return out
