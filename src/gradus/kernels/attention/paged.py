"""Attention that reads keys and values where they lie: in pages, through the block table.

One kernel for every kind of step. A decode is a tile of one token, a verification of k + 1, a prefill or a chunk of it
is many tiles; what a tile does is the same: go over its keys once, some tens at a time (`online_softmax`). Three ideas
carry it:

- Query heads that share a key head are rows of one tile, next to each other: keys are read once for all of them. The
  matrix units want 16 rows at least, so a lone token of a group of 2 leaves 14 empty. That costs nothing: a decode
  waits for memory.
- A page is a table lookup away, so nothing is gathered first: the torch backend copies the whole cache in every step
  and layer.
- Where there are too few tiles to fill the GPU, their keys are split (Flash-Decoding: Dao et al. 2023), as
  `attention_work` decides. Each split leaves a partial result, and the last one to finish adds them up. A second
  launch for that would weigh most where there is least to do, at batch 1.

Layouts: q [N, Hq, Dh] with rows any distance apart, keys and values [pages, page_size, Hkv, Dh], tables [slots, width]
of integers, out [N, Hq, Dh]. Sums are in float32, whatever the inputs are. Keys and values may be e4m3 with scales of
their own: then they are widened to the queries' type, a key's scale multiplies its scores, and a value's scale the
weights that it gets. Moves: every visible key and value once for each tile that sees it (decode: once), 2 · Hkv · Dh
values per position; queries, outputs and partials hardly count.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.attention.launch import SMALLEST_TILE, Launch
from gradus.kernels.attention.new_token import MOST_NEW, new_tokens, store_and_take_in
from gradus.kernels.attention.online_softmax import sweep
from gradus.kernels.attention.splits import Partials, merge_splits
from gradus.kernels.attention.work import ITEM, Work
from gradus.kernels.core.constants import LOG2_E
from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.rows.passage import NOTHING, Passage

NEAR = 1 << 31  # values that offsets of 32 bits reach
MERGED_PER_WARP = 1024  # values that a warp adds up at once: 32 registers of each thread


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    work: Work,
    partials: Partials,
    out: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    passage: Passage | None = None,
    scales: tuple[Tensor, Tensor] | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Attend causally, as `work` was laid out for this step; fills the rows of `out` that it covers.

    The keys of this step's own tokens must be stored already. Or `passage` is given, every span has MOST_NEW tokens at
    most and fits one tile, and q is the qkv product [N, (Hq + 2 Hkv) Dh] (see `new_token`). One launch, and nothing is
    read back.
    scales: of keys and of values, float32 [pages, Hkv, page_size] each, where those are e4m3.
    sinks: float32 [Hq], one more logit of each query head's softmax, whose value is nothing.
    """
    page, heads, head_dim = keys.shape[1:]
    launch, group = work.launch, out.shape[1] // heads
    far = keys.numel() >= NEAR
    shape = constants(
        launch, group, heads, head_dim, work.longest, page, work.window, softcap is not None, far,
        eight_bits=scales is not None, packed=q.is_cuda and q.dtype != torch.float32,
    )  # fmt: skip
    early = starts_early()
    rotary, norms, eps, across, growth, value_eps = passage or NOTHING
    assert not across, "no program sees all heads of a token"
    q_gain, k_gain = norms or (None, None)
    key_scales, value_scales = scales or (None, None)
    kernel = _attend[(heads, len(work.items))](
        out, partials.sums, partials.peaks, partials.totals, partials.tickets, q, keys, values, tables, work.items,
        rotary, growth, q_gain, k_gain, key_scales, value_scales, sinks, q.stride(0), tables.stride(0), scale,
        softcap or 1.0, eps, value_eps,
        **shape, NEW=0 if passage is None else 1 if work.longest == 1 else MOST_NEW, PDL=early,
        num_warps=launch.warps, num_stages=launch.stages, launch_pdl=early,
    )  # fmt: skip
    work.kernels.add(kernel)  # None where Triton interprets it


