"""Prompts through their experts on Hopper: one group of warps copies tiles, two multiply them and write results.

What `experts/grouped.py` computes, for many rows per expert, in Gluon and with the schedule of
`quantized/hopper_product.py`: copies, products and results overlap, programs are persistent, and a tile is as wide as
registers allow. New are

- *Gathered rows.* The first product's rows lie anywhere in x. The copy engine of a Hopper copies no list of rows, so
  the producer is four warps, which request 16 bytes per thread, and the tile's barrier counts them. Weights, and the
  second product's rows, which are sorted, come by the copy engine.
- *Tiles from registers.* Each warp group holds where every expert's rows begin (`tiles.py`).
- *Half a tile.* An expert's last rows may be the first consumer's alone. For the other, nothing is then copied or
  multiplied.

A tile of weights is 256 rows: of the first product 128 gates and the 128 features that they gate, which meet in
registers; of the second 256 outputs. Rows behind an expert's last, and outputs behind an expert's, are not stored.

Layouts and bytes: as in `experts/grouped.py`.
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

from gradus.kernels.experts.dispatch import Dispatch
from gradus.kernels.experts.grouped_launch import CONSUMERS, HIGH, HopperGroupedLaunch
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

ROWS = gl.constexpr(HIGH // CONSUMERS)  # of x, per consumer
PART = gl.constexpr(128)  # rows of weights that are copied together: gates, or features, or outputs
PIECE = gl.constexpr(64)  # columns of results that are written together
COPIERS = gl.constexpr(128)  # threads of the producer


def hopper_grouped(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, plan: Dispatch, processors: int,
    launch: HopperGroupedLaunch, activation: str | None,
) -> None:  # fmt: skip
    """activation: of the first product, whose gates it is for; None is the second. Others: as in `experts/grouped.py`.

    Values have 16 bits, and x's rows are a multiple of DEPTH long.
    """
    up, (n, k) = activation is not None, (out.shape[1], x.shape[1])
    assert k % DEPTH.value == 0 and x.element_size() == 2
    columns = PART.value if up else 2 * PART.value
    tiles = -(-n // columns)
    rows = x if up else described(x, [ROWS.value, DEPTH.value])
    hopper_grouped_kernel[(min(processors, plan.tiles(HIGH) * tiles),)](
        rows, described(weight, [PART.value, DEPTH.value]), out if bias is None else bias, out, plan.pairs,
        plan.starts, plan.experts, n, k // DEPTH.value, tiles,
        **constants(launch, plan.experts, plan.chosen, activation, biased=bias is not None), num_warps=4,
    )  # fmt: skip


def constants(
    launch: HopperGroupedLaunch, experts: int, chosen: int, activation: str | None, *, biased: bool
) -> dict[str, Any]:
    """Return the kernel's compile-time constants. activation: as for `hopper_grouped`."""
    up = activation is not None
    return {
        "CHOSEN": chosen if up else 0, "ACTIVATION": activation, "BIASED": biased,
        "EXPERTS": experts_listed(experts), "STAGES": launch.stages,
    }  # fmt: skip


# -- where values lie --------------------------------------------------------------------------------------------------


