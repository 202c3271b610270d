"""Prepare decodes for attention in the program that attends: rotate queries, store keys and values.

Idea: `rope_store` is a launch that moves a few kilobytes, and attention's first step is to read them again. With one
new token per sequence, or a few drafts behind it, both fit into one launch. Each program that attends for a key head
rotates that head's queries for itself, straight from the qkv product. The program that has the last of the earlier keys
takes in the new keys and values behind them, out of registers, and writes both into their pages, where later steps read
them. A norm across all of a token's heads does not work: there, no program has seen them all.

Layout: qkv [N, (Hq + 2 Hkv) Dh], the heads of q, k and v side by side. With a prompt this does not work: there, most
tokens attend to keys that other programs would still have to store.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from gradus.kernels.attention.online_softmax import capped, weights
from gradus.kernels.core.constants import LOG2_E
from gradus.kernels.rows.e4m3 import largest_of, scales_of, to_e4m3

MOST_NEW = 16
"""Most new tokens per span. The matrix units need 16 keys per tile; fewer are padded."""


@triton.jit
def new_tokens(
    product: tensor, stride: int, rotary: tensor, growth: tensor, q_gain: tensor, table: tensor, position: int,
    tokens: int, split: int, splits: int, head: int, there: tensor, eps: float,
    GROUP: constexpr, HEADS: constexpr, HEAD_DIM: constexpr, PAGE: constexpr, ROWS: constexpr, WIDTH: constexpr,
    NEW: constexpr,
) -> tensor:  # fmt: skip
    """Load up to NEW new tokens of the qkv product, whose rows are `stride` apart.

    Called before attention's loop, which hides the latency.

    Returns, for one key head: rotated queries, [ROWS, WIDTH]; unrotated keys, their rotation partners, and values,
    [NEW, WIDTH] each; whether this split of the keys is the last, which appends them; and their pages, [NEW].
    """
    row, d, new = tl.arange(0, ROWS), tl.arange(0, WIDTH)[None, :], tl.arange(0, NEW)
    mine = product + ((head * GROUP + row % GROUP) * HEAD_DIM)[:, None]
    at = position
    if NEW > 1:
        mine += (row // GROUP * stride)[:, None]
        at += (row // GROUP)[:, None]
    query, query_partner = _loaded(mine, d, there, HEAD_DIM)
    counts = new < tokens
    inside = counts[:, None] & (d < HEAD_DIM)
    keys = product + ((HEADS * GROUP + head) * HEAD_DIM + new * stride)[:, None]
    key, key_partner = _loaded(keys, d, inside, HEAD_DIM)
    value = tl.load(keys + HEADS * HEAD_DIM + d, mask=inside, other=0.0)
    last = (split == splits - 1) & (position >= 0)
    page = tl.load(table + (position + new) // PAGE, mask=counts & last, other=0).to(tl.int64)
    queries = _turned(query, query_partner, q_gain, rotary, growth, at, d, eps, HEAD_DIM)
    return queries, key, key_partner, value, last, page


@triton.jit
def store_and_take_in(
    seen: tensor, total: tensor, peak: tensor, queries: tensor, key: tensor, key_partner: tensor, value: tensor,
    page: tensor, keys: tensor, values: tensor, key_scales: tensor, value_scales: tensor, rotary: tensor,
    k_gain: tensor, position: int, tokens: int, last: tensor, scale: float, softcap: float, eps: float,
    value_eps: constexpr,
    GROUP: constexpr, HEADS: constexpr, HEAD_DIM: constexpr, PAGE: constexpr, WIDTH: constexpr, WINDOW: constexpr,
    SOFTCAP: constexpr, NEW: constexpr,
) -> tensor:  # fmt: skip
    """Rotate and store the new keys, store the new values, and attend to both: after the loop, in the program with the
    `last` keys.
    """
    d, new = tl.arange(0, WIDTH)[None, :], tl.arange(0, NEW)
    inside = (new < tokens)[:, None] & (d < HEAD_DIM)
    at = position
    if NEW > 1:
        at += new[:, None]
    if value_eps is not None:
        wide = value.to(tl.float32)
        value = (wide * tl.rsqrt(tl.sum(wide * wide, 1) / HEAD_DIM + value_eps)[:, None]).to(value.dtype)
    place = (position + new) % PAGE
    home = ((page * PAGE + place) * (HEADS * HEAD_DIM))[:, None] + d
    if key_scales is None:
        turned = _turned(key, key_partner, k_gain, rotary, None, at, d, eps, HEAD_DIM)
        tl.store(keys + home, turned, mask=inside & last)
        tl.store(values + home, value, mask=inside & last)
        seen, total, peak = _taken_in(
            seen, total, peak, queries, turned, value, position, tokens, last, scale, softcap, GROUP, WINDOW, SOFTCAP
        )
    elif last:  # there is more to do here, and a branch takes fewer registers
        turned = _turned(key, key_partner, k_gain, rotary, None, at, d, eps, HEAD_DIM)
        scales_home = page * (HEADS * PAGE) + place
        kept_key = _stored_in_8_bits(turned, keys + home, key_scales + scales_home, inside, new < tokens)
        kept_value = _stored_in_8_bits(value, values + home, value_scales + scales_home, inside, new < tokens)
        seen, total, peak = _taken_in(
            seen, total, peak, queries, kept_key, kept_value, position, tokens, last, scale, softcap, GROUP, WINDOW,
            SOFTCAP,
        )  # fmt: skip
    return seen, total, peak


@triton.jit
def _stored_in_8_bits(head: tensor, home: tensor, scale_home: tensor, inside: tensor, counts: tensor) -> tensor:
    """Store a head of each new token that counts, and return it as later steps will read it: float32 [NEW, WIDTH]."""
    head = head.to(tl.float32)
    scale, inverse = scales_of(largest_of(head))
    values = to_e4m3(head * inverse[:, None])
    tl.store(home, values, mask=inside)
    tl.store(scale_home, scale, mask=counts)
    return values.to(tl.float32) * scale[:, None]


@triton.jit
def _loaded(heads: tensor, d: tensor, inside: tensor, HEAD_DIM: constexpr) -> tensor:
    """Load heads [R, Dh] that begin at pointers [R, 1], unrotated, and each value's partner in the rotation."""
    HALF: constexpr = HEAD_DIM // 2
    partner = tl.load(heads + tl.where(d < HALF, d + HALF, d - HALF), mask=inside, other=0.0)
    return tl.load(heads + d, mask=inside, other=0.0), partner


