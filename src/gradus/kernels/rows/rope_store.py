"""Between the qkv product and attention, in one pass: normalize heads, rotate them, write keys and values into pages.

Idea: separately, these take up to eight launches (two norms, two rotations of several kernels each, two scattered
writes), and each reads and writes the previous one's result. All of these operations treat heads separately, so
a program can take a head from the product's output to its destination without memory in between.

Where one norm spans all heads of a token (OLMo), every program reads them all again for their mean square, from the L2
cache. For a prompt those are about as many bytes as a launch of its own would move, and for few rows it saves a launch.

Elements moved per token: (Hq + 2 Hkv) Dh read, as many written; Dh of the rotary table and the norms' weights come
from the cache. Layout: qkv [N, (Hq + 2 Hkv) Dh], the heads of q, k and v side by side; a program takes HEADS of them,
all of one kind, as two tiles [HEADS, Dh / 2], because rotation pairs value i with value i + Dh / 2. A layer that
attends to another one's keys has queries alone.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.rows.e4m3 import largest_of, scales_of, to_e4m3
from gradus.kernels.rows.passage import NOTHING, Passage
from gradus.quantization.fp8 import E4M3


@triton.jit
def rope_store_kernel(
    qkv_ptr: tensor, q_ptr: tensor, keys_ptr: tensor, values_ptr: tensor, slots_ptr: tensor, positions_ptr: tensor,
    table_ptr: tensor, growth_ptr: tensor, q_weight_ptr: tensor, k_weight_ptr: tensor, key_scales_ptr: tensor,
    value_scales_ptr: tensor, eps: float, value_eps: constexpr,
    Q_HEADS: constexpr, KV_HEADS: constexpr, HALF: constexpr, HEADS: constexpr, BLOCK: constexpr, PAGE: constexpr,
    SPAN: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Token program_id(0), heads from program_id(1) * HEADS on. table: None: no rotation. q_weight: None: no norm.

    growth: of queries by position, after they are turned; None: none. value_eps: None: values have no norm. key_scales:
    None: keys and values are stored as they are. KV_HEADS: 0: there are queries alone, and nothing is stored. SPAN: 0:
    each head has a norm of its own; else lanes enough for all heads of a kind, which share one.
    """
    let_next_start(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    is_query = first < Q_HEADS
    head = first + tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    inside = (pair < HALF) & (head < Q_HEADS + 2 * KV_HEADS)
    row = qkv_ptr + token * ((Q_HEADS + 2 * KV_HEADS) * 2 * HALF)
    here = row + head * (2 * HALF) + pair
    low = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(here + HALF, mask=inside, other=0.0).to(tl.float32)
    if KV_HEADS:
        slot = tl.load(slots_ptr + token)

    if first < Q_HEADS + KV_HEADS:  # values carry no position
        if q_weight_ptr is not None:
            low, high = _normalized(
                low, high, row, q_weight_ptr, k_weight_ptr, is_query, head, pair, inside, eps,
                Q_HEADS, KV_HEADS, HALF, SPAN,
            )  # fmt: skip
        if table_ptr is not None:
            low, high = _rotated(low, high, table_ptr, growth_ptr, tl.load(positions_ptr + token), is_query, pair, HALF)
    elif value_eps is not None:
        scale = _scale_of(low, high, value_eps, HALF)
        low, high = low * scale, high * scale

    if KV_HEADS:
        inside = inside & (is_query | (slot >= 0))  # padding rows have no place in the storage
    there = q_ptr + token * (Q_HEADS * 2 * HALF) + head * (2 * HALF) + pair
    if KV_HEADS == 0:
        _store(there, low, high, inside, HALF)
    elif key_scales_ptr is None:
        if not is_query:
            if first < Q_HEADS + KV_HEADS:
                there = keys_ptr + slot * (KV_HEADS * 2 * HALF) + (head - Q_HEADS) * (2 * HALF) + pair
            else:
                there = values_ptr + slot * (KV_HEADS * 2 * HALF) + (head - Q_HEADS - KV_HEADS) * (2 * HALF) + pair
        _store(there, low, high, inside, HALF)
    elif is_query:
        _store(there, low, high, inside, HALF)
    else:
        dtype: tl.constexpr = qkv_ptr.dtype.element_ty  # rounded to it first, as where no kernel runs
        _store_in_8_bits(
            low.to(dtype), high.to(dtype), keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, slot, first, head,
            pair, inside, Q_HEADS, KV_HEADS, HALF, PAGE,
        )  # fmt: skip


@triton.jit
def _store(there: tensor, low: tensor, high: tensor, kept: tensor, HALF: constexpr) -> None:
    """Store heads in halves [HEADS, BLOCK], the first of which begins at `there`."""
    tl.store(there, low.to(there.dtype.element_ty), mask=kept)
    tl.store(there + HALF, high.to(there.dtype.element_ty), mask=kept)


@triton.jit
def _rotated(
    low: tensor, high: tensor, table: tensor, growth: tensor, position: tensor, is_query: tensor, pair: tensor,
    HALF: constexpr,
) -> tensor:  # fmt: skip
    """Rotate heads in halves [HEADS, BLOCK] by a token's angles, and let queries grow (growth: None skips that)."""
    angle = table + position * (2 * HALF) + pair
    cos = tl.load(angle, mask=pair < HALF, other=0.0).to(tl.float32)
    sin = tl.load(angle + HALF, mask=pair < HALF, other=0.0).to(tl.float32)
    low, high = low * cos - high * sin, high * cos + low * sin
    if growth is not None:
        factor = tl.where(is_query, tl.load(growth + position), 1.0)
        low, high = low * factor, high * factor
    return low, high


@triton.jit
def _normalized(
    low: tensor, high: tensor, row: tensor, q_weight: tensor, k_weight: tensor, is_query: tensor, head: tensor,
    pair: tensor, inside: tensor, eps: float,
    Q_HEADS: constexpr, KV_HEADS: constexpr, HALF: constexpr, SPAN: constexpr,
) -> tensor:  # fmt: skip
    """Normalize heads of queries or of keys, in halves [HEADS, BLOCK]. row: the token's first query."""
    weight = q_weight
    if KV_HEADS:
        weight = q_weight if is_query else k_weight
    weight += pair
    if SPAN:
        weight += (head - tl.where(is_query, 0, Q_HEADS)) * (2 * HALF)
        scale = _scale_across(row, is_query, eps, Q_HEADS, KV_HEADS, HALF, SPAN)
    else:
        inside = pair < HALF
        scale = _scale_of(low, high, eps, HALF)
    low *= scale * tl.load(weight, mask=inside, other=0.0).to(tl.float32)
    high *= scale * tl.load(weight + HALF, mask=inside, other=0.0).to(tl.float32)
    return low, high


@triton.jit
def _scale_of(low: tensor, high: tensor, eps: float, HALF: constexpr) -> tensor:
    """1 / rms of each head, [HEADS, 1]."""
    return tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)[:, None]


