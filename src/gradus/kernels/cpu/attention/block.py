"""Attention of many rows of one sequence over pages, as in a prompt: each key and value meets PANEL queries at once.

All query heads that share a key head lie side by side, in panels: head by head, a head's rows in their order. Keys and
values are widened a TILE of positions at a time. A tile's scores become exponentials against the largest score so far,
and the sums of earlier tiles are scaled down whenever that grows (Dao et al. 2022, "FlashAttention", section 3.1).

The sums are left unfinished, as in `row.py`. The torch reference is `gradus.attention.reference.attend_causal`.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gradus.kernels.cpu.attention.row import first_new, place, scale_at, store, turn
from gradus.kernels.cpu.elementary import tanh
from gradus.kernels.cpu.machine import FLAGS, address, floats, halves, longs, widen, zeros
from gradus.kernels.cpu.outer import (
    ADDS,
    BESIDE,
    PANEL,
    SQUARE,
    WRITES,
    exponentials,
    outer_tile,
    scale_rows,
    transpose,
)

f32 = np.float32
TILE = 64
"""Positions whose keys and values are widened at a time."""

MOST_TOGETHER = 64
"""Most rows of a block. Its queries and sums of values, for seven heads of 64 that share a key head, then take a
quarter of a megabyte, which stays in the second cache while keys go by."""

NONE_YET = f32(-1e30)
"""Below every score, and finite: the difference of two is a number."""


class Block(NamedTuple):
    """A thread's own buffers, for the query heads of one key head. Dh and panels: the most of all layers.

    turned: float32 [SQUARE, Dh]; key: float32 [Dh]. queries, sums: float32 [panels, Dh, PANEL]. positions: int64
    [panels, PANEL], -1 where a lane has no row. largest, totals: float32 [panels, PANEL]; factors: float32 [PANEL].
    scores: float32 [TILE, PANEL]. keys, values: float32 [TILE, Dh].
    """

    turned: NDArray[np.float32]
    key: NDArray[np.float32]
    queries: NDArray[np.float32]
    sums: NDArray[np.float32]
    positions: NDArray[np.int64]
    largest: NDArray[np.float32]
    totals: NDArray[np.float32]
    factors: NDArray[np.float32]
    scores: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]


def make_block(sharing: int, head_dim: int) -> Block:
    """Allocate a thread's buffers. sharing: query heads per key head; like head_dim, the most of all layers."""
    panels = -(-sharing * MOST_TOGETHER // PANEL)
    return Block(
        zeros((SQUARE, head_dim), f32), zeros(head_dim, f32), zeros((panels, head_dim, PANEL), f32),
        zeros((panels, head_dim, PANEL), f32), zeros((panels, PANEL), np.int64), zeros((panels, PANEL), f32),
        zeros((panels, PANEL), f32), zeros(PANEL, f32), zeros((TILE, PANEL), f32), zeros((TILE, head_dim), f32),
        zeros((TILE, head_dim), f32),
    )  # fmt: skip


@njit(**FLAGS)
def attend_block(shape: Any, layer: Any, span: Any, qkv: Any, block: Any, partials: Any) -> None:
    """Attend over one span for all its rows. qkv: float32 [R, (Hq + 2 Hkv) Dh], all rows of the step. partials:
    float32 [spans, Hq, Dh + 2], see `row.py`."""
    table = longs(span.table, ((span.position + span.rows - 1) // shape.page_size + 1,))
    lanes = shape.heads // shape.kv_heads * _padded(span.rows)
    for head in range(shape.kv_heads):
        # A span stores the new keys that it reads, as in `row.py`: a block reads those of the blocks before it.
        for new in range(first_new(layer, span), span.high):
            store(shape, layer, table, new, qkv[span.row + new - span.position], head, block.key)
        _begin(shape, layer, span, qkv, head, block)
        low = span.low
        while low < span.high:
            count = min(TILE, span.high - low)
            _widen_tile(shape, layer, table, low, count, head, block)
            for panel in range(-(-lanes // PANEL)):
                _add(shape, count, _score(shape, span, low, count, panel, block), panel, block)
            low += count
        _leave(shape, span, head, block, partials)


@njit(**FLAGS)
def _padded(rows: int) -> int:
    return -(-rows // SQUARE) * SQUARE


@njit(**FLAGS)
def _begin(shape: Any, layer: Any, span: Any, qkv: Any, kv_head: int, block: Any) -> None:
    """Turn and scale the queries of a key head, and put them side by side."""
    width, rows, sharing = shape.head_dim, _padded(span.rows), shape.heads // shape.kv_heads
    for panel in range(-(-sharing * rows // PANEL)):
        for lane in range(PANEL):
            block.positions[panel, lane] = -1
            block.largest[panel, lane] = NONE_YET
            block.totals[panel, lane] = f32(0)
        for j in range(width):
            for lane in range(PANEL):
                block.sums[panel, j, lane] = f32(0)
    for first in range(0, sharing * rows, SQUARE):
        head, row = kv_head * sharing + first // rows, first % rows
        panel, lane = first // PANEL, first % PANEL
        for r in range(SQUARE):
            turned, position = block.turned[r], span.position + row + r
            if row + r < span.rows:
                own = qkv[span.row + row + r, head * width : (head + 1) * width]
                turn(shape, layer.q_norm, layer.rotation, position, own, turned)
                scale = scale_at(shape, layer, position)
                for j in range(width):
                    turned[j] *= scale
                block.positions[panel, lane + r] = position
            else:
                for j in range(width):
                    turned[j] = f32(0)
        to = address(block.queries[panel]) + 4 * lane
        for j in range(0, width, SQUARE):
            transpose(address(block.turned) + 4 * j, block.turned.strides[0], to + 4 * j * PANEL, 4 * PANEL)


@njit(**FLAGS)
def _widen_tile(shape: Any, layer: Any, table: Any, low: int, count: int, head: int, block: Any) -> None:
    """Copy keys and values of `count` positions from `low` on."""
    width = shape.head_dim
    for p in range(count):
        at, key, value = place(shape, table, low + p, head), block.keys[p], block.values[p]
        if shape.halves:
            narrow_key, narrow_value = halves(layer.keys + at, (width,)), halves(layer.values + at, (width,))
            for j in range(width):
                key[j], value[j] = widen(narrow_key[j]), widen(narrow_value[j])
        else:
            wide_key, wide_value = floats(layer.keys + at, (width,)), floats(layer.values + at, (width,))
            for j in range(width):
                key[j], value[j] = wide_key[j], wide_value[j]


@njit(**FLAGS)
def _score(shape: Any, span: Any, low: int, count: int, panel: int, block: Any) -> int:
    """Compute a tile's scores for a panel of queries, and turn them into exponentials. Returns 0 if earlier sums keep
    their scale."""
    width, scores = shape.head_dim, block.scores
    queries, row = address(block.queries[panel]), block.keys.strides[0]
    for p in range(0, count, BESIDE):  # keys behind the last are those of an earlier tile: hidden below
        keys, out = address(block.keys) + p * row, address(scores) + 4 * p * PANEL
        outer_tile(0, BESIDE, WRITES, 0, keys, row, 4, width, queries, 4 * PANEL, out, 4 * PANEL)
    if shape.softcap:
        for p in range(count):
            for lane in range(PANEL):
                scores[p, lane] = shape.softcap * tanh(scores[p, lane] / shape.softcap)
    last = span.position + span.rows - 1
    if low + count - 1 > span.position or (span.window and low <= last - span.window):
        _hide(span, low, count, block.positions[panel], scores)
    filled = -(-count // BESIDE) * BESIDE
    for p in range(count, filled):
        for lane in range(PANEL):
            scores[p, lane] = NONE_YET
    largest, totals = address(block.largest[panel]), address(block.totals[panel])
    return exponentials(address(scores), filled, largest, totals, address(block.factors))


@njit(**FLAGS)
def _hide(span: Any, low: int, count: int, positions: Any, scores: Any) -> None:
    """Replace the scores of positions that a row does not see.

    If it sees none so far, it adds up what it does not see; the first score that it sees scales that down to nothing,
    in this span or when spans are put together.
    """
    for p in range(count):
        for lane in range(PANEL):
            own = positions[lane]
            if low + p > own or (span.window and low + p <= own - span.window):
                scores[p, lane] = NONE_YET


@njit(**FLAGS)
def _add(shape: Any, count: int, rescales: int, panel: int, block: Any) -> None:
    """Scale a panel's sums of values unless the factors are all 1, and add those of a tile."""
    width, sums = shape.head_dim, block.sums[panel]
    if rescales:
        scale_rows(address(sums), width, address(block.factors))
    for j in range(0, width, BESIDE):
        values, out = address(block.values) + 4 * j, address(sums) + 4 * j * PANEL
        outer_tile(
            0, BESIDE, ADDS, 0, values, 4, block.values.strides[0], count, address(block.scores), 4 * PANEL, out,
            4 * PANEL,
        )  # fmt: skip


@njit(**FLAGS)
def _leave(shape: Any, span: Any, kv_head: int, block: Any, partials: Any) -> None:
    """Write each row's unfinished sums: values, the largest score, the sum of exponentials."""
    width, rows, sharing = shape.head_dim, _padded(span.rows), shape.heads // shape.kv_heads
    to_next = span.partials * partials.strides[0]
    for first in range(0, sharing * rows, SQUARE):
        head, row = kv_head * sharing + first // rows, first % rows
        panel, lane = first // PANEL, first % PANEL
        some, partial = min(SQUARE, span.rows - row), span.partial + row * span.partials
        if some == SQUARE:
            sums = address(block.sums[panel]) + 4 * lane
            for j in range(0, width, SQUARE):
                out = address(partials) + partial * partials.strides[0] + head * partials.strides[1] + 4 * j
                transpose(sums + 4 * j * PANEL, 4 * PANEL, out, to_next)
        for r in range(some):
            own = partials[partial + r * span.partials, head]
            if some < SQUARE:
                for j in range(width):
                    own[j] = block.sums[panel, j, lane + r]
            own[width], own[width + 1] = block.largest[panel, lane + r], block.totals[panel, lane + r]