@triton.jit
def _turned(
    value: tensor, partner: tensor, gain: tensor, rotary: tensor, growth: tensor, position: int, d: tensor, eps: float,
    HEAD_DIM: constexpr,
) -> tensor:  # fmt: skip
    """Normalize the heads (gain: None skips it), rotate them by their positions (rotary: None skips it), and multiply
    them by what the positions say (growth: None skips it).

    position: one for all heads, or [R, 1]. See `gradus.models.rope.rotate`. The result is rounded as if it were stored.
    """
    HALF: constexpr = HEAD_DIM // 2
    inside, x, partner = d < HEAD_DIM, value.to(tl.float32), partner.to(tl.float32)
    if gain is not None:
        other = tl.where(d < HALF, d + HALF, d - HALF)
        scale = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
        x *= scale * tl.load(gain + d, mask=inside, other=0.0).to(tl.float32)
        partner *= scale * tl.load(gain + other, mask=inside, other=0.0).to(tl.float32)
    if rotary is not None:
        angles = rotary + tl.maximum(position, 0) * HEAD_DIM
        cos = tl.load(angles + d % HALF, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(angles + HALF + d % HALF, mask=inside, other=0.0).to(tl.float32)
        x = x * cos + tl.where(d < HALF, -partner, partner) * sin
        if growth is not None:
            x *= tl.load(growth + tl.maximum(position, 0))
    return x.to(value.dtype)


@triton.jit
def _taken_in(
    seen: tensor, total: tensor, peak: tensor, queries: tensor, key: tensor, value: tensor, position: int, tokens: int,
    counts: tensor, scale: float, softcap: float, GROUP: constexpr, WINDOW: constexpr, SOFTCAP: constexpr,
) -> tensor:  # fmt: skip
    """Add the new keys and values, [NEW, Dh], to the tile's running softmax, if they `count`: one step of `sweep`.

    A lone key takes no matrix unit: every row sees it.
    """
    if key.shape[0] > 1:
        token, new = tl.arange(0, queries.shape[0]) // GROUP, position + tl.arange(0, key.shape[0])
        score = tl.dot(queries.to(key.dtype), tl.trans(key), input_precision="tf32x3")
        high = tl.where(counts, position + tokens, position)
        weight, shrink, new_peak = weights(
            score, peak, new, high, position + token, scale, softcap, None, True, WINDOW, SOFTCAP
        )  # fmt: skip
        total = total * shrink + tl.sum(weight, 1)
        seen = tl.dot(weight.to(value.dtype), value, seen * shrink[:, None], input_precision="tf32x3")
    else:
        score = tl.sum(queries.to(tl.float32) * key.to(tl.float32), 1) * scale
        if SOFTCAP:
            score = capped(score, softcap)
        score = tl.where(counts, score * LOG2_E, float("-inf"))
        new_peak = tl.maximum(peak, score)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weight, shrink = tl.exp2(score - base), tl.exp2(peak - base)
        total = total * shrink + weight
        seen = seen * shrink[:, None] + weight[:, None] * value.to(tl.float32)
    return seen, total, new_peak
