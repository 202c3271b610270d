"""Prompts through a matrix of int8 on Hopper: one warp copies tiles, warpgroups multiply them and write results.

Written in Gluon, Triton's lower level, for the reason that `hopper_attention` is: in `eight_bits.py` a program waits in
turn for its tiles, its products and its results. Here these overlap, as in CUTLASS's kernels for this GPU:

- *Warp specialization.* A producer, one warp, asks the copy engine (TMA) for tiles, as far ahead as shared memory has
  room. Consumers, of four warps each, multiply: each has `rows` rows of a tile of x, and all use its weights.
- *Products in flight.* A consumer issues the products of 128 columns before it waits for those before them, so the
  matrix units never wait for it.
- *Persistent programs*: one per multiprocessor, each with many tiles. The producer copies the next tile while the
  consumers write the last one.
- *Wide tiles.* The L2 cache has to deliver fewer bytes per operation than to tiles of 128 x 128.

A residual passes by the same ring as the tiles, 64 columns of it in the place of x, so it is there when its sums are.
Results leave through shared memory, 64 columns at a time, by the copy engine, which also cuts off rows behind the last.

Sums are those of `eight_bit_product` to the bit: integers are exact, and scales and the residual come in its order.

Layouts: x int8 [M, K], weight int8 [N, K], scales float32 [M] and [N], out and residual bfloat16 [M, N]. Bytes moved:
x once per tile of `columns` outputs, weights once per tile of rows.
"""

from typing import Any, NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import constexpr, tensor

from gradus.kernels.quantized.hopper_launch import CONSUMERS, HopperLaunch

DEPTH = gl.constexpr(128)  # columns of x and the weights in a tile: a swizzled row of shared memory, 128 bytes
PIECE = gl.constexpr(64)  # columns of results that leave together: 128 bytes as well


