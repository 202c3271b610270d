"""Attention of long prompts on Hopper: one warp copies pages; two or three warpgroups multiply and take exponentials.

Written in Gluon, Triton's lower level, because `paged_attention` waits in turn for its keys, its products and its
exponentials, and Triton lets no two of them overlap there. Here they do, after FlashAttention-3 (Shah et al. 2024):

- *Warp specialization* (its section 3.1). A producer, one warp, asks the copy engine (TMA) for pages, some blocks of
  keys ahead. Consumers, of four warps each, have 64 rows of a tile each, and most of the registers. While one waits,
  the others multiply.
- *Softmax during products* (its section 3.2). A consumer issues the scores of the next block before the values'
  product of this one, so the matrix units still multiply while the exponentials of the next block are taken.
- *Persistent programs*: one per multiprocessor, which has shared memory for no second, each with many tiles. The
  producer copies the next tile's queries and keys while the consumers write the last one's results.
- *Sums of weights on the matrix units.* A product with eight columns of ones adds a block's weights up, rounded as the
  values' product takes them. Added by threads, they would be one instruction in seven.

The bound depends on the width of heads (docs/design/p09.md): an exponential takes as long as the two products of
64 dimensions. Such heads want three consumers and long blocks; heads of 256 have registers for two.

Blocks are taken last to first. Those that reach beyond a row's own key come first, those at the edge of a window last,
and the loop over the blocks between them has no mask.

A page is a box of its own for the copy engine, [1, 16, 64] of the cache [pages, 16, Hkv * Dh]: a column of 128 bytes,
which shared memory swizzles as the matrix units want it. The box of a page that is not full begins before the page, so
that the last row lies at the box's end: rows outside of the page arrive as zeros, and rows not written yet are never
read.

Layouts: q [N, Hq, Dh], keys and values [pages, 16, Hkv, Dh], tables [slots, width], out [N, Hq, Dh], all bfloat16 but
the tables; Dh is 64, 128 or 256. Sums are in float32. Moves: every visible key and value once for each tile of rows
that sees it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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

from gradus.kernels.attention.launch import HOPPER_PAGE, HOPPER_ROWS, HopperLaunch
from gradus.kernels.attention.work import Work
from gradus.kernels.core.constants import LOG2_E

ITEM = gl.constexpr(9)  # numbers of a work item: see `attention_work`
PAGE = gl.constexpr(HOPPER_PAGE)
ROWS = gl.constexpr(HOPPER_ROWS)  # of a consumer: what its matrix units multiply at once
# Per thread. One warpgroup is there for the one warp that copies and needs few.
CONSUMER_OF_TWO, PRODUCER_OF_TWO = gl.constexpr(232), gl.constexpr(40)
CONSUMER_OF_THREE, PRODUCER_OF_THREE = gl.constexpr(160), gl.constexpr(32)
COLUMN = gl.constexpr(64)  # values of a swizzled row of shared memory, 128 bytes
ONES = gl.constexpr(8)  # columns of ones: the fewest that a product has

BOX = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)  # of a box


@dataclass(frozen=True, slots=True)
class Shape:
    """Holds the numbers that the kernel is compiled for.

    heads: of keys, each shared by `group` query heads. padded: rows that a token takes in a tile, `group` of them used.
    window: 0 if there is none. Others: as in `HopperLaunch`.

    Triton finds a compiled kernel by these numbers: whatever follows from them is computed in the kernel.
    """

    heads: int
    group: int
    padded: int
    window: int
    head_dim: int
    keys: int
    stages: int
    consumers: int

    @staticmethod
    def of(launch: HopperLaunch, heads: int, group: int, window: int | None) -> "Shape":
        return Shape(
            heads, group, launch.padded(group), window or 0,
            launch.head_dim, launch.keys, launch.stages, launch.consumers,
        )  # fmt: skip


class HopperPrompts:
    """The kernel, on one cache. Copying needs a descriptor of each layer's keys and values: they are made once."""

    def __init__(self, pages: Mapping[int, tuple[Tensor, Tensor]], processors: int) -> None:
        """pages: by layer, its keys and its values, bfloat16 [pages, 16, Hkv, Dh]. processors: of the GPU."""
        self.pages = {layer: (_by_page(keys), _by_page(values)) for layer, (keys, values) in pages.items()}
        self.heads, self.processors = {layer: keys.shape[2] for layer, (keys, _) in pages.items()}, processors

    def attend(
        self, layer: int, q: Tensor, tables: Tensor, work: Work, out: Tensor, scale: float, sinks: Tensor | None = None
    ) -> None:
        """Attend causally in a layer, as `work` was laid out; fills the rows of `out` that it covers.

        q: [N, Hq, Dh], rows any distance apart. Keys of the step's own tokens must be stored already. `work` has a
        `HopperLaunch`, and spans that are at least as long as they have new tokens. sinks: float32 [Hq], one more logit
        of each query head's softmax, whose value is nothing. One launch, nothing is read back.
        """
        launch, heads = work.launch, self.heads[layer]
        assert isinstance(launch, HopperLaunch)
        shape, tiles = Shape.of(launch, heads, q.shape[1] // heads, work.window), len(work.items) * heads
        box = [ROWS.value // shape.padded, shape.padded, COLUMN.value]
        queries = TensorDescriptor(q, [*q.shape], [*q.stride()], box, BOX)
        hopper_attention[(min(self.processors, tiles),)](
            queries, *self.pages[layer], out, tables, work.items, sinks, tiles, tables.stride(0), scale * LOG2_E.value,
            SHAPE=shape, num_warps=4,
        )  # fmt: skip


def _by_page(kept: Tensor) -> TensorDescriptor:
    """A layer's keys or values, copied a column of a page at a time."""
    pages, page, heads, head_dim = kept.shape
    width = heads * head_dim
    return TensorDescriptor(kept, [pages, page, width], [page * width, width, 1], [1, page, COLUMN.value], BOX)


# -- where values lie: functions, since Triton compares each global constant with what it was, at every launch ---------


@gluon.constexpr_function
def swizzled() -> gl.NVMMASharedLayout:
    """Lay out a block in shared memory: the bytes of its boxes, one after the other."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


@gluon.constexpr_function
def products(width: int) -> gl.NVMMADistributedLayout:
    """Lay out a product of `width` columns, scores or sums of values, in a consumer's four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, width, 16])


@gluon.constexpr_function
def per_row(width: int) -> gl.SliceLayout:
    return gl.SliceLayout(1, products(width))


@gluon.constexpr_function
def factors(width: int) -> gl.DotOperandLayout:
    """Lay out the weights that values are multiplied by: they stay in registers."""
    return gl.DotOperandLayout(0, products(width), 2)


@gluon.constexpr_function
def stored() -> gl.BlockedLayout:
    """Lay out results: 16 bytes per thread, two whole rows per warp."""
    return gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])


