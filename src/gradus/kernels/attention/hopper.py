"""Attention of long prompts on Hopper: one warp copies pages, two warpgroups multiply and take exponentials.

Written in Gluon, Triton's lower level, because `paged_attention` waits in turn for its keys, its products and its
exponentials, and Triton lets no two of them overlap there. Here they do, after FlashAttention-3 (Shah et al. 2024):

- *Warp specialization* (its section 3.1). A producer, one warp, asks the copy engine (TMA) for pages, a block of keys
  ahead. Two consumers, of four warps each, have half of a tile's rows each, and most of the registers. While one waits,
  the other multiplies.
- *Softmax during products* (its section 3.2). A consumer issues the scores of the next block before the values'
  product of this one, so the matrix units still multiply while the exponentials of the next block are taken.
- *Persistent programs*: one per multiprocessor, which has shared memory for no second, each with many tiles. The
  producer copies the next tile's queries and keys while the consumers write the last one's results.

Blocks are taken last to first: the masked ones come first, and the loop over all the others has no mask.

A page is a box of its own for the copy engine, [1, 16, 64] of the cache [pages, 16, Hkv * 128]: a column of 128 bytes,
which shared memory swizzles as the matrix units want it. The box of a page that is not full begins before the page, so
that the last row lies at the box's end: rows outside of the page arrive as zeros, and rows not written yet are never
read.

Layouts: q [N, Hq, 128], keys and values [pages, 16, Hkv, 128], tables [slots, width], out [N, Hq, 128], all bfloat16
but the tables. Sums are in float32. Moves: every visible key and value once for each tile of 128 rows that sees it.
"""

from collections.abc import Sequence
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

from gradus.kernels.attention.launch import HOPPER, HOPPER_HEAD_DIM, HOPPER_PAGE
from gradus.kernels.attention.work import Work

LOG2_E = 1.4426950408889634  # exp(x) = exp2(x log2 e)