class HopperProducts:
    """The kernel, on a GPU with that number of multiprocessors."""

    def __init__(self, processors: int) -> None:
        self.processors = processors

    def multiply(
        self, x: Tensor, x_scales: Tensor, weight: Tensor, scales: Tensor, out: Tensor, launch: HopperLaunch,
        residual: Tensor | None = None,
    ) -> None:  # fmt: skip
        """out = residual + x weightᵀ, scaled. residual: may be `out` itself, or laid out as it is.

        x: [M, K], weight: [N, K], contiguous; x_scales: M of them, scales: N. K is a multiple of
        128, N one of `launch.columns`. out: [M, N], whose rows lie a multiple of 16 bytes apart.
        """
        (m, k), n = x.shape, weight.shape[0]
        assert k % DEPTH.value == 0 and n % launch.columns == 0, (n, k, launch)
        tiles_m, tiles_n = -(-m // launch.tile_rows), n // launch.columns
        added = out if residual is None else residual  # without a residual, `out` is only a placeholder
        hopper_product_kernel[(min(self.processors, tiles_m * tiles_n),)](
            _described(x, [launch.rows, DEPTH.value], TILE), _described(weight, [launch.columns, DEPTH.value], TILE),
            _described(added, [launch.rows, PIECE.value], RESULT), _described(out, [launch.rows, PIECE.value], RESULT),
            x_scales, scales, m, tiles_m, tiles_n, k // DEPTH.value,
            **constants(launch, onto=residual is not None), num_warps=4,
        )  # fmt: skip


def constants(launch: HopperLaunch, *, onto: bool) -> dict[str, Any]:
    """Return the kernel's compile-time constants."""
    return {
        "ROWS": launch.rows, "COLUMNS": launch.columns, "CONSUMERS": CONSUMERS, "STAGES": launch.stages,
        "BUFFERS": launch.buffers, "TOGETHER": launch.together, "RESIDUAL": onto,
    }  # fmt: skip


def _described(matrix: Tensor, box: list[int], layout: gl.NVMMASharedLayout) -> TensorDescriptor:
    return TensorDescriptor(matrix, [*matrix.shape], [*matrix.stride()], box, layout)


# -- where values lie: functions, since Triton compares each global constant with what it was, at every launch ---------


@gluon.constexpr_function
def tiles() -> gl.NVMMASharedLayout:
    """Lay out x and weights in shared memory."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)


@gluon.constexpr_function
def pieces() -> gl.NVMMASharedLayout:
    """Lay out results in shared memory."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


TILE, RESULT = tiles(), pieces()  # for the host, which describes matrices by them


@gluon.constexpr_function
def products(columns: int) -> gl.NVMMADistributedLayout:
    """Lay out sums [ROWS, columns] in a consumer's four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, min(columns, 128), 32])


@gluon.constexpr_function
def per_row(columns: int) -> gl.SliceLayout:
    return gl.SliceLayout(1, products(columns))


@gluon.constexpr_function
def per_column(columns: int) -> gl.SliceLayout:
    return gl.SliceLayout(0, products(columns))


# -- shared memory, and who may touch it -------------------------------------------------------------------------------


class Ring(NamedTuple):
    """Tiles in shared memory, filled by the producer and read by consumers; the n-th is in place n % STAGES.

    x: a tile per consumer that reads a place. full, empty: a barrier per place, whose phase turns when all bytes have
    arrived, and when all consumers have read them.
    """

    x: Any
    weights: Any
    full: Any
    empty: Any


@gluon.jit
def _ring(ROWS: constexpr, COLUMNS: constexpr, CONSUMERS: constexpr, STAGES: constexpr) -> Ring:
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=CONSUMERS)
    x = gl.allocate_shared_memory(gl.int8, [STAGES * CONSUMERS, ROWS, DEPTH], tiles())
    weights = gl.allocate_shared_memory(gl.int8, [STAGES, COLUMNS, DEPTH], tiles())
    return Ring(x, weights, full, empty)


@gluon.jit
def _until_full(ring: Ring, n: int, STAGES: constexpr) -> None:
    mbarrier.wait(ring.full.index(n % STAGES), (n // STAGES) & 1)


@gluon.jit
def _until_empty(ring: Ring, n: int, STAGES: constexpr) -> None:
    """The first round does not wait here, since a barrier's phase before its first counts as completed."""
    mbarrier.wait(ring.empty.index(n % STAGES), ((n // STAGES) & 1) ^ 1)


@gluon.jit
def _done_with(ring: Ring, n: int, STAGES: constexpr) -> None:
    mbarrier.arrive(ring.empty.index(n % STAGES))


@gluon.jit
def _place(tile: tensor, tiles_m: tensor, tiles_n: tensor, TOGETHER: constexpr) -> tensor:
    """A tile's row and column. TOGETHER rows of tiles pass by one column of them, so what runs at once is square."""
    band = tile // (TOGETHER * tiles_n)
    inside = tile % (TOGETHER * tiles_n)
    high = gl.minimum(tiles_m - band * TOGETHER, TOGETHER)
    return band * TOGETHER + inside % high, inside // high


# -- the producer ------------------------------------------------------------------------------------------------------


@gluon.jit
def _produce(
    x: tensor, weight: tensor, residual: tensor, ring: Ring, tiles_m: tensor, tiles_n: tensor, steps: tensor,
    ROWS: constexpr, COLUMNS: constexpr, CONSUMERS: constexpr, STAGES: constexpr, TOGETHER: constexpr,
    RESIDUAL: constexpr,
) -> None:  # fmt: skip
    """Copy what the consumers will ask for, in their order."""
    n = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = _place(tile, tiles_m, tiles_n, TOGETHER)
        row = tile_m * (CONSUMERS * ROWS)
        column = tile_n * COLUMNS
        for step in range(0, steps):
            _until_empty(ring, n, STAGES)
            stage = n % STAGES
            full = ring.full.index(stage)
            mbarrier.expect(full, (CONSUMERS * ROWS + COLUMNS) * DEPTH)
            tma.async_copy_global_to_shared(weight, [column, step * DEPTH], full, ring.weights.index(stage))
            for i in gl.static_range(CONSUMERS):
                tma.async_copy_global_to_shared(
                    x, [row + i * ROWS, step * DEPTH], full, ring.x.index(stage * CONSUMERS + i)
                )
            n += 1
        if RESIDUAL:
            added = ring.x._reinterpret(gl.bfloat16, [STAGES * CONSUMERS, ROWS, PIECE], pieces())
            for piece in range(0, COLUMNS // PIECE):
                _until_empty(ring, n, STAGES)
                stage = n % STAGES
                full = ring.full.index(stage)
                mbarrier.expect(full, CONSUMERS * ROWS * DEPTH)
                for i in gl.static_range(CONSUMERS):
                    tma.async_copy_global_to_shared(
                        residual, [row + i * ROWS, column + piece * PIECE], full, added.index(stage * CONSUMERS + i)
                    )
                n += 1


# -- the consumers -----------------------------------------------------------------------------------------------------


@gluon.jit
def _halves(sums: tensor) -> tensor:
    """The left and the right columns: other registers, nothing moves."""
    return sums.reshape([sums.shape[0], 2, sums.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def _in_pieces(sums: tensor) -> tensor:
    """Split the sums into pieces of 64 columns."""
    COLUMNS: constexpr = sums.shape[1]
    if COLUMNS == 64:
        found = (sums,)
    else:
        left, right = _halves(sums)
        if COLUMNS == 128:
            found = (left, right)  # type: ignore[assignment]
        else:
            first, second = _halves(left)
            third, fourth = _halves(right)
            found = (first, second, third, fourth)  # type: ignore[assignment]
    return found


@gluon.jit
def _multiplied(
    ring: Ring, n: tensor, steps: tensor, CONSUMER: constexpr, CONSUMERS: constexpr, STAGES: constexpr,
    ROWS: constexpr, COLUMNS: constexpr,
) -> tensor:  # fmt: skip
    """Sum `steps` tiles from the n-th on. The last products may still be under way."""
    sums = gl.zeros([ROWS, COLUMNS], gl.int32, products(COLUMNS))
    for step in range(0, steps):
        _until_full(ring, n, STAGES)
        stage = n % STAGES
        sums = warpgroup_mma(
            ring.x.index(stage * CONSUMERS + CONSUMER), ring.weights.index(stage).permute((1, 0)), sums, is_async=True
        )
        sums = warpgroup_mma_wait(1, deps=[sums])  # for those before
        mbarrier.arrive(ring.empty.index((n + STAGES - 1) % STAGES), pred=step > 0)
        n += 1
    return sums, n


@gluon.jit
def _column_scales(scales: tensor, column: tensor) -> tensor:
    """Lay out a piece of results."""
    return gl.load(scales + column + gl.arange(0, PIECE, layout=per_column(PIECE)))


@gluon.jit
def _consume(
    ring: Ring, staged: tensor, out: tensor, x_scales: tensor, scales: tensor, m: tensor, tiles_m: tensor,
    tiles_n: tensor, steps: tensor, CONSUMER: constexpr, CONSUMERS: constexpr, ROWS: constexpr, COLUMNS: constexpr,
    STAGES: constexpr, BUFFERS: constexpr, TOGETHER: constexpr, RESIDUAL: constexpr,
) -> None:  # fmt: skip
    """Multiply a consumer's rows of each tile, and write them."""
    PIECES: constexpr = COLUMNS // PIECE
    added = ring.x._reinterpret(gl.bfloat16, [STAGES * CONSUMERS, ROWS, PIECE], pieces())
    n = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = _place(tile, tiles_m, tiles_n, TOGETHER)
        row = (tile_m * CONSUMERS + CONSUMER) * ROWS
        column = tile_n * COLUMNS
        rows = gl.minimum(row + gl.arange(0, ROWS, layout=per_row(PIECE)), m - 1)
        token = gl.load(x_scales + rows)  # held in registers while products are summed, so that no tile waits
        scale = _column_scales(scales, column)
        sums, n = _multiplied(ring, n, steps, CONSUMER, CONSUMERS, STAGES, ROWS, COLUMNS)
        sums = warpgroup_mma_wait(0, deps=[sums])
        _done_with(ring, n - 1, STAGES)
        parts = _in_pieces(sums)
        for piece in gl.static_range(PIECES):
            values = gl.convert_layout(parts[piece], products(PIECE), assert_trivial=True).to(gl.float32)
            values = values * token[:, None] * scale[None, :]
            if piece + 1 < PIECES:
                scale = _column_scales(scales, column + (piece + 1) * PIECE)
            if RESIDUAL:
                _until_full(ring, n, STAGES)
                values += added.index(n % STAGES * CONSUMERS + CONSUMER).load(products(PIECE)).to(gl.float32)
                _done_with(ring, n, STAGES)
                n += 1
            buffer = staged.index(CONSUMER * BUFFERS + piece % BUFFERS)
            tma.store_wait(BUFFERS - 1)
            buffer.store(values.to(gl.bfloat16))
            fence_async_shared()
            tma.async_copy_shared_to_global(out, [row, column + piece * PIECE], buffer)
    tma.store_wait(0)


# -- the launch --------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["m", "tiles_m", "tiles_n", "steps"])
def hopper_product_kernel(
    x: tensor, weight: tensor, residual: tensor, out: tensor, x_scales: tensor, scales: tensor, m: int, tiles_m: int,
    tiles_n: int, steps: int, ROWS: constexpr, COLUMNS: constexpr, CONSUMERS: constexpr, STAGES: constexpr,
    BUFFERS: constexpr, TOGETHER: constexpr, RESIDUAL: constexpr,
) -> None:  # fmt: skip
    """x, weight, residual, out: descriptors. steps: tiles of 128 columns along K."""
    ring = _ring(ROWS, COLUMNS, CONSUMERS, STAGES)
    staged = gl.allocate_shared_memory(gl.bfloat16, [CONSUMERS * BUFFERS, ROWS, PIECE], pieces())
    fence_async_shared()
    # Registers of each thread: 65,536 for 384 threads, four warps of them for the one that copies.
    gl.warp_specialize(
        [
            (_consume, (
                ring, staged, out, x_scales, scales, m, tiles_m, tiles_n, steps, 0, CONSUMERS, ROWS, COLUMNS,
                STAGES, BUFFERS, TOGETHER, RESIDUAL,
            )),
            (_consume, (
                ring, staged, out, x_scales, scales, m, tiles_m, tiles_n, steps, 1, CONSUMERS, ROWS, COLUMNS,
                STAGES, BUFFERS, TOGETHER, RESIDUAL,
            )),
            (_produce, (
                x, weight, residual, ring, tiles_m, tiles_n, steps, ROWS, COLUMNS, CONSUMERS, STAGES, TOGETHER,
                RESIDUAL,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