@gluon.constexpr_function
def products(columns: int) -> gl.NVMMADistributedLayout:
    """Lay out sums [ROWS, columns] in a consumer's four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


# -- shared memory, and who may touch it -------------------------------------------------------------------------------


class Ring(NamedTuple):
    """Tiles in shared memory, filled by the producer and read by consumers; the n-th is in place n % STAGES.

    x: a tile per consumer. weights: both parts of a tile. full, empty: a barrier per place, whose phase turns when all
    bytes have arrived, and when all consumers have read them.
    """

    x: Any
    weights: Any
    full: Any
    empty: Any


@gluon.jit
def _ring(KIND: constexpr, STAGES: constexpr, ARRIVALS: constexpr) -> Ring:
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=ARRIVALS)
        mbarrier.init(empty.index(i), count=2)
    x = gl.allocate_shared_memory(KIND, [STAGES * 2, ROWS, DEPTH], tile_layout())
    weights = gl.allocate_shared_memory(KIND, [STAGES, 2 * PART, DEPTH], tile_layout())
    return Ring(x, weights, full, empty)


# -- the producer ------------------------------------------------------------------------------------------------------


@gluon.jit
def _produce(
    x: tensor, weight: tensor, ring: Ring, work: Work, CHOSEN: constexpr, EXPERTS: constexpr, STAGES: constexpr
) -> None:
    """Copy what the consumers will ask for, in their order."""
    PARTS: constexpr = 2  # of a tile of weights
    ranges, count = ranges_of(work, EXPERTS, 2 * ROWS, 4)
    weights = ring.weights._reinterpret(ring.weights.dtype, [STAGES * PARTS, PART, DEPTH], tile_layout())
    n = 0
    for tile in range(gl.program_id(0), count * work.tiles, gl.num_programs(0)):
        expert, first, end = tile_of(ranges, tile // work.tiles, EXPERTS, 2 * ROWS, 4)
        both = first + ROWS < end  # else the second consumer has no rows
        if CHOSEN:
            row = expert * work.N + tile % work.tiles * PART
            second = row + work.experts * work.N
            here = _addresses(x, work, first, end, CHOSEN)
            there = _addresses(x, work, first + ROWS, end, CHOSEN)
        else:
            row = expert * work.N + tile % work.tiles * (2 * PART)
            second = row + PART
        for step in range(0, work.steps):
            stage = n % STAGES
            full = ring.full.index(stage)
            mbarrier.wait(ring.empty.index(stage), ((n // STAGES) & 1) ^ 1)  # the first round does not wait
            if CHOSEN:
                mbarrier.expect(full, PARTS * PART * DEPTH * 2)
            elif both:
                mbarrier.expect(full, (PARTS * PART + 2 * ROWS) * DEPTH * 2)
            else:
                mbarrier.expect(full, (PARTS * PART + ROWS) * DEPTH * 2)
            tma.async_copy_global_to_shared(weight, [row, step * DEPTH], full, weights.index(stage * PARTS))
            tma.async_copy_global_to_shared(weight, [second, step * DEPTH], full, weights.index(stage * PARTS + 1))
            if CHOSEN:
                async_copy.async_copy_global_to_shared(ring.x.index(stage * 2), here + step * DEPTH)
                if both:
                    async_copy.async_copy_global_to_shared(ring.x.index(stage * 2 + 1), there + step * DEPTH)
                async_copy.mbarrier_arrive(full, increment_count=False)
            else:
                tma.async_copy_global_to_shared(x, [first, step * DEPTH], full, ring.x.index(stage * 2))
                if both:
                    tma.async_copy_global_to_shared(x, [first + ROWS, step * DEPTH], full, ring.x.index(stage * 2 + 1))
            n += 1


@gluon.jit
def _addresses(x: tensor, work: Work, first: tensor, end: tensor, CHOSEN: constexpr) -> tensor:
    """Where the values of a consumer's rows lie, DEPTH of each."""
    at = gl.minimum(first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, lines(4))), end - 1)
    token = (gl.load(work.pairs + at) // CHOSEN).to(gl.int64) * (work.steps * DEPTH)
    column = gl.arange(0, DEPTH, layout=gl.SliceLayout(0, lines(4)))
    return x + (token[:, None] + column[None, :])


# -- the consumers -----------------------------------------------------------------------------------------------------


@gluon.jit
def _halves(sums: tensor) -> tensor:
    """The left and the right columns: other registers, nothing moves."""
    return sums.reshape([sums.shape[0], 2, sums.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def _multiplied(ring: Ring, n: tensor, steps: tensor, CONSUMER: constexpr, STAGES: constexpr) -> tensor:
    """Sum `steps` tiles from the n-th on."""
    sums = gl.zeros([ROWS, 2 * PART], gl.float32, products(2 * PART))
    for step in range(0, steps):
        stage = n % STAGES
        mbarrier.wait(ring.full.index(stage), (n // STAGES) & 1)
        sums = warpgroup_mma(
            ring.x.index(stage * 2 + CONSUMER), ring.weights.index(stage).permute((1, 0)), sums, is_async=True
        )
        sums = warpgroup_mma_wait(1, deps=[sums])  # for those before
        mbarrier.arrive(ring.empty.index((n + STAGES - 1) % STAGES), pred=step > 0)
        n += 1
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(ring.empty.index((n - 1) % STAGES))
    return sums, n


@gluon.jit
def _passed(ring: Ring, n: tensor, steps: tensor, STAGES: constexpr) -> tensor:
    """Let `steps` tiles pass from the n-th on: none of their rows is this consumer's."""
    for _ in range(0, steps):
        mbarrier.wait(ring.full.index(n % STAGES), (n // STAGES) & 1)
        mbarrier.arrive(ring.empty.index(n % STAGES))
        n += 1
    return n


@gluon.jit
def _biased(values: tensor, bias_ptr: tensor, row: tensor, left: tensor, BIASED: constexpr) -> tensor:
    """A piece of sums in their layout, with the bias of rows from `row` on; `left` of them are the expert's."""
    values = gl.convert_layout(values, products(PIECE), assert_trivial=True)
    if BIASED:
        at = gl.arange(0, PIECE, layout=gl.SliceLayout(0, products(PIECE)))
        values += gl.load(bias_ptr + row + at, mask=at < left, other=0.0).to(gl.float32)[None, :]
    return values


@gluon.jit
def _written(values: tensor, out: tensor, inside: tensor, column: tensor, N: tensor) -> None:
    """Store a piece of results in lines of 128 bytes. out: where each row begins."""
    columns = column + gl.arange(0, PIECE, layout=gl.SliceLayout(0, lines(4)))
    lying = gl.convert_layout(values.to(out.dtype.element_ty), lines(4))
    gl.store(out[:, None] + columns[None, :], lying, mask=inside[:, None] & (columns < N)[None, :])


@gluon.jit
def _consume(
    ring: Ring, work: Work, bias_ptr: tensor, out_ptr: tensor, CONSUMER: constexpr, CHOSEN: constexpr,
    ACTIVATION: constexpr, BIASED: constexpr, EXPERTS: constexpr, STAGES: constexpr,
) -> None:  # fmt: skip
    """Multiply a consumer's rows of each tile, and write them."""
    COLUMNS: constexpr = PART if CHOSEN else 2 * PART  # outputs of a tile
    ranges, count = ranges_of(work, EXPERTS, 2 * ROWS, 4)
    N = work.N
    n = 0
    for tile in range(gl.program_id(0), count * work.tiles, gl.num_programs(0)):
        expert, first, end = tile_of(ranges, tile // work.tiles, EXPERTS, 2 * ROWS, 4)
        first += CONSUMER * ROWS
        if first < end:
            at = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, lines(4)))
            inside = at < end
            # pairs are held in registers while products are summed, so that no tile waits for them
            to = at if CHOSEN else gl.load(work.pairs + at, mask=inside, other=0)
            out = out_ptr + to.to(gl.int64) * N
            column = tile % work.tiles * COLUMNS
            row = expert * N + column
            sums, n = _multiplied(ring, n, work.steps, CONSUMER, STAGES)
            left, right = _halves(sums)
            one, two = _halves(left)
            three, four = _halves(right)
            one = _biased(one, bias_ptr, row, N - column, BIASED)
            two = _biased(two, bias_ptr, row + PIECE, N - column - PIECE, BIASED)
            if CHOSEN:
                up = row + work.experts * N
                three = _biased(three, bias_ptr, up, N - column, BIASED)
                _written(activate_gated(one, three, ACTIVATION), out, inside, column, N)
                four = _biased(four, bias_ptr, up + PIECE, N - column - PIECE, BIASED)
                _written(activate_gated(two, four, ACTIVATION), out, inside, column + PIECE, N)
            else:
                _written(one, out, inside, column, N)
                _written(two, out, inside, column + PIECE, N)
                three = _biased(three, bias_ptr, row + PART, N - column - PART, BIASED)
                _written(three, out, inside, column + PART, N)
                four = _biased(four, bias_ptr, row + PART + PIECE, N - column - PART - PIECE, BIASED)
                _written(four, out, inside, column + PART + PIECE, N)
        else:
            n = _passed(ring, n, work.steps, STAGES)


# -- the launch --------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["experts", "steps", "tiles"])
def hopper_grouped_kernel(
    x: tensor, weight: tensor, bias_ptr: tensor, out_ptr: tensor, pairs_ptr: tensor, starts_ptr: tensor,
    experts: int, N: int, steps: int, tiles: int,
    CHOSEN: constexpr, ACTIVATION: constexpr, BIASED: constexpr, EXPERTS: constexpr, STAGES: constexpr,
) -> None:  # fmt: skip
    """x: a pointer for the first product, a descriptor for the second. weight: a descriptor."""
    ring = _ring(out_ptr.dtype.element_ty, STAGES, 1 + COPIERS if CHOSEN else 1)
    work = Work(pairs_ptr, starts_ptr, experts, N, steps, tiles)
    fence_async_shared()
    # Registers of each thread: 65,536 for 384 threads.
    gl.warp_specialize(
        [
            (_consume, (ring, work, bias_ptr, out_ptr, 0, CHOSEN, ACTIVATION, BIASED, EXPERTS, STAGES)),
            (_consume, (ring, work, bias_ptr, out_ptr, 1, CHOSEN, ACTIVATION, BIASED, EXPERTS, STAGES)),
            (_produce, (x, weight, ring, work, CHOSEN, EXPERTS, STAGES)),
        ],
        [4, 4],
        [216, 72],
    )