# -- shared memory, and who may touch it -------------------------------------------------------------------------------


class Queries(NamedTuple):
    """The queries of one tile, a part per consumer.

    full, empty: barriers whose phase turns when all bytes have arrived, and when all consumers have read them.
    """

    parts: Any
    full: Any
    empty: Any


class Ring(NamedTuple):
    """Places in shared memory, filled by the producer and read by all consumers; the n-th filling is in n % stages.

    Each has room for the keys of a block and the values of the block that was read before it: what a consumer
    multiplies at once. full, empty: barriers as of queries, one per place.
    """

    key_blocks: Any
    value_blocks: Any
    full: Any
    empty: Any


@gluon.jit
def _barrier(ARRIVALS: constexpr) -> tensor:
    barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(barrier, count=ARRIVALS)
    return barrier


@gluon.jit
def _barriers(COUNT: constexpr, ARRIVALS: constexpr) -> tensor:
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def _ring(SHAPE: constexpr) -> Ring:
    STAGES: constexpr = SHAPE.stages
    keys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, SHAPE.keys, SHAPE.head_dim], swizzled())
    values = gl.allocate_shared_memory(gl.bfloat16, [STAGES, SHAPE.keys, SHAPE.head_dim], swizzled())
    return Ring(keys, values, _barriers(STAGES, 1), _barriers(STAGES, SHAPE.consumers))