@triton.jit
def _scale_across(
    row: tensor, is_query: tensor, eps: float,
    Q_HEADS: constexpr, KV_HEADS: constexpr, HALF: constexpr, SPAN: constexpr,
) -> tensor:  # fmt: skip
    """1 / rms of all query heads of a token, or of all its key heads. row: the token's first query."""
    width = tl.where(is_query, Q_HEADS, KV_HEADS) * (2 * HALF)
    lane = tl.arange(0, SPAN)
    x = tl.load(row + tl.where(is_query, 0, Q_HEADS * 2 * HALF) + lane, mask=lane < width, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x) / width + eps)


@triton.jit
def _store_in_8_bits(
    low: tensor, high: tensor, keys: tensor, values: tensor, key_scales: tensor, value_scales: tensor, slot: tensor,
    first: int, head: tensor, pair: tensor, kept: tensor,
    Q_HEADS: constexpr, KV_HEADS: constexpr, HALF: constexpr, PAGE: constexpr,
) -> None:  # fmt: skip
    """Heads of keys or of values, in halves [HEADS, BLOCK], and their scales."""
    if first < Q_HEADS + KV_HEADS:
        storage, scales, mine = keys, key_scales, head - Q_HEADS
    else:
        storage, scales, mine = values, value_scales, head - Q_HEADS - KV_HEADS
    low, high = low.to(tl.float32), high.to(tl.float32)
    scale, inverse = scales_of(tl.maximum(largest_of(low), largest_of(high)))
    home = storage + (slot * KV_HEADS + mine) * (2 * HALF) + pair
    tl.store(home, to_e4m3(low * inverse[:, None]), mask=kept)
    tl.store(home + HALF, to_e4m3(high * inverse[:, None]), mask=kept)
    place = scales + (slot // PAGE * KV_HEADS + mine) * PAGE + slot % PAGE
    tl.store(place, scale[:, None], mask=(mine < KV_HEADS) & (slot >= 0))


def rope_store(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    passage: Passage = NOTHING,
    positions: Tensor | None = None,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Store this step's keys and values of one layer, and return its queries, ready to attend: q [N, Hq, Dh].

    qkv: [N, (Hq + 2 Hkv) Dh], contiguous. keys, values: [pages + 1, page_size, Hkv, Dh], one layer's pages,
    contiguous, of qkv's dtype. slots: int64 [N], page * page_size + position % page_size of each token, negative
    where nothing is to be stored (padding). positions: int64 [N], where heads are rotated.
    scales: of keys and of values, float32 [pages + 1, Hkv, page_size] each, where those are e4m3: see
    `gradus.quantization.kv`.
    """
    page, kv_heads, head_dim = keys.shape[-3:]
    assert keys.is_contiguous() and values.is_contiguous()
    assert keys.dtype == values.dtype == (E4M3 if scales else qkv.dtype)
    return _launch(qkv, (keys, values, slots), head_dim, kv_heads, page, passage, positions, scales or (None, None))


def turned_queries(qkv: Tensor, head_dim: int, passage: Passage, positions: Tensor | None = None) -> Tensor:
    """Return the queries of a layer that stores no keys, ready to attend. qkv: [N, Hq Dh] → [N, Hq, Dh]."""
    return _launch(qkv, (None, None, None), head_dim, 0, 1, passage, positions, (None, None))


def _launch(
    qkv: Tensor, storage: tuple[Tensor | None, Tensor | None, Tensor | None], head_dim: int, kv_heads: int, page: int,
    passage: Passage, positions: Tensor | None, scales: tuple[Tensor | None, Tensor | None],
) -> Tensor:  # fmt: skip
    tokens, q_heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * kv_heads
    assert qkv.is_contiguous() and head_dim % 2 == 0
    q = torch.empty(tokens, q_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    keys, values, slots = storage
    heads, early = heads_together(tokens, q_heads, kv_heads, head_dim), starts_early()
    span = triton.next_power_of_2(max(q_heads, kv_heads) * head_dim) if passage.across else 0
    if tokens:
        rope_store_kernel[(tokens, (q_heads + 2 * kv_heads) // heads)](
            qkv, q, keys, values, slots, positions, passage.table, passage.growth, *(passage.norms or (None, None)),
            *scales, passage.eps, passage.value_eps,
            q_heads, kv_heads, head_dim // 2, heads, triton.next_power_of_2(head_dim // 2), page, span, early,
            num_warps=4 if span else 1, launch_pdl=early,
        )  # fmt: skip
    return q


def heads_together(tokens: int, q_heads: int, kv_heads: int, head_dim: int = 256) -> int:
    """Heads per program: all of one kind, so a power of two that divides both counts; one where programs are few.

    Heads wider than 256 are fewer: a program is one warp, whose registers hold them.
    """
    common = math.gcd(q_heads, kv_heads)
    return min(common & -common, max(1, min(8, 2048 // head_dim)) if tokens >= 256 else 1)
