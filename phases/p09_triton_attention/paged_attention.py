"""Attention that reads the pages where they lie: one Triton kernel for decodes, prompts and chunks.

A program owns a tile of queries: some tokens of one span, and for each token the query heads that share a key head. It
walks over the keys that the tile sees, KEYS at a time, looks up in the block table where each of them is, and finishes
the softmax as it goes (Milakov and Gimelshein 2018; FlashAttention: Dao et al. 2022). Every key and value is read once,
and the copy of p04's gather is never written.

The grid follows from shapes alone; how much each program attends to is read on the device. p10 will need that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

KEYS = 32  # keys that a program processes at once
DECODE_ROWS = 16  # queries of a tile: the least that matrix units multiply
PROMPT_ROWS = 64


@triton.jit
def take_in(seen: tensor, total: tensor, peak: tensor, score: tensor, values: tensor) -> tensor:
    """The online softmax: add more keys to what the rows have seen.

    score: [rows, KEYS], -inf where a key is hidden. values: [KEYS, width]. Kept for each row: peak, its greatest score
    so far; total, the sum of exp(score - peak); seen [rows, width], the sum of exp(score - peak) * value.
    """
    new_peak = tl.maximum(peak, tl.max(score, 1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet: -inf - -inf would be NaN
    weight = tl.exp(score - base[:, None])
    shrink = tl.exp(peak - base)  # a greater score makes everything before it smaller
    total = total * shrink + tl.sum(weight, 1)
    seen = seen * shrink[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
    return seen, total, new_peak


@triton.jit
def paged_attention_kernel(
    out: tensor, q: tensor, keys: tensor, values: tensor, tables: tensor, query_start: tensor, lengths: tensor,
    sinks: tensor, table_width: int, scale: float, softcap: float,
    HEADS: constexpr, GROUP: constexpr, HEAD_DIM: constexpr, PAGE: constexpr, WINDOW: constexpr, SOFTCAP: constexpr,
    ROWS: constexpr, KEYS: constexpr, WIDTH: constexpr,
) -> None:  # fmt: skip
    """Program (span, tile, key head). WIDTH: HEAD_DIM, rounded up to a power of two."""
    span, tile, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(query_start + span)
    count = tl.load(query_start + span + 1) - first
    length = tl.load(lengths + span)
    TOKENS: constexpr = ROWS // GROUP
    begin = tile * TOKENS
    if begin >= count:  # the grid has as many tiles for each span as the longest one needs
        return

    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    token = begin + row // GROUP
    position = length - count + token
    mine = ((row < TOKENS * GROUP) & (token < count))[:, None] & (lane < HEAD_DIM)[None, :]
    query = (first + token) * (HEADS * GROUP) + head * GROUP + row % GROUP
    at = query.to(tl.int64)[:, None] * HEAD_DIM + lane[None, :]
    queries = tl.load(q + at, mask=mine, other=0.0)

    pages = tables + span.to(tl.int64) * table_width
    stop = tl.minimum(length, length - count + begin + TOKENS)  # after the newest key that the tile sees
    start = tl.maximum(length - count + begin - WINDOW + 1, 0) if WINDOW else 0
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total, seen = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)
    if sinks is not None:  # a score that comes first, and has no value
        peak, total = tl.load(sinks + head * GROUP + row % GROUP), total + 1
    for low in range(start, stop, KEYS):
        key = low + tl.arange(0, KEYS)
        page = tl.load(pages + key // PAGE, mask=key < stop, other=0).to(tl.int64)
        place = ((page * PAGE + key % PAGE) * HEADS + head)[:, None] * HEAD_DIM + lane[None, :]
        stored = (key < stop)[:, None] & (lane < HEAD_DIM)[None, :]  # beyond it there may be anything, even NaN
        k = tl.load(keys + place, mask=stored, other=0.0)
        v = tl.load(values + place, mask=stored, other=0.0)
        score = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP:
            score = softcap * (2 * tl.sigmoid(2 * score / softcap) - 1)  # softcap * tanh(score / softcap)
        visible = key[None, :] <= position[:, None]
        if WINDOW:
            visible = visible & (key[None, :] > position[:, None] - WINDOW)
        seen, total, peak = take_in(seen, total, peak, tl.where(visible, score, float("-inf")), v)
    total = tl.where(total == 0.0, 1.0, total)  # a padded row sees nothing, and becomes 0
    tl.store(out + at, (seen / total[:, None]).to(out.dtype.element_ty), mask=mine)


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, query_start: Tensor, lengths: Tensor, *,
    longest: int, scale: float, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of S spans, whose new keys and values are stored already. Returns [N, Hq, Dh].

    q: [N, Hq, Dh], a span's rows one after the other. keys, values: [pages, page_size, Hkv, Dh]. tables: [S, W], the
    pages of each span's sequence. query_start: [S + 1], where a span's rows begin. lengths: [S], counting the new
    tokens; 0 is padding, whose rows become zeros. These are int64, on the device. longest: most new tokens of a span,
    from which the grid follows. window, softcap, sinks: as in `gradus.attention.reference.attend_causal`.
    """
    page, heads, head_dim = keys.shape[1:]
    group = q.shape[1] // heads
    q, out = q.contiguous(), torch.empty(q.shape, dtype=q.dtype, device=q.device)
    rows = max(DECODE_ROWS if longest == 1 else PROMPT_ROWS, triton.next_power_of_2(group))
    grid = (len(tables), triton.cdiv(longest, rows // group), heads)
    paged_attention_kernel[grid](
        out, q, keys, values, tables, query_start, lengths, sinks, tables.stride(0), scale, softcap or 0.0,
        HEADS=heads, GROUP=group, HEAD_DIM=head_dim, PAGE=page, WINDOW=window or 0, SOFTCAP=softcap is not None,
        ROWS=rows, KEYS=KEYS, WIDTH=max(16, triton.next_power_of_2(head_dim)), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def paged_attention_reference(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, query_start: Tensor, lengths: Tensor, *,
    longest: int, scale: float, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same in torch: each row gathers every page that its block table could name, and masks what it does not see.

    Far too much memory for real work. Its shapes do not depend on lengths either, so p10 records it where Triton has no
    GPU. `longest` is not needed here.
    """
    rows = torch.arange(len(q), device=q.device)
    span = torch.searchsorted(query_start, rows, right=True) - 1
    position = lengths[span] - query_start[span + 1] + rows
    k, v = (stored[tables[span]].flatten(1, 2).float() for stored in (keys, values))  # [N, W * page_size, Hkv, Dh]
    key = torch.arange(k.shape[1], device=q.device)
    visible = key <= position[:, None]
    if window is not None:
        visible &= key > position[:, None] - window
    grouped = q.float().unflatten(1, (keys.shape[2], -1))  # [N, Hkv, group, Dh]
    scores = torch.einsum("nhgd,nlhd->nhgl", grouped, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    if sinks is not None:
        last = sinks.view(scores.shape[1:3]).unsqueeze(-1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, last), -1)
    weights = scores.softmax(-1)[..., : len(key)].nan_to_num()
    v = v.masked_fill(~visible[:, :, None, None], 0)
    return torch.einsum("nhgl,nlhd->nhgd", weights, v).flatten(1, 2).to(q.dtype)
