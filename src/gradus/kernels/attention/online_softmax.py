"""The loop of paged attention: over keys and values in pages, once, with a softmax that is finished as it goes.

A tile of queries keeps for each row the greatest score so far, the sum of exponentials and the weighted sum of values;
a greater score rescales both sums (Milakov & Gimelshein 2018; FlashAttention: Dao et al. 2022). So no score is ever
written to memory, and any keys can be taken in at any time: `sweep` takes what lies in pages.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from gradus.kernels.core.constants import LOG2_E
from gradus.kernels.rows.e4m3 import in_float16, reach_of, widened


@triton.jit
def capped(score: tensor, softcap: float) -> tensor:
    """softcap · tanh(score / softcap): tanh(x) = 2 sigmoid(2 x) - 1 cannot overflow."""
    return softcap * (2 * tl.sigmoid(2 * score / softcap) - 1)


@triton.jit
def sweep(
    seen: tensor, total: tensor, peak: tensor, queries: tensor, keys: tensor, values: tensor, key_scales: tensor,
    value_scales: tensor, table: tensor,
    low: int, stop: int, high: int, position: tensor, scale: float, softcap: float,
    MASKED: constexpr, HEADS: constexpr, HEAD_DIM: constexpr, PAGE: constexpr, WINDOW: constexpr, SOFTCAP: constexpr,
    KEYS: constexpr, WIDTH: constexpr, AHEAD: constexpr, FAR: constexpr, PACKED: constexpr, HALVES: constexpr,
) -> tensor:  # fmt: skip
    """Take the keys low … stop - 1 in, KEYS at a time. MASKED: some row may not see all of them.

    AHEAD: a step has its page numbers from the step before. Otherwise they are one more load that must arrive before
    keys can be asked for, and the compiler's pipeline takes stages for it that would hold keys.
    key_scales, value_scales: this head's, where keys and values are e4m3; None where they have the queries' type. Two
    e4m3 values are read as one word, so there are two products, of even places and of odd ones. PACKED: see `widened`.
    HALVES: these are in float16, and `reach` keeps a weight times its value's scale within it.
    FAR: values may lie more than 2³¹ others away, which takes offsets of 64 bits, and registers.
    """
    EACH: constexpr = 1 if key_scales is None else 2  # values per loaded word
    if EACH == 2:
        if HALVES:
            queries, unit = in_float16(queries)
            scale = scale * unit
        seen, odd_seen = tl.split(tl.reshape(seen, [seen.shape[0], WIDTH // 2, 2]))
        queries, odd_queries = tl.split(tl.reshape(queries, [queries.shape[0], WIDTH // 2, 2]))
        keys = keys.to(tl.pointer_type(tl.int16), bitcast=True)
        values = values.to(tl.pointer_type(tl.int16), bitcast=True)
    d = tl.arange(0, WIDTH // EACH)
    inside = (d < HEAD_DIM // EACH)[None, :]
    if AHEAD:
        next_pages = pages_of(table, low + tl.arange(0, KEYS), high, PAGE)
    for start in tl.range(low, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        page = next_pages if AHEAD else pages_of(table, key, high, PAGE)
        if AHEAD:
            next_pages = pages_of(table, key + KEYS, high, PAGE)
        page = page.to(tl.int64) if FAR else page.to(tl.int32)
        at = (page * PAGE + key % PAGE)[:, None] * (HEADS * HEAD_DIM // EACH) + d[None, :]
        k = _rows(keys + at, inside, WIDTH == HEAD_DIM)
        if EACH == 2:
            scales_at = page * (HEADS * PAGE) + key % PAGE
            score = _scores_in_8_bits(queries, odd_queries, k, key_scales + scales_at, PACKED)
            value_scale = tl.load(value_scales + scales_at, mask=key < high, other=0.0)
        else:
            score = tl.dot(queries, tl.trans(k), input_precision="tf32x3")
        reach = reach_of(value_scale) if HALVES else None
        weight, shrink, peak = weights(score, peak, key, high, position, scale, softcap, reach, MASKED, WINDOW, SOFTCAP)
        total = total * shrink + tl.sum(weight, 1)
        # values behind the last key may be anything, and 0 · NaN is NaN
        v = _rows(values + at, (key < high)[:, None] & inside if MASKED else inside, WIDTH == HEAD_DIM and not MASKED)
        if EACH == 2:
            weight *= value_scale[None, :]
            # without `reach`, float16's exponents are too few for a weight times a scale
            SIXTEEN: constexpr = tl.bfloat16 if queries.dtype == tl.float16 and not HALVES else queries.dtype
            v, odd_v = widened(v, SIXTEEN, PACKED)
            odd_seen = tl.dot(weight.to(v.dtype), odd_v, odd_seen * shrink[:, None], input_precision="tf32x3")
        seen = tl.dot(weight.to(v.dtype), v, seen * shrink[:, None], input_precision="tf32x3")
    seen = tl.interleave(seen, odd_seen) if EACH == 2 else seen
    return seen, total, peak


@triton.jit
def _rows(at: tensor, inside: tensor, WHOLE: constexpr) -> tensor:
    """Load what is `inside`, zeros elsewhere; WHOLE: everything is."""
    return tl.load(at) if WHOLE else tl.load(at, mask=inside, other=0)


@triton.jit
def _scores_in_8_bits(
    queries: tensor, odd_queries: tensor, words: tensor, key_scales: tensor, PACKED: constexpr
) -> tensor:  # fmt: skip
    """Multiply even and odd places of queries, [R, Dh / 2] each, by those of keys, which are words [K, Dh / 2].

    The keys' scales, at pointers [K], are powers of two: as exact on scores as on keys, and fewer products.
    """
    keys, odd_keys = widened(words, queries.dtype, PACKED)
    score = tl.dot(queries, tl.trans(keys), input_precision="tf32x3")
    score = tl.dot(odd_queries, tl.trans(odd_keys), score, input_precision="tf32x3")
    return score * tl.load(key_scales)[None, :]  # not sooner: they would take registers


@triton.jit
def weights(
    score: tensor, peak: tensor, key: tensor, high: int, position: tensor, scale: tensor, softcap: float,
    reach: tensor, MASKED: constexpr, WINDOW: constexpr, SOFTCAP: constexpr,
) -> tuple[tensor, tensor, tensor]:  # fmt: skip
    """Turn a step's unscaled scores into (weights, the factor by which earlier sums shrink, the new peak).

    position: of each row, or None where all rows see all keys below `high`. reach: see `reach_of`, or None; with it,
    `scale` is a number for each row, and the peak may lie below a score or above all.
    """
    if reach is not None:
        scale = scale[:, None]
    factor = scale * LOG2_E  # one multiplication for both, and where nothing is capped, in the exponent's addition
    if SOFTCAP:
        score = capped(score * scale, softcap)
        factor = LOG2_E
    if MASKED:
        visible = (key < high)[None, :]
        if position is not None:
            visible = visible & (key[None, :] <= position[:, None])
            if WINDOW:
                visible = visible & (key[None, :] > position[:, None] - WINDOW)
        score = tl.where(visible, score, float("-inf"))
    highest = tl.max(score, 1) * factor if reach is None else tl.max(score * factor + reach[None, :], 1)
    new_peak = tl.maximum(peak, highest)
    # a row that has seen nothing yet has no greatest score, and -inf - -inf is NaN
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
    return tl.exp2(score * factor - base[:, None]), tl.exp2(peak - base), new_peak


@triton.jit
def pages_of(table: tensor, key: tensor, high: int, PAGE: constexpr) -> tensor:
    """The page of each key, 0 behind the last one."""
    return tl.load(table + key // PAGE, mask=key < high, other=0)
