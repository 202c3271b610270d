"""Attention of one row over pages, as in a decode. Each key and value is read in place, for all heads that share it.

A row's context is divided into spans, and each span is a separate piece of work: all heads over some positions. So
two threads share a lone sequence evenly, however many heads it has. A span leaves its sums unfinished (Milakov and
Gimelshein 2018, "Online normalizer calculation for softmax"): the largest score, the sum of exponentials, and the sum
of values weighted by them. `gather` combines a row's spans.

The torch reference is `gradus.attention.reference.attend_causal`.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

from gradus.kernels.cpu.elementary import exp, normalize, normalize_plainly, tanh
from gradus.kernels.cpu.machine import FLAGS, address, floats, halves, longs, narrow, widen, zeros
from gradus.kernels.cpu.vectors import FLOAT_STEP, KEEP, SUM_STEP, float_tile, sum_tile

f32 = np.float32
LONGEST = 512
"""Most positions of a span."""

SPAN = np.dtype(
    [
        ("row", np.int64),  # the first
        ("rows", np.int64),  # of the same sequence, at successive positions
        ("position", np.int64),  # of the first row
        ("before", np.int64),  # rows of the same sequence right before the first one in the step
        ("low", np.int64),
        ("high", np.int64),
        ("window", np.int64),  # positions that a row looks back on, itself included; 0: all
        ("table", np.int64),  # the address of the sequence's block table, int64
        ("partial", np.int64),  # the number of the first row's unfinished sums
        ("partials", np.int64),  # how many each row has
    ]
)
"""Positions low to high - 1 of a sequence, for one of its rows or several."""

LAYER = np.dtype(
    [
        ("keys", np.int64),  # addresses: [rows, Hkv, Dh]
        ("values", np.int64),
        ("stores", np.int64),  # whether the layer has keys and values of its own; else it reads another's
        ("rotation", np.int64),  # float32 [L, Dh], cosines and sines; 0: none
        ("query_scales", np.int64),  # float32 [L], by position; 0: none
        ("q_norm", np.int64),  # float32 [Dh]; 0: none
        ("k_norm", np.int64),
        ("sinks", np.int64),  # float32 [Hq], one more logit of each head's softmax, of no value; 0: none
        ("group", np.int64),  # of layers with the same block tables
    ]
)

HEADS = np.dtype(
    [
        ("heads", np.int64),
        ("kv_heads", np.int64),
        ("head_dim", np.int64),
        ("page_size", np.int64),
        ("halves", np.int64),  # whether keys and values are bfloat16
        ("scale", np.float32),
        ("softcap", np.float32),  # 0: none
        ("eps", np.float32),  # of the norms of queries and keys
        ("value_eps", np.float32),  # of the value heads' norm, which has no weights; negative: none
    ]
)
"""One layer's heads: Hq, Hkv and Dh may differ between layers, and buffers are as wide as the widest."""


class Scratch(NamedTuple):
    """A thread's own buffers. queries: float32 [Hq, Dh]; key: float32 [Dh]; weights: float32 [Hq, LONGEST]."""

    queries: NDArray[np.float32]
    key: NDArray[np.float32]
    weights: NDArray[np.float32]


def make_scratch(heads: int, head_dim: int) -> Scratch:
    return Scratch(zeros((heads, head_dim), f32), zeros(head_dim, f32), zeros((heads, LONGEST), f32))


