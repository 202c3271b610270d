"""Between the qkv product and attention, in one pass: normalize heads, rotate them, write keys and values into pages.

Idea: separately, these take up to eight launches (two norms, two rotations of several kernels each, two scattered
writes), and each reads and writes the previous one's result. All of these operations treat heads separately, so
a program can take a head from the product's output to its destination without memory in between.

Elements moved per token: (Hq + 2 Hkv) Dh read, as many written; Dh of the rotary table and the norms' weights come
from the cache. Layout: qkv [N, (Hq + 2 Hkv) Dh], the heads of q, k and v side by side; a program takes HEADS of them,
all of one kind, as two tiles [HEADS, Dh / 2], because rotation pairs value i with value i + Dh / 2.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.rows.e4m3 import largest_of, scales_of, to_e4m3
from gradus.quantization.fp8 import E4M3


@triton.jit
def rope_store_kernel(
    qkv_ptr: tensor, q_ptr: tensor, keys_ptr: tensor, values_ptr: tensor, slots_ptr: tensor, positions_ptr: tensor,
    table_ptr: tensor, q_weight_ptr: tensor, k_weight_ptr: tensor, key_scales_ptr: tensor, value_scales_ptr: tensor,
    eps: float,
    Q_HEADS: constexpr, KV_HEADS: constexpr, HALF: constexpr, HEADS: constexpr, BLOCK: constexpr, PAGE: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    """Token program_id(0), heads from program_id(1) * HEADS on. table: None: no rotation. q_weight: None: no norm.

    key_scales: None: keys and values are stored as they are.
    """
    let_next_start(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    is_query = first < Q_HEADS
    head = first + tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    inside = (pair < HALF) & (head < Q_HEADS + 2 * KV_HEADS)

    here = qkv_ptr + token * ((Q_HEADS + 2 * KV_HEADS) * 2 * HALF) + head * (2 * HALF) + pair
    low = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(here + HALF, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots_ptr + token)

    if first < Q_HEADS + KV_HEADS:  # values carry neither norm nor position
        if q_weight_ptr is not None:
            weight = (q_weight_ptr if is_query else k_weight_ptr) + pair
            scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)[:, None]
            low *= scale * tl.load(weight, mask=pair < HALF, other=0.0).to(tl.float32)
            high *= scale * tl.load(weight + HALF, mask=pair < HALF, other=0.0).to(tl.float32)
        if table_ptr is not None:
            angle = table_ptr + tl.load(positions_ptr + token) * (2 * HALF) + pair
            cos = tl.load(angle, mask=pair < HALF, other=0.0).to(tl.float32)
            sin = tl.load(angle + HALF, mask=pair < HALF, other=0.0).to(tl.float32)
            low, high = low * cos - high * sin, high * cos + low * sin

    kept = inside & (is_query | (slot >= 0))  # padding rows have no place in the storage
    if key_scales_ptr is None:
        if is_query:
            there = q_ptr + token * (Q_HEADS * 2 * HALF) + head * (2 * HALF)
        elif first < Q_HEADS + KV_HEADS:
            there = keys_ptr + slot * (KV_HEADS * 2 * HALF) + (head - Q_HEADS) * (2 * HALF)
        else:
            there = values_ptr + slot * (KV_HEADS * 2 * HALF) + (head - Q_HEADS - KV_HEADS) * (2 * HALF)
        tl.store(there + pair, low.to(q_ptr.dtype.element_ty), mask=kept)
        tl.store(there + pair + HALF, high.to(q_ptr.dtype.element_ty), mask=kept)
    elif is_query:
        there = q_ptr + token * (Q_HEADS * 2 * HALF) + head * (2 * HALF)
        tl.store(there + pair, low.to(q_ptr.dtype.element_ty), mask=kept)
        tl.store(there + pair + HALF, high.to(q_ptr.dtype.element_ty), mask=kept)
    else:
        dtype: tl.constexpr = qkv_ptr.dtype.element_ty  # rounded to it first, as where no kernel runs
        _store_in_8_bits(
            low.to(dtype), high.to(dtype), keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, slot, first, head,
            pair, kept, Q_HEADS, KV_HEADS, HALF, PAGE,
        )  # fmt: skip


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
    *,
    table: Tensor | None = None,
    positions: Tensor | None = None,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Store this step's keys and values of one layer, and return its queries, ready to attend: q [N, Hq, Dh].

    qkv: [N, (Hq + 2 Hkv) Dh], contiguous. keys, values: [pages + 1, page_size, Hkv, Dh], one layer's pages,
    contiguous, of qkv's dtype. slots: int64 [N], page * page_size + position % page_size of each token, negative
    where nothing is to be stored (padding). table: RotaryTable's [L, Dh], cosines then sines, and positions: int64
    [N]; None does not rotate (GPT-2). norms: the weights [Dh] of q's and k's RMSNorm, of any floating dtype.
    scales: of keys and of values, float32 [pages + 1, Hkv, page_size] each, where those are e4m3: see
    `gradus.quantization.kv`.
    """
    page, kv_heads, head_dim = keys.shape[-3:]
    tokens, q_heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * kv_heads
    assert qkv.is_contiguous() and keys.is_contiguous() and values.is_contiguous()
    assert keys.dtype == values.dtype == (E4M3 if scales else qkv.dtype) and head_dim % 2 == 0
    q = torch.empty(tokens, q_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    heads = heads_together(tokens, q_heads, kv_heads)
    q_weight, k_weight = norms or (None, None)
    key_scales, value_scales = scales or (None, None)
    early = starts_early()
    if tokens:
        rope_store_kernel[(tokens, (q_heads + 2 * kv_heads) // heads)](
            qkv, q, keys, values, slots, positions, table, q_weight, k_weight, key_scales, value_scales, eps,
            q_heads, kv_heads, head_dim // 2, heads, triton.next_power_of_2(head_dim // 2), page, early,
            num_warps=1, launch_pdl=early,
        )  # fmt: skip
    return q


def heads_together(tokens: int, q_heads: int, kv_heads: int) -> int:
    """Heads per program: all of one kind, so a power of two that divides both counts; one where programs are few."""
    common = math.gcd(q_heads, kv_heads)
    return min(common & -common, 8 if tokens >= 256 else 1)
