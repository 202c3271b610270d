"""A few rows per expert on Hopper: weights stream through shared memory without a pause from tile to tile.

What `experts/grouped.py` computes. There, a program has one tile of weights' rows: it waits for its rows' numbers,
fills its pipeline, and drains it. Here programs are persistent, one per multiprocessor, and groups of warps pass tiles
on:

- *One warp asks the copy engine for weights*, as far ahead as shared memory has room: of the next tile while this one
  is multiplied and written. So about 200 KB per multiprocessor are always under way.
- *One warp copies rows of x*, which the first product gathers, into the same places of the ring.
- *Four warps multiply.* Weights are the high side, two parts of 64 rows: gates and the features that they gate, which
  meet in registers, or 128 outputs.
- *The second product's weights are on their way before the first has ended*, if it starts early: which experts there
  are was known before. Only the warp that copies features waits for them.

Layouts and bytes: as in `experts/grouped.py`. An expert's rows beyond `tokens` are a tile of their own, which finds its
weights in the L2 cache: its programs run at the same time.
"""

from typing import Any, NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.experts.dispatch import Dispatch
from gradus.kernels.experts.grouped_launch import HopperStreamedLaunch
from gradus.kernels.experts.hopper.tiles import (
    DEPTH,
    Work,
    described,
    experts_listed,
    lines,
    ranges_of,
    tile_layout,
    tile_of,
)
from gradus.kernels.rows.activation import activate_gated

PART = gl.constexpr(64)  # rows of weights that are copied together: gates, or features, or outputs
COPIERS = gl.constexpr(32)  # threads of the warp that gathers rows


