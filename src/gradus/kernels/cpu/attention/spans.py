"""Divides a step's attention into spans: positions of one row, or of several rows of a sequence that share them.

Every group of layers has its own division, because a window shortens what its rows see. Rows of one sequence that fill
a block attend together (`block.py`); each of the others is on its own (`row.py`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gradus.kernels.cpu.attention.block import MOST_TOGETHER, TILE
from gradus.kernels.cpu.attention.row import LONGEST
from gradus.kernels.cpu.machine import FLAGS

FEWEST_KEYS = 32  # fewest keys of a span

CONTEXT = np.dtype(
    [
        ("tables", np.int64),  # the address of the group's block tables, int64 [slots, longest]
        ("longest", np.int64),
        ("window", np.int64),  # positions that a row looks back on, itself included; 0: all
        ("threads", np.int64),
        ("fewest", np.int64),  # fewest keys of a span
        ("together", np.int64),  # fewest rows of a sequence that attend as one block
    ]
)
"""The part of a division that all steps of a group of layers share."""


@njit(**FLAGS)
def divide(context: Any, rows: Any, spans: Any, starts: Any) -> int:
    """Write one group's SPANs to spans [most], and return their number.

    rows: int64 [3, R]: each row's slot, its position, and the number of rows of the same sequence right before it in
    the step. starts: int64 [R + 1], the first partial of each row, and the end.
    """
    window, slots, positions, before = context.window, rows[0], rows[1], rows[2]
    total, count, row = 0, 0, 0
    for position in positions:
        total += position + 1 - _oldest(position, window)
    alone = min(LONGEST, max(context.fewest, -(-total // (2 * context.threads))))
    starts[0] = 0
    while row < len(slots):
        together = _together(context.together, before, row)
        low, end = _oldest(positions[row], window), positions[row] + together
        length = alone if together == 1 else _shared_length(context.threads, end - low, together, total)
        pieces, partial = -(-(end - low) // length), starts[row]
        table = context.tables + 8 * slots[row] * context.longest
        for piece in range(pieces):
            span = spans[count + piece]
            span.row, span.rows, span.position, span.before = row, together, positions[row], before[row]
            span.low, span.high = low + piece * length, min(low + (piece + 1) * length, end)
            span.window, span.table, span.partial, span.partials = window, table, partial + piece, pieces
        for more in range(1, together + 1):
            starts[row + more] = partial + more * pieces
        row, count = row + together, count + pieces
    return count


@njit(**FLAGS)
def _oldest(position: int, window: int) -> int:
    """The oldest position that a row sees."""
    return max(0, position - window + 1) if window else 0


@njit(**FLAGS)
def _together(fewest: int, before: Any, row: int) -> int:
    """Count the rows from `row` on that share spans: a sequence's, in parts of up to MOST_TOGETHER; 1 if a part has
    fewer than `fewest`."""
    end = row + 1
    while end < len(before) and before[end] % MOST_TOGETHER != 0:
        end += 1
    return end - row if before[row] % MOST_TOGETHER == 0 and end - row >= fewest else 1


@njit(**FLAGS)
def _shared_length(threads: int, keys: int, rows: int, total: int) -> int:
    """Positions of a span that several rows share, in whole tiles: each is about as much work, and together with all
    others of a step, `total` keys of single rows, there are two for each thread."""
    spans = max(1, round(keys * rows * 2 * threads / max(total, 1)))
    return -(-keys // (spans * TILE)) * TILE


def most_spans(rows: int, context_length: int, threads: int) -> int:
    """The most spans of a step: all rows have the longest context, cut by LONGEST or evenly, plus a remainder each."""
    return rows * (-(-context_length // LONGEST) + 2 * threads + 1)


def contexts(tables: NDArray[np.int64], windows: Sequence[int | None], threads: int, together: int) -> NDArray[np.void]:
    """Describe the groups of layers with these block tables, int64 [groups, slots, longest], which must stay where they
    are."""
    groups, _, longest = tables.shape
    rows = [
        (tables[group].ctypes.data, longest, windows[group] or 0, threads, FEWEST_KEYS, together)
        for group in range(groups)
    ]
    return np.array(rows, CONTEXT)