@njit(**FLAGS)
def attend(shape: Any, layer: Any, span: Any, qkv: Any, scratch: Any, partial: Any) -> None:
    """Attend over one span. qkv: float32 [R, (Hq + 2 Hkv) Dh], all rows. partial: float32 [Hq, Dh + 2]: values,
    largest, sum."""
    width, position = shape.head_dim, span.position
    table = longs(span.table, (position // shape.page_size + 1,))
    # Every span stores the new keys and values that it reads, since no span waits for another: rows that verify drafts
    # read the keys of the rows before them. Two spans that store the same key store the same bits.
    for new in range(first_new(layer, span), span.high):
        for head in range(shape.kv_heads):
            store(shape, layer, table, new, qkv[span.row - (position - new)], head, scratch.key)
    for head in range(shape.heads):
        query = scratch.queries[head]
        own = qkv[span.row, head * width : (head + 1) * width]
        turn(shape, layer.q_norm, layer.rotation, position, own, query)
        scale = scale_at(shape, layer, position)
        for j in range(width):
            query[j] *= scale
    _walk(0, shape, table, span, scratch, partial, layer.keys)
    for head in range(shape.heads):
        _exponentials(shape, scratch.weights[head, : span.high - span.low], partial[head])
    _walk(1, shape, table, span, scratch, partial, layer.values)


@njit(**FLAGS)
def first_new(layer: Any, span: Any) -> int:
    """The first position of a span whose key and value the span stores, as all after it; its end if there is none."""
    return max(span.low, span.position - span.before) if layer.stores else span.high


@njit(**FLAGS)
def scale_at(shape: Any, layer: Any, position: int) -> Any:
    """The factor of the scores of a query at this position."""
    if not layer.query_scales:
        return shape.scale
    return shape.scale * floats(layer.query_scales + 4 * position, (1,))[0]


@njit(**FLAGS)
def turn(shape: Any, norm: int, rotation: int, position: int, x: Any, out: Any) -> None:
    """Normalize a head if the model does, and rotate it to its position."""
    width = shape.head_dim
    if norm:
        normalize(x, width, norm, 0, shape.eps, out)
    else:
        for j in range(width):
            out[j] = x[j]
    if rotation:
        half = width // 2
        angles = floats(rotation + 4 * position * width, (width,))
        for j in range(half):
            a, b, cos, sin = out[j], out[j + half], angles[j], angles[j + half]
            out[j] = a * cos - b * sin
            out[j + half] = b * cos + a * sin


@njit(**FLAGS)
def store(shape: Any, layer: Any, table: Any, position: int, qkv: Any, head: int, key: Any) -> None:
    """Store a row's key and value of one head in its page. qkv: the row's. key: float32 [Dh], scratch."""
    width, at = shape.head_dim, place(shape, table, position, head)
    first = (shape.heads + head) * width
    turn(shape, layer.k_norm, layer.rotation, position, qkv[first : first + width], key)
    _put(shape, key, layer.keys + at)
    first += shape.kv_heads * width
    value = qkv[first : first + width]
    if shape.value_eps >= 0:
        normalize_plainly(value, width, shape.value_eps, key)
        _put(shape, key, layer.values + at)
    else:
        _put(shape, value, layer.values + at)


@njit(**FLAGS)
def place(shape: Any, table: Any, position: int, head: int) -> int:
    """Where a head's key, or value, of a position begins: bytes from the layer's first."""
    row = table[position // shape.page_size] * shape.page_size + position % shape.page_size
    return (row * shape.kv_heads + head) * shape.head_dim * _bytes(shape)


@njit(**FLAGS)
def _bytes(shape: Any) -> int:
    """Bytes of one number in the cache."""
    return 2 if shape.halves else 4


@njit(**FLAGS)
def _put(shape: Any, vector: Any, place: int) -> None:
    """Store a head's float32 vector in the cache's type."""
    width = shape.head_dim
    if shape.halves:
        narrowed = halves(place, (width,))
        for j in range(width):
            narrowed[j] = narrow(vector[j])
    else:
        copied = floats(place, (width,))
        for j in range(width):
            copied[j] = vector[j]


@njit(**FLAGS)
def _walk(summing: Any, shape: Any, table: Any, span: Any, scratch: Any, partial: Any, kept: int) -> None:
    """Walk a span's pages, all heads of each: turn keys into scores, or with `summing` (literal 1) values into sums.

    kept: the address of the layer's keys, or values.
    """
    size, sharing = shape.page_size, shape.heads // shape.kv_heads
    position = span.low
    while position < span.high:
        end = min(span.high, (position // size + 1) * size)  # of the page
        first = table[position // size] * size + position % size
        page, count = kept + first * shape.kv_heads * shape.head_dim * _bytes(shape), end - position
        weights = scratch.weights[:, position - span.low : end - span.low]
        for kv_head in range(shape.kv_heads):
            head, last = kv_head * sharing, (kv_head + 1) * sharing
            while head < last:  # query heads that share the key head, together
                queries, mine, sums = scratch.queries[head:], weights[head:], partial[head:]
                if last - head >= 3:
                    if shape.halves:
                        together(summing, 3, 1, shape, page, count, kv_head, queries, mine, sums)
                    else:
                        together(summing, 3, 0, shape, page, count, kv_head, queries, mine, sums)
                    head += 3
                else:
                    if shape.halves:
                        together(summing, 1, 1, shape, page, count, kv_head, queries, mine, sums)
                    else:
                        together(summing, 1, 0, shape, page, count, kv_head, queries, mine, sums)
                    head += 1
        position = end


def together(
    summing: Any, heads: Any, halved: Any, shape: Any, page: int, positions: int, kv_head: int, queries: Any,
    weights: Any, sums: Any,
) -> None:  # fmt: skip
    """Process some positions of keys, or of values, for `heads` query heads.

    page: the address of [positions, Hkv, Dh], bfloat16 if `halved` is 1, else float32. summing, heads and halved are
    literal.
    """
    raise NotImplementedError("for compiled code")


@overload(together, jit_options=FLAGS)
def _together(
    summing: Any, heads: Any, halved: Any, shape: Any, page: int, positions: int, kv_head: int, queries: Any,
    weights: Any, sums: Any,
) -> Any:  # fmt: skip
    if not all(isinstance(each, types.IntegerLiteral) for each in (summing, heads, halved)):
        return None
    count, of_halves = heads.literal_value, halved.literal_value
    array, size = (halves, 2) if of_halves else (floats, 4)

    def score(
        summing: Any, heads: Any, halved: Any, shape: Any, page: int, positions: int, kv_head: int, queries: Any,
        weights: Any, sums: Any,
    ) -> None:  # fmt: skip
        width = shape.head_dim
        stride = shape.kv_heads * width * size
        at, p = page + kv_head * width * size, 0
        if width % FLOAT_STEP == 0:
            while p + 4 <= positions:
                float_tile(
                    of_halves, 4, count, 1, KEEP, at + p * stride, stride, width, size * width, address(queries),
                    queries.strides[0], address(weights) + 4 * p, weights.strides[0],
                )  # fmt: skip
                p += 4
        for rest in range(p, positions):
            key = array(at + rest * stride, (width,))
            for head in range(count):
                total = f32(0)
                for j in range(width):
                    total += queries[head, j] * widen(key[j])
                weights[head, rest] = total

    def add(
        summing: Any, heads: Any, halved: Any, shape: Any, page: int, positions: int, kv_head: int, queries: Any,
        weights: Any, sums: Any,
    ) -> None:  # fmt: skip
        width = shape.head_dim
        stride = shape.kv_heads * width * size
        at, done = page + kv_head * width * size, width // SUM_STEP * SUM_STEP
        for j in range(0, done, SUM_STEP):
            sum_tile(
                of_halves, count, at + j * size, stride, positions, address(weights), weights.strides[0],
                address(sums) + 4 * j, sums.strides[0],
            )  # fmt: skip
        for p in range(positions):
            value = array(at + p * stride, (width,))
            for head in range(count):
                for j in range(done, width):
                    sums[head, j] += weights[head, p] * widen(value[j])

    return add if summing.literal_value else score


@njit(**FLAGS)
def _exponentials(shape: Any, weights: Any, partial: Any) -> None:
    """Turn a head's scores into exponentials, and set partial [Dh + 2]: zeros for values, the largest score, the
    sum."""
    width, count = shape.head_dim, weights.shape[0]
    if shape.softcap:
        for p in range(count):
            weights[p] = shape.softcap * tanh(weights[p] / shape.softcap)
    largest = weights[0]
    for p in range(count):
        largest = max(largest, weights[p])
    total = f32(0)
    for p in range(count):
        weights[p] = exp(weights[p] - largest)
        total += weights[p]
    for j in range(width):
        partial[j] = f32(0)
    partial[width], partial[width + 1] = largest, total


@njit(**FLAGS)
def gather(shape: Any, layer: Any, partials: Any, first: int, count: int, out: Any) -> None:
    """Combine a row's spans, and its heads' sinks: partials [first : first + count] of [spans, Hq, Dh + 2] → out
    float32 [Hq Dh]."""
    width = shape.head_dim
    for head in range(shape.heads):
        largest = partials[first, head, width]
        for span in range(first, first + count):
            largest = max(largest, partials[span, head, width])
        total = f32(0)
        if layer.sinks:
            sink = floats(layer.sinks + 4 * head, (1,))[0]
            largest = max(largest, sink)
            total = exp(sink - largest)
        for span in range(first, first + count):
            total += partials[span, head, width + 1] * exp(partials[span, head, width] - largest)
        for span in range(first, first + count):
            share = exp(partials[span, head, width] - largest) / total
            for j in range(width):
                value = share * partials[span, head, j]
                out[head * width + j] = value if span == first else out[head * width + j] + value