@cache
def constants(
    launch: Launch, group: int, heads: int, head_dim: int, tokens: int, page: int, window: int | None, softcap: bool,
    far: bool, eight_bits: bool = False, packed: bool = True,
) -> dict[str, int | bool]:  # fmt: skip
    """List the constants that the kernel is compiled for.

    tokens: the most that a tile has; partial results keep their rows.

    eight_bits, packed: keys and values are e4m3, and how they are widened (`online_softmax`).
    """
    width = max(triton.next_power_of_2(head_dim), 2 * SMALLEST_TILE if eight_bits else 0)
    taken = triton.next_power_of_2(group * tokens)
    return {
        "GROUP": group, "HEADS": heads, "HEAD_DIM": head_dim, "PAGE": page, "WINDOW": window or 0, "SOFTCAP": softcap,
        "ROWS": launch.rows, "KEYS": launch.keys, "WIDTH": width, "UNMASKED": launch.rows > 16 and not window,
        "AHEAD": launch.halves or launch.rows > 16, "FAR": far, "TAKEN": taken, "PACKED": packed,
        "HALVES": launch.halves,
        "SPLITS": max(1, launch.warps * MERGED_PER_WARP // (taken * width)),
    }  # fmt: skip


@triton.jit
def _attend(
    out: tensor, sums: tensor, peaks: tensor, totals: tensor, tickets: tensor, q: tensor, keys: tensor,
    values: tensor, tables: tensor, items: tensor, rotary: tensor, growth: tensor, q_gain: tensor, k_gain: tensor,
    key_scales: tensor, value_scales: tensor, sinks: tensor, q_stride: int, table_stride: int, scale: float,
    softcap: float, eps: float, value_eps: constexpr, NEW: constexpr, PDL: constexpr,
    GROUP: constexpr, HEADS: constexpr, HEAD_DIM: constexpr, PAGE: constexpr, WINDOW: constexpr, SOFTCAP: constexpr,
    ROWS: constexpr, KEYS: constexpr, WIDTH: constexpr, UNMASKED: constexpr, AHEAD: constexpr,
    FAR: constexpr, PACKED: constexpr, HALVES: constexpr, TAKEN: constexpr, SPLITS: constexpr,
) -> None:  # fmt: skip
    """Program (key head, item): heads next to each other in time, since they are next to each other in a page."""
    let_next_start(PDL)
    head, at = tl.program_id(0), items + tl.program_id(1) * ITEM
    first, tokens, position, slot = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    low, high, partial = tl.load(at + 4), tl.load(at + 5), tl.load(at + 8)
    split, splits = tl.load(at + 6), tl.load(at + 7)
    wait_for_previous(PDL)  # for queries and keys: the work was laid out before the step's first launch, which waited
    if tokens == 0:
        return

    row, d, token = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, ROWS) // GROUP
    there = ((row < ROWS // GROUP * GROUP) & (token < tokens))[:, None] & (d < HEAD_DIM)[None, :]
    head_d = (head * GROUP + row % GROUP)[:, None] * HEAD_DIM + d[None, :]
    keys, values, table = keys + head * HEAD_DIM, values + head * HEAD_DIM, tables + slot.to(tl.int64) * table_stride
    if key_scales is not None:
        key_scales, value_scales = key_scales + head * PAGE, value_scales + head * PAGE
    seen, total, peak = _begun(sinks, head, split, GROUP, ROWS, WIDTH)
    if NEW:
        queries, key, key_partner, value, last, page = new_tokens(
            q + first.to(tl.int64) * q_stride, q_stride, rotary, growth, q_gain, table, position, tokens, split, splits,
            head, there, eps, GROUP, HEADS, HEAD_DIM, PAGE, ROWS, WIDTH, NEW,
        )  # fmt: skip
        high = tl.minimum(high, position)
    else:
        queries = tl.load(q + (first + token).to(tl.int64)[:, None] * q_stride + head_d, mask=there, other=0.0)
    seeing = None if HALVES and TAKEN < 2 * GROUP else position + token  # a lone token sees all keys of its item
    if UNMASKED:  # a long tile spends nearly all its time on keys that every row sees; else one loop does it all
        middle = tl.maximum(tl.minimum(high, (position + 1) // KEYS * KEYS), low)
        seen, total, peak = sweep(
            seen, total, peak, queries, keys, values, key_scales, value_scales, table, low, middle, high,
            seeing, scale, softcap, False, HEADS, HEAD_DIM, PAGE, WINDOW, SOFTCAP, KEYS, WIDTH, AHEAD, FAR, PACKED,
            HALVES,
        )  # fmt: skip
        low = middle
    seen, total, peak = sweep(
        seen, total, peak, queries, keys, values, key_scales, value_scales, table, low, high, high,
        seeing, scale, softcap, True, HEADS, HEAD_DIM, PAGE, WINDOW, SOFTCAP, KEYS, WIDTH, AHEAD, FAR, PACKED, HALVES,
    )  # fmt: skip

    if NEW:
        seen, total, peak = store_and_take_in(
            seen, total, peak, queries, key, key_partner, value, page, keys, values, key_scales, value_scales, rotary,
            k_gain, position, tokens, last, scale, softcap, eps, value_eps, GROUP, HEADS, HEAD_DIM, PAGE, WIDTH, WINDOW,
            SOFTCAP, NEW,
        )  # fmt: skip
    _write(
        out + first.to(tl.int64) * (HEADS * GROUP * HEAD_DIM), sums, peaks, totals, tickets, seen, total, peak,
        partial, split, splits, head, tokens, token, there, head_d,
        GROUP, HEADS, HEAD_DIM, ROWS, WIDTH, TAKEN, SPLITS,
    )  # fmt: skip


@triton.jit
def _begun(sinks: tensor, head: int, split: tensor, GROUP: constexpr, ROWS: constexpr, WIDTH: constexpr) -> tensor:
    """Begin a tile's softmax: with nothing, or, in its first split, with the sinks. They are keys without values."""
    seen = tl.zeros([ROWS, WIDTH], tl.float32)
    total, peak = tl.zeros([ROWS], tl.float32), tl.full([ROWS], float("-inf"), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head * GROUP + tl.arange(0, ROWS) % GROUP) * LOG2_E
        total, peak = tl.where(split == 0, 1.0, total), tl.where(split == 0, sink, peak)
    return seen, total, peak


@triton.jit
def _write(
    out: tensor, sums: tensor, peaks: tensor, totals: tensor, tickets: tensor, seen: tensor, total: tensor,
    peak: tensor, partial: tensor, split: tensor, splits: int, head: int, tokens: int, token: tensor, there: tensor,
    head_d: tensor,
    GROUP: constexpr, HEADS: constexpr, HEAD_DIM: constexpr, ROWS: constexpr, WIDTH: constexpr, TAKEN: constexpr,
    SPLITS: constexpr,
) -> None:  # fmt: skip
    """Write the tile's rows from `out` on. A split leaves its result, and the last of them adds all up and writes."""
    row, d = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    if splits == 1:
        total = tl.where(total > 0, total, 1.0)  # nothing seen: zeros, not 0 / 0
        tl.store(out + token[:, None] * (HEADS * GROUP * HEAD_DIM) + head_d, seen / total[:, None], mask=there)
    else:
        left = ((partial + split).to(tl.int64) * HEADS + head) * TAKEN + row
        tl.store(sums + left[:, None] * HEAD_DIM + d[None, :], seen, mask=there)
        tl.store(totals + left, total, mask=(row < TAKEN) & (token < tokens))
        tl.store(peaks + left, peak, mask=(row < TAKEN) & (token < tokens))
        tl.debug_barrier()  # all of this program's warps have stored, before one of them says so
        ticket = tickets + partial * HEADS + head
        if tl.atomic_add(ticket, 1, sem="acq_rel") == splits - 1:  # the last to come adds up for all
            tl.store(ticket, 0)
            merged = merge_splits(sums, peaks, totals, partial, splits, head, HEADS, HEAD_DIM, TAKEN, WIDTH, SPLITS)
            m = tl.arange(0, TAKEN)
            place = (m // GROUP * (HEADS * GROUP) + head * GROUP + m % GROUP)[:, None] * HEAD_DIM + d[None, :]
            tl.store(out + place, merged, mask=(m // GROUP < tokens)[:, None] & (d < HEAD_DIM)[None, :])