@gluon.jit
def _until_full(ring: Ring, n: int, SHAPE: constexpr) -> None:
    mbarrier.wait(ring.full.index(n % SHAPE.stages), (n // SHAPE.stages) & 1)


@gluon.jit
def _until_empty(ring: Ring, n: int, SHAPE: constexpr) -> None:
    """In the first round this does not wait, since a barrier's phase before its first counts as completed."""
    mbarrier.wait(ring.empty.index(n % SHAPE.stages), ((n // SHAPE.stages) & 1) ^ 1)


@gluon.jit
def _done_with(ring: Ring, n: int, SHAPE: constexpr) -> None:
    mbarrier.arrive(ring.empty.index(n % SHAPE.stages))


@gluon.jit
def _tile(turn: int) -> tensor:
    """A program's tile number `turn`, counted over key heads: a round there and the next one back.

    The first tiles of a round have the most keys, so that no program always gets the longest.
    """
    program = gl.program_id(0)
    return turn * gl.num_programs(0) + program + (gl.num_programs(0) - 1 - 2 * program) * (turn & 1)


@gluon.jit
def _first_page(at: tensor, SHAPE: constexpr) -> tensor:
    """Find the page with the first key that a tile's rows see, by its place in the table: pages before a window are
    given back. Without a window the compiler learns that it is 0."""
    page = gl.load(at + 4) // PAGE
    return page if SHAPE.window else page * 0


# -- the producer ------------------------------------------------------------------------------------------------------


@gluon.jit
def _page_numbers(table: tensor, place: tensor, last: tensor, SHAPE: constexpr) -> tensor:
    """Read the page numbers of a block of keys, from entry `place` of its table on; behind the last page, that page's
    again."""
    pages = ()
    BLOCK_PAGES: constexpr = SHAPE.keys // PAGE
    for i in gl.static_range(BLOCK_PAGES):
        page = gl.load(table + gl.minimum(place + i, last)).to(gl.int32)
        pages = pages + (page,)  # type: ignore[assignment]  # noqa: RUF005
    return pages


@gluon.jit
def _copy_block(
    source: tensor, blocks: tensor, full: tensor, stage: int, pages: tensor, place: tensor, high: tensor,
    head: tensor, SHAPE: constexpr,
) -> None:  # fmt: skip
    """Copy the keys or values of a block to their place. high: one behind the tile's last key.

    The box of a page begins earlier by the rows that the page lacks, and that of a page behind the last one lies
    outside of any page: zeros come from there.
    """
    STAGES: constexpr = SHAPE.stages
    COLUMNS: constexpr = SHAPE.head_dim // COLUMN
    BLOCK_PAGES: constexpr = SHAPE.keys // PAGE
    boxes = blocks._reinterpret(gl.bfloat16, [STAGES * COLUMNS * BLOCK_PAGES, 1, PAGE, COLUMN], source.layout)
    for i in gl.static_range(BLOCK_PAGES):
        begin = gl.minimum(gl.maximum(high - (place + i + 1) * PAGE, -PAGE), 0)
        for column in gl.static_range(COLUMNS):
            tma.async_copy_global_to_shared(
                source, [pages[i], begin, head * SHAPE.head_dim + column * COLUMN], full,
                boxes.index((stage * COLUMNS + column) * BLOCK_PAGES + i),
            )  # fmt: skip


@gluon.jit
def _copy_queries(source: tensor, q: Queries, taken: int, first: tensor, head: tensor, SHAPE: constexpr) -> None:
    """Copy all parts of a tile, whose first token is row `first` of the batch, once the tile before is read.

    taken: tiles before it.
    """
    TOKENS: constexpr = ROWS // SHAPE.padded
    COLUMNS: constexpr = SHAPE.head_dim // COLUMN
    CONSUMERS: constexpr = SHAPE.consumers
    boxes = q.parts._reinterpret(gl.bfloat16, [CONSUMERS * COLUMNS, TOKENS, SHAPE.padded, COLUMN], source.layout)
    mbarrier.wait(q.empty, (taken & 1) ^ 1)
    mbarrier.expect(q.full, CONSUMERS * ROWS * SHAPE.head_dim * 2)
    for part in gl.static_range(CONSUMERS):
        for column in gl.static_range(COLUMNS):
            tma.async_copy_global_to_shared(
                source, [first + part * TOKENS, head * SHAPE.group, column * COLUMN], q.full,
                boxes.index(part * COLUMNS + column),
            )  # fmt: skip


@gluon.jit
def _produce(
    queries: tensor, keys: tensor, values: tensor, q: Queries, ring: Ring, tables: tensor, items: tensor,
    tiles: tensor, table_stride: tensor, SHAPE: constexpr,
) -> None:  # fmt: skip
    """Copy blocks in the consumers' order: the keys of a block before the values of the previous one."""
    BLOCK_PAGES: constexpr = SHAPE.keys // PAGE
    n = 0
    taken = 0
    for turn in range(0, (tiles + gl.num_programs(0) - 1) // gl.num_programs(0)):
        index = _tile(turn)
        head = index % SHAPE.heads
        at = items + index // SHAPE.heads * ITEM
        tokens = gl.load(at + 1, mask=index < tiles, other=0)
        if tokens > 0:
            table = tables + gl.load(at + 3).to(gl.int64) * table_stride
            low = _first_page(at, SHAPE)
            high = gl.load(at + 5)
            last = (high - 1) // PAGE
            end = (last - low) // BLOCK_PAGES
            _copy_queries(queries, q, taken, gl.load(at), head, SHAPE)
            place = low + end * BLOCK_PAGES
            pages = _page_numbers(table, place, last, SHAPE)
            for step in range(0, end + 2):
                _until_empty(ring, n, SHAPE)
                stage = n % SHAPE.stages
                full = ring.full.index(stage)
                nexts = pages
                if step == 0:
                    mbarrier.expect(full, SHAPE.keys * SHAPE.head_dim * 2)
                    _copy_block(keys, ring.key_blocks, full, stage, pages, place, high, head, SHAPE)
                elif step <= end:
                    mbarrier.expect(full, SHAPE.keys * SHAPE.head_dim * 4)
                    nexts = _page_numbers(table, place - BLOCK_PAGES, last, SHAPE)
                    _copy_block(keys, ring.key_blocks, full, stage, nexts, place - BLOCK_PAGES, high, head, SHAPE)
                    _copy_block(values, ring.value_blocks, full, stage, pages, place, high, head, SHAPE)
                    place -= BLOCK_PAGES
                else:
                    mbarrier.expect(full, SHAPE.keys * SHAPE.head_dim * 2)
                    _copy_block(values, ring.value_blocks, full, stage, pages, place, high, head, SHAPE)
                pages = nexts
                n += 1
            taken += 1


# -- the consumers -----------------------------------------------------------------------------------------------------


@gluon.jit
def _masked(score: tensor, first: tensor, high: tensor, position: tensor, SHAPE: constexpr) -> tensor:
    """Set the scores of keys that a row may not see to -inf. The last page lies shifted: see `_copy_block`.

    first: the block's first key.
    """
    column = gl.arange(0, SHAPE.keys, layout=gl.SliceLayout(0, products(SHAPE.keys)))
    number = first + column
    shift = gl.maximum((number // PAGE + 1) * PAGE - high, 0)
    key = number - shift
    visible = (column % PAGE >= shift)[None, :] & (key[None, :] <= position[:, None])
    if SHAPE.window:
        visible = visible & (key[None, :] > position[:, None] - SHAPE.window)
    return gl.where(visible, score, float("-inf"))


@gluon.jit
def _weights(score: tensor, peak: tensor, factor: tensor, MASKED: constexpr, SHAPE: constexpr) -> tensor:
    """Turn a block's scores into (weights in bfloat16, the factor by which older sums shrink, the new peak)."""
    new_peak = gl.maximum(peak, gl.max(score, 1) * factor)
    # a row that has seen nothing yet: exp2(-inf - 0) is 0, and -inf - -inf would be NaN
    base = gl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
    weight = gl.exp2(score * factor - base[:, None]).to(gl.bfloat16)
    return gl.convert_layout(weight, factors(SHAPE.head_dim)), gl.exp2(peak - base), new_peak


@gluon.jit
def _scores(q: tensor, ring: Ring, n: int, SHAPE: constexpr) -> tensor:
    """Issue the product of the queries and the n-th place's keys, once they are there."""
    KEYS: constexpr = SHAPE.keys
    zeros = gl.zeros([ROWS, KEYS], gl.float32, products(KEYS))
    _until_full(ring, n, SHAPE)
    return warpgroup_mma(
        q, ring.key_blocks.index(n % SHAPE.stages).permute((1, 0)), zeros, use_acc=False, is_async=True
    )


@gluon.jit
def _add(weights: tensor, seen: tensor, total: tensor, ring: Ring, n: int, ones: tensor, SHAPE: constexpr) -> tensor:
    """Issue both products of a block's weights: with the n-th place's values, and with ones."""
    seen = warpgroup_mma(weights, ring.value_blocks.index(n % SHAPE.stages), seen, is_async=True)
    total = warpgroup_mma(gl.convert_layout(weights, factors(ONES)), ones, total, is_async=True)
    return seen, total


@gluon.jit
def _blocks(
    weights: tensor, seen: tensor, total: tensor, peak: tensor, n: int, begin: tensor, end: tensor, origin: tensor,
    q: tensor, ring: Ring, ones: tensor, high: tensor, position: tensor, factor: tensor,
    MASKED: constexpr, SHAPE: constexpr,
) -> tensor:  # fmt: skip
    """Take in blocks end - 1 … begin: the scores of each, during the values' product of the block after it."""
    for step in range(0, end - begin):
        score = _scores(q, ring, n, SHAPE)
        seen, total = _add(weights, seen, total, ring, n, ones, SHAPE)
        score = warpgroup_mma_wait(2, deps=[score])  # the scores alone: the other products go on
        if MASKED:
            score = _masked(score, origin + (end - 1 - step) * SHAPE.keys, high, position, SHAPE)
        weights_after, shrink, peak = _weights(score, peak, factor, MASKED, SHAPE)
        # Waited for here already, since ptxas moves no exponential past it: they are taken while `seen` is summed.
        seen, total, weights = warpgroup_mma_wait(0, deps=[seen, total, weights_after])
        _done_with(ring, n, SHAPE)
        seen = seen * gl.convert_layout(shrink, per_row(SHAPE.head_dim))[:, None]
        total = total * gl.convert_layout(shrink, per_row(ONES))[:, None]
        n += 1
    return weights, seen, total, peak, n


@gluon.jit
def _consume(
    queries: Queries, ring: Ring, ones: tensor, items: tensor, out: tensor, sinks: tensor, tiles: tensor,
    factor: tensor, PART: constexpr, SHAPE: constexpr,
) -> None:  # fmt: skip
    """Attend for one part of each tile's rows."""
    TOKENS: constexpr = ROWS // SHAPE.padded
    KEYS: constexpr = SHAPE.keys
    HEAD_DIM: constexpr = SHAPE.head_dim
    q = queries.parts.index(PART)
    n = 0
    taken = 0
    for turn in range(0, (tiles + gl.num_programs(0) - 1) // gl.num_programs(0)):
        index = _tile(turn)
        head = index % SHAPE.heads
        at = items + index // SHAPE.heads * ITEM
        tokens = gl.load(at + 1, mask=index < tiles, other=0)
        if tokens > 0:
            start = gl.load(at + 2) + PART * TOKENS
            high = gl.load(at + 5)
            position = start + gl.arange(0, ROWS, layout=per_row(KEYS)) // SHAPE.padded
            page = _first_page(at, SHAPE)
            end = ((high - 1) // PAGE - page) // (KEYS // PAGE)
            origin = page * PAGE
            # Blocks edge … middle - 1 have no mask: every row sees all of their keys.
            middle = gl.minimum(end, gl.maximum((start + 1 - origin) // KEYS, 0))
            edge = middle * 0
            if SHAPE.window:
                edge = gl.minimum((gl.maximum(start + TOKENS - SHAPE.window - origin, 0) + KEYS - 1) // KEYS, middle)

            mbarrier.wait(queries.full, taken & 1)
            score = warpgroup_mma_wait(0, deps=[_scores(q, ring, n, SHAPE)])
            _done_with(ring, n, SHAPE)
            n += 1
            score = _masked(score, origin + end * KEYS, high, position, SHAPE)
            peak = gl.full([ROWS], float("-inf"), gl.float32, per_row(KEYS))
            weights, _, peak = _weights(score, peak, factor, True, SHAPE)
            seen = gl.zeros([ROWS, HEAD_DIM], gl.float32, products(HEAD_DIM))
            total = gl.zeros([ROWS, ONES], gl.float32, products(ONES))
            weights, seen, total, peak, n = _blocks(
                weights, seen, total, peak, n, middle, end, origin, q, ring, ones, high, position, factor, True, SHAPE
            )
            weights, seen, total, peak, n = _blocks(
                weights, seen, total, peak, n, edge, middle, origin, q, ring, ones, high, position, factor, False, SHAPE
            )
            if SHAPE.window:
                weights, seen, total, peak, n = _blocks(
                    weights, seen, total, peak, n, 0, edge, origin, q, ring, ones, high, position, factor, True, SHAPE
                )
            mbarrier.arrive(queries.empty)
            _until_full(ring, n, SHAPE)
            seen, total = _add(weights, seen, total, ring, n, ones, SHAPE)
            seen, total = warpgroup_mma_wait(0, deps=[seen, total])
            _done_with(ring, n, SHAPE)
            n += 1
            taken += 1
            sums = gl.convert_layout(gl.max(total, 1), per_row(KEYS))  # its columns are equal
            scale = _share(sums, peak, sinks, head, SHAPE)
            scale = gl.convert_layout(scale, per_row(HEAD_DIM))
            _store(out, seen * scale[:, None], gl.load(at), tokens, head, PART, SHAPE)


@gluon.jit
def _share(total: tensor, peak: tensor, sinks: tensor, head: tensor, SHAPE: constexpr) -> tensor:
    """Return the factor of each row's sum of values: one over its sum of weights, to which its head's sink is added."""
    if sinks is not None:
        member = gl.minimum(gl.arange(0, ROWS, layout=per_row(SHAPE.keys)) % SHAPE.padded, SHAPE.group - 1)
        sink = gl.load(sinks + head * SHAPE.group + member) * LOG2_E
        highest = gl.maximum(peak, sink)
        shrink = gl.exp2(peak - highest)
        share = shrink / (total * shrink + gl.exp2(sink - highest))
    else:
        share = 1.0 / gl.where(total > 0, total, 1.0)
    return share


@gluon.jit
def _store(
    out: tensor, seen: tensor, first: tensor, tokens: tensor, head: tensor, PART: constexpr, SHAPE: constexpr
) -> None:
    """Write a consumer's rows, those that have a token, to `out` from row `first` on."""
    HEAD_DIM: constexpr = SHAPE.head_dim
    seen = gl.convert_layout(seen.to(gl.bfloat16), stored())
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, stored()))
    d = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, stored()))
    token = PART * (ROWS // SHAPE.padded) + row // SHAPE.padded
    place = (token * (SHAPE.heads * SHAPE.group) + head * SHAPE.group + row % SHAPE.padded) * HEAD_DIM
    out += first.to(gl.int64) * (SHAPE.heads * SHAPE.group * HEAD_DIM)
    there = (token < tokens) & (row % SHAPE.padded < SHAPE.group)
    gl.store(out + place[:, None] + d[None, :], seen, mask=there[:, None])


# -- the launch --------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["tiles", "table_stride"])
def hopper_attention(
    queries: tensor, keys: tensor, values: tensor, out: tensor, tables: tensor, items: tensor, sinks: tensor,
    tiles: int, table_stride: int, factor: float, SHAPE: constexpr,
) -> None:  # fmt: skip
    """queries, keys, values: descriptors. tiles: of all key heads, so work items times key heads. factor: of scores,
    which are then exponents of 2. SHAPE: a `Shape`."""
    KEYS: constexpr = SHAPE.keys
    parts = gl.allocate_shared_memory(gl.bfloat16, [SHAPE.consumers, ROWS, SHAPE.head_dim], swizzled())
    q = Queries(parts, _barrier(1), _barrier(SHAPE.consumers))
    ring = _ring(SHAPE)
    ones = gl.allocate_shared_memory(gl.bfloat16, [ONES, KEYS], swizzled())
    ones.store(gl.full([ONES, KEYS], 1.0, gl.bfloat16, stored()))
    ones = ones.permute((1, 0))
    fence_async_shared()
    if SHAPE.consumers == 2:
        gl.warp_specialize(
            [
                (_consume, (q, ring, ones, items, out, sinks, tiles, factor, 0, SHAPE)),
                (_consume, (q, ring, ones, items, out, sinks, tiles, factor, 1, SHAPE)),
                (_produce, (queries, keys, values, q, ring, tables, items, tiles, table_stride, SHAPE)),
            ],
            [4, 1],
            [CONSUMER_OF_TWO, PRODUCER_OF_TWO],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (q, ring, ones, items, out, sinks, tiles, factor, 0, SHAPE)),
                (_consume, (q, ring, ones, items, out, sinks, tiles, factor, 1, SHAPE)),
                (_consume, (q, ring, ones, items, out, sinks, tiles, factor, 2, SHAPE)),
                (_produce, (queries, keys, values, q, ring, tables, items, tiles, table_stride, SHAPE)),
            ],
            [4, 4, 1],
            [CONSUMER_OF_THREE, CONSUMER_OF_THREE, PRODUCER_OF_THREE],
        )  # fmt: skip
