"""Decodes whose keys are divided among several programs, so that one long sequence keeps a whole GPU busy.

With one program per key head, a step takes as long as the longest sequence's loop. Here PARTS programs share that loop.
Each leaves the three numbers of the online softmax instead of a result, and a second kernel puts them together
(Flash-Decoding: Dao et al. 2023).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from phases.p09_triton_attention.paged_attention import DECODE_ROWS, KEYS, paged_attention, take_in

PROCESSORS = 132  # of an H200: with fewer programs than that, some have nothing to do


@triton.jit
def keys_of_part(length: tensor, part: tensor, PARTS: constexpr, KEYS: constexpr) -> tensor:
    """Which of the keys 0 to length - 1 program `part` of PARTS reads: (start, stop). It has none if start >= stop.

    Every key belongs to one part. A program reads KEYS at a time, and none makes more trips than an even share needs.
    """
    blocks = tl.cdiv(length, KEYS)
    start = part * blocks // PARTS * KEYS
    stop = (part + 1) * blocks // PARTS * KEYS
    return start, tl.minimum(stop, length)


@triton.jit
def merge_parts(seen: tensor, total: tensor, peak: tensor) -> tensor:
    """The softmax over all parts' keys, from what each part kept of its own: [WIDTH].

    seen: [PARTS, WIDTH], total and peak: [PARTS], as in `take_in`. A part without keys has a peak of -inf and sums of
    0. Without any key the result is 0.
    """
    highest = tl.max(peak, 0)
    shrink = tl.exp(peak - tl.where(highest == float("-inf"), 0.0, highest))  # -inf - -inf would be NaN
    total = tl.sum(total * shrink, 0)
    return tl.sum(seen * shrink[:, None], 0) / tl.where(total == 0.0, 1.0, total)


@triton.jit
def attend_part_kernel(
    seen_ptr: tensor, total_ptr: tensor, peak_ptr: tensor, q: tensor, keys: tensor, values: tensor, tables: tensor,
    lengths: tensor, table_width: int, scale: float, HEADS: constexpr, GROUP: constexpr, HEAD_DIM: constexpr,
    PAGE: constexpr, PARTS: constexpr, ROWS: constexpr, KEYS: constexpr, WIDTH: constexpr,
) -> None:  # fmt: skip
    """Program (sequence, part, key head): `paged_attention_kernel` for one new token and a part of the keys."""
    sequence, part, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = keys_of_part(tl.load(lengths + sequence), part, PARTS, KEYS)
    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    query = sequence.to(tl.int64) * (HEADS * GROUP) + head * GROUP + row
    mine = (row < GROUP)[:, None] & (lane < HEAD_DIM)[None, :]
    queries = tl.load(q + query[:, None] * HEAD_DIM + lane[None, :], mask=mine, other=0.0)

    pages = tables + sequence.to(tl.int64) * table_width
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total, seen = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)
    for low in range(start, stop, KEYS):
        key = low + tl.arange(0, KEYS)
        page = tl.load(pages + key // PAGE, mask=key < stop, other=0).to(tl.int64)
        place = ((page * PAGE + key % PAGE) * HEADS + head)[:, None] * HEAD_DIM + lane[None, :]
        stored = (key < stop)[:, None] & (lane < HEAD_DIM)[None, :]
        k = tl.load(keys + place, mask=stored, other=0.0)
        v = tl.load(values + place, mask=stored, other=0.0)
        score = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
        seen, total, peak = take_in(seen, total, peak, tl.where(key[None, :] < stop, score, float("-inf")), v)
    left = query * PARTS + part
    tl.store(seen_ptr + left[:, None] * HEAD_DIM + lane[None, :], seen, mask=mine)
    tl.store(total_ptr + left, total, mask=row < GROUP)
    tl.store(peak_ptr + left, peak, mask=row < GROUP)


@triton.jit
def merge_parts_kernel(
    out: tensor, seen_ptr: tensor, total_ptr: tensor, peak_ptr: tensor,
    HEAD_DIM: constexpr, PARTS: constexpr, WIDTH: constexpr,
) -> None:  # fmt: skip
    """Program (query): the result of one query head of one sequence."""
    query = tl.program_id(0).to(tl.int64)
    part, lane = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    left, wide = query * PARTS + part, lane < HEAD_DIM
    seen = tl.load(seen_ptr + left[:, None] * HEAD_DIM + lane[None, :], mask=wide[None, :], other=0.0)
    result = merge_parts(seen, tl.load(total_ptr + left), tl.load(peak_ptr + left))
    tl.store(out + query * HEAD_DIM + lane, result.to(out.dtype.element_ty), mask=wide)


def split_attention(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Attention of decodes, one query per sequence, in two launches: q [S, Hq, Dh] → [S, Hq, Dh].

    The others as in `paged_attention`. The number of parts follows from shapes alone, as the grid must.
    """
    page, heads, head_dim = keys.shape[1:]
    sequences, query_heads = q.shape[:2]
    most = triton.cdiv(tables.shape[1] * page, KEYS)  # blocks of the longest sequence that the tables have room for
    parts = triton.next_power_of_2(min(triton.cdiv(PROCESSORS, sequences * heads), most))
    seen = torch.empty(sequences * query_heads, parts, head_dim, dtype=torch.float32, device=q.device)
    total, peak = (torch.empty(seen.shape[:2], dtype=torch.float32, device=q.device) for _ in range(2))
    q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
    group, width = query_heads // heads, max(16, triton.next_power_of_2(head_dim))
    attend_part_kernel[sequences, parts, heads](
        seen, total, peak, q, keys, values, tables, lengths, tables.stride(0), scale, HEADS=heads, GROUP=group,
        HEAD_DIM=head_dim, PAGE=page, PARTS=parts, ROWS=max(DECODE_ROWS, triton.next_power_of_2(group)), KEYS=KEYS,
        WIDTH=width, num_warps=4, num_stages=2,
    )  # fmt: skip
    merge_parts_kernel[(len(seen),)](out, seen, total, peak, HEAD_DIM=head_dim, PARTS=parts, WIDTH=width)
    return out


def attention(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, query_start: Tensor, lengths: Tensor, *,
    longest: int, scale: float, **special: Any,
) -> Tensor:  # fmt: skip
    """Attend like `paged_attention`, with the keys split in steps of decodes alone.

    special: window, softcap and sinks; a layer with one of them takes the first kernel.
    """
    if longest == 1 and not any(value is not None for value in special.values()):
        return split_attention(q, keys, values, tables, lengths, scale)
    return paged_attention(q, keys, values, tables, query_start, lengths, longest=longest, scale=scale, **special)