def hopper_streamed(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, plan: Dispatch, processors: int,
    launch: HopperStreamedLaunch, activation: str | None,
) -> None:  # fmt: skip
    """activation: of the first product, whose gates it is for; None is the second. Others: as in `experts/grouped.py`.

    Values have 16 bits, and x's rows are a multiple of DEPTH long.
    """
    up, (n, k), early = activation is not None, (out.shape[1], x.shape[1]), starts_early()
    assert k % DEPTH.value == 0 and x.element_size() == 2
    tiles = -(-n // (PART.value if up else 2 * PART.value))
    rows = x if up else described(x, [launch.tokens, DEPTH.value])
    hopper_streamed_kernel[(min(processors, plan.tiles(launch.tokens) * tiles),)](
        rows, described(weight, [PART.value, DEPTH.value]), out if bias is None else bias, out, plan.pairs,
        plan.starts, plan.experts, n, k // DEPTH.value, tiles,
        **constants(launch, plan.experts, plan.chosen, activation, biased=bias is not None, early=early),
        num_warps=4, launch_pdl=early,
    )  # fmt: skip


def constants(
    launch: HopperStreamedLaunch, experts: int, chosen: int, activation: str | None, *, biased: bool, early: bool
) -> dict[str, Any]:
    """Return the kernel's compile-time constants. activation: as for `hopper_streamed`."""
    up = activation is not None
    return {
        "CHOSEN": chosen if up else 0, "ACTIVATION": activation, "BIASED": biased, "TOKENS": launch.tokens,
        "EXPERTS": experts_listed(experts), "STAGES": launch.stages, "PDL": early,
    }  # fmt: skip


# -- where values lie, and who may touch them --------------------------------------------------------------------------


@gluon.constexpr_function
def products(tokens: int) -> gl.NVMMADistributedLayout:
    """Lay out sums [PART, tokens] in four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, tokens, 16])


class Ring(NamedTuple):
    """Tiles in shared memory, filled by two warps and read by four; the n-th is in place n % STAGES.

    weights: two parts per place. full, empty: a barrier per place, whose phase turns when all bytes have arrived, and
    when they have been read.
    """

    x: Any
    weights: Any
    full: Any
    empty: Any


@gluon.jit
def _ring(KIND: constexpr, TOKENS: constexpr, STAGES: constexpr, ARRIVALS: constexpr) -> Ring:
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=ARRIVALS)
        mbarrier.init(empty.index(i), count=1)
    x = gl.allocate_shared_memory(KIND, [STAGES, TOKENS, DEPTH], tile_layout())
    weights = gl.allocate_shared_memory(KIND, [STAGES * 2, PART, DEPTH], tile_layout())
    return Ring(x, weights, full, empty)


@gluon.jit
def _until_empty(ring: Ring, n: tensor, STAGES: constexpr) -> None:
    """The first round does not wait, since a barrier's phase before its first counts as completed."""
    mbarrier.wait(ring.empty.index(n % STAGES), ((n // STAGES) & 1) ^ 1)


# -- the warps that copy -----------------------------------------------------------------------------------------------


@gluon.jit
def _copy_weights(
    weight: tensor, ring: Ring, work: Work, CHOSEN: constexpr, TOKENS: constexpr, EXPERTS: constexpr, STAGES: constexpr
) -> None:
    ranges, count = ranges_of(work, EXPERTS, TOKENS, 1)
    n = 0
    for tile in range(gl.program_id(0), count * work.tiles, gl.num_programs(0)):
        expert, _, _ = tile_of(ranges, tile // work.tiles, EXPERTS, TOKENS, 1)
        row = expert * work.N + tile % work.tiles * (PART if CHOSEN else 2 * PART)
        second = row + (work.experts * work.N if CHOSEN else PART)
        for step in range(0, work.steps):
            _until_empty(ring, n, STAGES)
            stage = n % STAGES
            full = ring.full.index(stage)
            mbarrier.expect(full, 2 * PART * DEPTH * 2)
            tma.async_copy_global_to_shared(weight, [row, step * DEPTH], full, ring.weights.index(stage * 2))
            tma.async_copy_global_to_shared(weight, [second, step * DEPTH], full, ring.weights.index(stage * 2 + 1))
            n += 1


@gluon.jit
def _copy_rows(
    x: tensor, ring: Ring, work: Work, CHOSEN: constexpr, TOKENS: constexpr, EXPERTS: constexpr, STAGES: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    ranges, count = ranges_of(work, EXPERTS, TOKENS, 1)
    if not CHOSEN:
        wait_for_previous(PDL)  # weights are on their way; features are the previous kernel's
    n = 0
    for tile in range(gl.program_id(0), count * work.tiles, gl.num_programs(0)):
        _, first, end = tile_of(ranges, tile // work.tiles, EXPERTS, TOKENS, 1)
        if CHOSEN:
            at = gl.minimum(first + gl.arange(0, TOKENS, layout=gl.SliceLayout(1, lines(1))), end - 1)
            token = (gl.load(work.pairs + at, cache_modifier=".cg") // CHOSEN).to(gl.int64) * (work.steps * DEPTH)
            column = gl.arange(0, DEPTH, layout=gl.SliceLayout(0, lines(1)))
            here = x + (token[:, None] + column[None, :])
        for step in range(0, work.steps):
            _until_empty(ring, n, STAGES)
            stage = n % STAGES
            full = ring.full.index(stage)
            if CHOSEN:
                async_copy.async_copy_global_to_shared(ring.x.index(stage), here + step * DEPTH)
                async_copy.mbarrier_arrive(full, increment_count=False)
            else:
                mbarrier.expect(full, TOKENS * DEPTH * 2)
                tma.async_copy_global_to_shared(x, [first, step * DEPTH], full, ring.x.index(stage))
            n += 1


# -- the warps that multiply -------------------------------------------------------------------------------------------


@gluon.jit
def _biased(sums: tensor, bias_ptr: tensor, row: tensor, left: tensor, BIASED: constexpr) -> tensor:
    """Sums with the bias of rows from `row` on; `left` of them are the expert's."""
    if BIASED:
        at = gl.arange(0, PART, layout=gl.SliceLayout(1, products(sums.shape[1])))
        sums += gl.load(bias_ptr + row + at, mask=at < left, other=0.0).to(gl.float32)[:, None]
    return sums


@gluon.jit
def _written(values: tensor, out: tensor, inside: tensor, column: tensor, N: tensor) -> None:
    """Store results [PART, TOKENS] in lines of 128 bytes per token. out: where each token's row begins."""
    columns = column + gl.arange(0, PART, layout=gl.SliceLayout(0, lines(4)))
    lying = gl.convert_layout(values.to(out.dtype.element_ty).permute((1, 0)), lines(4))
    gl.store(out[:, None] + columns[None, :], lying, mask=inside[:, None] & (columns < N)[None, :])


@gluon.jit
def _multiply(
    ring: Ring, work: Work, bias_ptr: tensor, out_ptr: tensor, CHOSEN: constexpr, ACTIVATION: constexpr,
    BIASED: constexpr, TOKENS: constexpr, EXPERTS: constexpr, STAGES: constexpr,
) -> None:  # fmt: skip
    ranges, count = ranges_of(work, EXPERTS, TOKENS, 4)
    N = work.N
    n = 0
    for tile in range(gl.program_id(0), count * work.tiles, gl.num_programs(0)):
        expert, first, end = tile_of(ranges, tile // work.tiles, EXPERTS, TOKENS, 4)
        at = first + gl.arange(0, TOKENS, layout=gl.SliceLayout(1, lines(4)))
        inside = at < end
        to = at if CHOSEN else gl.load(work.pairs + at, mask=inside, other=0, cache_modifier=".cg")
        out = out_ptr + to.to(gl.int64) * N
        lower = gl.zeros([PART, TOKENS], gl.float32, products(TOKENS))
        upper = lower
        for step in range(0, work.steps):
            stage = n % STAGES
            mbarrier.wait(ring.full.index(stage), (n // STAGES) & 1)
            rows = ring.x.index(stage).permute((1, 0))
            lower = warpgroup_mma(ring.weights.index(stage * 2), rows, lower, is_async=True)
            upper = warpgroup_mma(ring.weights.index(stage * 2 + 1), rows, upper, is_async=True)
            lower, upper = warpgroup_mma_wait(2, deps=[lower, upper])  # for those before
            mbarrier.arrive(ring.empty.index((n + STAGES - 1) % STAGES), pred=step > 0)
            n += 1
        lower, upper = warpgroup_mma_wait(0, deps=[lower, upper])
        mbarrier.arrive(ring.empty.index((n - 1) % STAGES))
        column = tile % work.tiles * (PART if CHOSEN else 2 * PART)
        row = expert * N + column
        lower = _biased(lower, bias_ptr, row, N - column, BIASED)
        if CHOSEN:
            upper = _biased(upper, bias_ptr, row + work.experts * N, N - column, BIASED)
            _written(activate_gated(lower, upper, ACTIVATION), out, inside, column, N)
        else:
            upper = _biased(upper, bias_ptr, row + PART, N - column - PART, BIASED)
            _written(lower, out, inside, column, N)
            _written(upper, out, inside, column + PART, N)


# -- the launch --------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["experts", "steps", "tiles"])
def hopper_streamed_kernel(
    x: tensor, weight: tensor, bias_ptr: tensor, out_ptr: tensor, pairs_ptr: tensor, starts_ptr: tensor,
    experts: int, N: int, steps: int, tiles: int,
    CHOSEN: constexpr, ACTIVATION: constexpr, BIASED: constexpr, TOKENS: constexpr, EXPERTS: constexpr,
    STAGES: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """x: a pointer for the first product, a descriptor for the second. weight: a descriptor."""
    if CHOSEN:  # not before it waits: the second product reads what `dispatch` wrote as soon as it starts
        wait_for_previous(PDL)
        let_next_start(PDL)
    else:
        let_next_start(PDL)
    ring = _ring(out_ptr.dtype.element_ty, TOKENS, STAGES, 1 + COPIERS if CHOSEN else 2)
    work = Work(pairs_ptr, starts_ptr, experts, N, steps, tiles)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (ring, work, bias_ptr, out_ptr, CHOSEN, ACTIVATION, BIASED, TOKENS, EXPERTS, STAGES)),
            (_copy_weights, (weight, ring, work, CHOSEN, TOKENS, EXPERTS, STAGES)),
            (_copy_rows, (x, ring, work, CHOSEN, TOKENS, EXPERTS, STAGES, PDL)),
        ],
        [1, 1],
        [128, 128],
    )