ITEM = gl.constexpr(9)  # numbers of a work item: see `attention_work`
HEAD_DIM = gl.constexpr(HOPPER_HEAD_DIM)
PAGE = gl.constexpr(HOPPER_PAGE)
KEYS = gl.constexpr(HOPPER.keys)  # of a block
STAGES = gl.constexpr(HOPPER.stages)  # blocks of keys, and of values, that shared memory has room for
ROWS = gl.constexpr(HOPPER.rows // 2)  # of a consumer: what its matrix units multiply at once
COLUMN = gl.constexpr(64)  # values of a swizzled row of shared memory, 128 bytes
COLUMNS = gl.constexpr(HOPPER_HEAD_DIM // 64)
BLOCK_PAGES = gl.constexpr(HOPPER.keys // HOPPER_PAGE)
# Per thread. All 384 begin with 168; one warpgroup is there for the one warp that copies and needs few.
CONSUMER_REGISTERS = gl.constexpr(232)
PRODUCER_REGISTERS = gl.constexpr(40)

BOX = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)  # of a box


class HopperPrompts:
    """The kernel, on one cache. Copying needs a descriptor of each layer's keys and values: they are made once."""

    def __init__(self, pages: Sequence[tuple[Tensor, Tensor]], processors: int) -> None:
        """pages: of each layer, its keys and its values, bfloat16 [pages, 16, Hkv, 128]. processors: of the GPU."""
        self.pages = [(_by_page(keys), _by_page(values)) for keys, values in pages]
        self.heads, self.processors = pages[0][0].shape[2], processors

    def attend(self, index: int, q: Tensor, tables: Tensor, work: Work, out: Tensor, scale: float) -> None:
        """Attend causally in layer `index`, as `work` was laid out; fills the rows of `out` that it covers.

        q: [N, Hq, 128], rows any distance apart. Keys of the step's own tokens must be stored already. `work` has the
        shape `HOPPER`, and spans that are at least as long as they have new tokens. One launch, nothing is read back.
        """
        group, total = q.shape[1] // self.heads, len(work.items) * self.heads
        queries = TensorDescriptor(q, [*q.shape], [*q.stride()], [ROWS.value // group, group, COLUMN.value], BOX)
        hopper_attention[(min(self.processors, total),)](
            queries, *self.pages[index], out, tables, work.items, total, tables.stride(0), scale * LOG2_E,
            HEADS=self.heads, GROUP=group, num_warps=4,
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
def products() -> gl.NVMMADistributedLayout:
    """Lay out scores [ROWS, KEYS], and sums of values [ROWS, HEAD_DIM], in a consumer's four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])


@gluon.constexpr_function
def per_row() -> gl.SliceLayout:
    return gl.SliceLayout(1, products())


@gluon.constexpr_function
def factors() -> gl.DotOperandLayout:
    """Lay out the weights that values are multiplied by: they stay in registers."""
    return gl.DotOperandLayout(0, products(), 2)


@gluon.constexpr_function
def stored() -> gl.BlockedLayout:
    """Lay out results: 16 bytes per thread, two whole rows per warp."""
    return gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])


# -- shared memory, and who may touch it -------------------------------------------------------------------------------


class Ring(NamedTuple):
    """Blocks in shared memory, filled by the producer and read by both consumers; the n-th is in place n % STAGES.

    full, empty: a barrier per place, whose phase turns when all bytes have arrived, and when both have read them.
    Queries have a single place.
    """

    blocks: Any
    full: Any
    empty: Any


@gluon.jit
def _ring(ROWS: constexpr) -> Ring:
    """Allocate a ring of blocks of ROWS rows."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    return Ring(gl.allocate_shared_memory(gl.bfloat16, [STAGES, ROWS, HEAD_DIM], swizzled()), full, empty)


@gluon.jit
def _until_full(ring: Ring, n: int) -> None:
    mbarrier.wait(ring.full.index(n % STAGES), (n // STAGES) & 1)


@gluon.jit
def _until_empty(ring: Ring, n: int) -> None:
    """In the first round this does not wait, since a barrier's phase before its first counts as completed."""
    mbarrier.wait(ring.empty.index(n % STAGES), ((n // STAGES) & 1) ^ 1)


@gluon.jit
def _done_with(ring: Ring, n: int) -> None:
    mbarrier.arrive(ring.empty.index(n % STAGES))


@gluon.jit
def _tile(turn: int) -> tensor:
    """A program's tile number `turn`, counted over key heads: a round there and the next one back.

    The first tiles of a round have the most keys, so that no program always gets the longest.
    """
    program = gl.program_id(0)
    return turn * gl.num_programs(0) + program + (gl.num_programs(0) - 1 - 2 * program) * (turn & 1)


# -- the producer ------------------------------------------------------------------------------------------------------


@gluon.jit
def _page_numbers(table: tensor, block: tensor, last: tensor) -> tensor:
    """Read the page numbers of a block of keys; behind the last page, that page's again."""
    pages = ()
    for i in gl.static_range(BLOCK_PAGES):
        page = gl.load(table + gl.minimum(block * BLOCK_PAGES + i, last)).to(gl.int32)
        pages = pages + (page,)  # type: ignore[assignment]  # noqa: RUF005
    return pages


@gluon.jit
def _copy_block(source: tensor, ring: Ring, n: int, pages: tensor, block: tensor, high: tensor, head: tensor) -> None:
    """Copy the keys or values of a block to the n-th place, once that is empty. high: one behind the tile's last key.

    The box of a page begins earlier by the rows that the page lacks, and that of a page behind the last one lies
    outside of any page: zeros come from there.
    """
    _until_empty(ring, n)
    stage = n % STAGES
    full = ring.full.index(stage)
    boxes = ring.blocks._reinterpret(gl.bfloat16, [STAGES * COLUMNS * BLOCK_PAGES, 1, PAGE, COLUMN], source.layout)
    mbarrier.expect(full, KEYS * HEAD_DIM * 2)
    for i in gl.static_range(BLOCK_PAGES):
        begin = gl.minimum(gl.maximum(high - (block * BLOCK_PAGES + i + 1) * PAGE, -PAGE), 0)
        for column in gl.static_range(COLUMNS):
            tma.async_copy_global_to_shared(
                source, [pages[i], begin, head * HEAD_DIM + column * COLUMN], full,
                boxes.index((stage * COLUMNS + column) * BLOCK_PAGES + i),
            )  # fmt: skip


@gluon.jit
def _copy_queries(source: tensor, q: Ring, tiles: int, first: tensor, head: tensor, GROUP: constexpr) -> None:
    """Copy both halves of a tile, whose first token is row `first` of the batch, once the tile before is read."""
    TOKENS: constexpr = ROWS // GROUP
    boxes = q.blocks._reinterpret(gl.bfloat16, [2 * COLUMNS, TOKENS, GROUP, COLUMN], source.layout)
    mbarrier.wait(q.empty, (tiles & 1) ^ 1)
    mbarrier.expect(q.full, 2 * ROWS * HEAD_DIM * 2)
    for half in gl.static_range(2):
        for column in gl.static_range(COLUMNS):
            tma.async_copy_global_to_shared(
                source, [first + half * TOKENS, head * GROUP, column * COLUMN], q.full,
                boxes.index(half * COLUMNS + column),
            )  # fmt: skip


@gluon.jit
def _produce(
    queries: tensor, keys: tensor, values: tensor, q: Ring, k: Ring, v: Ring, tables: tensor, items: tensor,
    total: tensor, table_stride: tensor, HEADS: constexpr, GROUP: constexpr,
) -> None:  # fmt: skip
    """Copy blocks in the consumers' order: the keys of a block before the values of the previous one."""
    n = 0
    tiles = 0
    for turn in range(0, (total + gl.num_programs(0) - 1) // gl.num_programs(0)):
        index = _tile(turn)
        head = index % HEADS
        at = items + index // HEADS * ITEM
        tokens = gl.load(at + 1, mask=index < total, other=0)
        if tokens > 0:
            table = tables + gl.load(at + 3).to(gl.int64) * table_stride
            low = gl.load(at + 4)
            high = gl.load(at + 5)
            last = (high - 1) // PAGE
            begin = low // KEYS
            end = (high - 1) // KEYS
            _copy_queries(queries, q, tiles, gl.load(at), head, GROUP)
            pages = _page_numbers(table, end, last)
            _copy_block(keys, k, n, pages, end, high, head)
            for step in range(0, end - begin):
                block = end - step
                nexts = _page_numbers(table, block - 1, last)
                _copy_block(keys, k, n + 1, nexts, block - 1, high, head)
                _copy_block(values, v, n, pages, block, high, head)
                pages = nexts
                n += 1
            _copy_block(values, v, n, pages, begin, high, head)
            n += 1
            tiles += 1


# -- the consumers -----------------------------------------------------------------------------------------------------


@gluon.jit
def _masked(score: tensor, block: tensor, high: tensor, position: tensor) -> tensor:
    """Set the scores of keys that a row may not see to -inf. The last page lies shifted: see `_copy_block`."""
    column = gl.arange(0, KEYS, layout=gl.SliceLayout(0, products()))
    number = block * KEYS + column
    shift = gl.maximum((number // PAGE + 1) * PAGE - high, 0)
    key = number - shift
    visible = (column % PAGE >= shift)[None, :] & (key[None, :] <= position[:, None])
    return gl.where(visible, score, float("-inf"))


@gluon.jit
def _weights(score: tensor, peak: tensor, total: tensor, factor: tensor, MASKED: constexpr) -> tensor:
    """Turn a block's scores into (weights, the factor by which older sums shrink, the new peak and sum of weights)."""
    new_peak = gl.maximum(peak, gl.max(score, 1) * factor)
    # a row that has seen nothing yet: exp2(-inf - 0) is 0, and -inf - -inf would be NaN
    base = gl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
    weight = gl.exp2(score * factor - base[:, None])
    shrink = gl.exp2(peak - base)
    return weight, shrink, new_peak, total * shrink + gl.sum(weight, 1)


@gluon.jit
def _scores(q: tensor, k: Ring, n: int) -> tensor:
    """Issue the product of the queries and the n-th block's keys, once that is there."""
    zeros = gl.zeros([ROWS, KEYS], gl.float32, products())
    _until_full(k, n)
    return warpgroup_mma(q, k.blocks.index(n % STAGES).permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _first_block(
    q: tensor, k: Ring, v: Ring, n: int, block: tensor, high: tensor, position: tensor, factor: tensor
) -> tensor:
    """Compute the last block's weights, in bfloat16, its peaks and its sums of weights."""
    score = warpgroup_mma_wait(0, deps=[_scores(q, k, n)])
    _done_with(k, n)
    score = _masked(score, block, high, position)
    peak = gl.full([ROWS], float("-inf"), gl.float32, per_row())
    total = gl.zeros([ROWS], gl.float32, per_row())
    weight, _, peak, total = _weights(score, peak, total, factor, True)
    weights = gl.convert_layout(weight.to(gl.bfloat16), factors())
    _until_full(v, n)
    return weights, peak, total


@gluon.jit
def _blocks(
    weights: tensor, seen: tensor, peak: tensor, total: tensor, n: int, begin: tensor, end: tensor, q: tensor,
    k: Ring, v: Ring, high: tensor, position: tensor, factor: tensor, MASKED: constexpr,
) -> tensor:  # fmt: skip
    """Take in blocks end - 1 … begin: the scores of each, during the values' product of the block after it."""
    for step in range(0, end - begin):
        score = _scores(q, k, n + 1)
        seen = warpgroup_mma(weights, v.blocks.index(n % STAGES), seen, is_async=True)
        score = warpgroup_mma_wait(1, deps=[score])  # the scores alone: the other product goes on
        _done_with(k, n + 1)
        if MASKED:
            score = _masked(score, end - 1 - step, high, position)
        weight, shrink, peak, total = _weights(score, peak, total, factor, MASKED)
        weights = gl.convert_layout(weight.to(gl.bfloat16), factors())
        # Waited for here already, since ptxas moves no exponential past it: they are taken while `seen` is summed.
        _until_full(v, n + 1)
        seen, weights = warpgroup_mma_wait(0, deps=[seen, weights])
        _done_with(v, n)
        seen = seen * shrink[:, None]
        n += 1
    return weights, seen, peak, total, n


@gluon.jit
def _store(
    out: tensor, seen: tensor, total: tensor, first: tensor, tokens: tensor, head: tensor,
    HALF: constexpr, HEADS: constexpr, GROUP: constexpr,
) -> None:  # fmt: skip
    """Write a consumer's rows, those that have a token, to `out` from row `first` on."""
    total = gl.where(total > 0, total, 1.0)
    seen = gl.convert_layout((seen / total[:, None]).to(gl.bfloat16), stored())
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, stored()))
    d = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, stored()))
    token = HALF * (ROWS // GROUP) + row // GROUP
    place = (token * (HEADS * GROUP) + head * GROUP + row % GROUP) * HEAD_DIM
    out += first.to(gl.int64) * (HEADS * GROUP * HEAD_DIM)
    gl.store(out + place[:, None] + d[None, :], seen, mask=(token < tokens)[:, None] & (d < HEAD_DIM)[None, :])


@gluon.jit
def _consume(
    queries: Ring, k: Ring, v: Ring, items: tensor, out: tensor, total_items: tensor, factor: tensor,
    HALF: constexpr, HEADS: constexpr, GROUP: constexpr,
) -> None:  # fmt: skip
    """Attend for one half of each tile's rows. factor: of a score, before exp2."""
    q = queries.blocks.index(HALF)
    n = 0
    tiles = 0
    for turn in range(0, (total_items + gl.num_programs(0) - 1) // gl.num_programs(0)):
        index = _tile(turn)
        head = index % HEADS
        at = items + index // HEADS * ITEM
        tokens = gl.load(at + 1, mask=index < total_items, other=0)
        if tokens > 0:
            start = gl.load(at + 2) + HALF * (ROWS // GROUP)
            low = gl.load(at + 4)
            high = gl.load(at + 5)
            position = start + gl.arange(0, ROWS, layout=per_row()) // GROUP
            begin = low // KEYS
            end = (high - 1) // KEYS
            middle = gl.minimum(end, gl.maximum((start + 1) // KEYS, begin))  # before it, all rows see all keys
            mbarrier.wait(queries.full, tiles & 1)
            weights, peak, total = _first_block(q, k, v, n, end, high, position, factor)
            seen = gl.zeros([ROWS, HEAD_DIM], gl.float32, products())
            weights, seen, peak, total, n = _blocks(
                weights, seen, peak, total, n, middle, end, q, k, v, high, position, factor, True
            )
            weights, seen, peak, total, n = _blocks(
                weights, seen, peak, total, n, begin, middle, q, k, v, high, position, factor, False
            )
            mbarrier.arrive(queries.empty)
            seen = warpgroup_mma(weights, v.blocks.index(n % STAGES), seen, is_async=True)
            seen = warpgroup_mma_wait(0, deps=[seen])
            _done_with(v, n)
            n += 1
            tiles += 1
            _store(out, seen, total, gl.load(at), tokens, head, HALF, HEADS, GROUP)


# -- the launch --------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["total", "table_stride"])
def hopper_attention(
    queries: tensor, keys: tensor, values: tensor, out: tensor, tables: tensor, items: tensor, total: int,
    table_stride: int, factor: float, HEADS: constexpr, GROUP: constexpr,
) -> None:  # fmt: skip
    """queries, keys, values: descriptors. total: tiles of all key heads, work items times HEADS."""
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=2)
    q = Ring(gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, HEAD_DIM], swizzled()), q_full, q_empty)
    k = _ring(KEYS)
    v = _ring(KEYS)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (q, k, v, items, out, total, factor, 0, HEADS, GROUP)),
            (_consume, (q, k, v, items, out, total, factor, 1, HEADS, GROUP)),
            (_produce, (queries, keys, values, q, k, v, tables, items, total, table_stride, HEADS, GROUP)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
