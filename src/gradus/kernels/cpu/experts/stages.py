"""The stages of a layer's experts: choose, multiply by expert, and add up.

A chunk of a product is some columns of one group's expert. Each choice's result has a row of its own, so threads add to
nothing that another writes, and a row's sum is taken in the order of its experts, whatever rows are next to it.
"""

from typing import Any

import numpy as np
from numba import njit

from gradus.kernels.cpu.activations import padded, prepare
from gradus.kernels.cpu.byte_products import IN_BYTES
from gradus.kernels.cpu.elementary import activate, add_scaled, copy, gate_each, normalize
from gradus.kernels.cpu.experts.choice import (
    COUNT,
    DOWN_COLUMNS,
    EXPERT,
    FIRST,
    GROUPS,
    UP_COLUMNS,
    choose,
    columns_of,
    group,
)
from gradus.kernels.cpu.machine import FLAGS
from gradus.kernels.cpu.matrix import BLOCKS
from gradus.kernels.cpu.outer import PANEL
from gradus.kernels.cpu.product import multiply

f32 = np.float32

PANEL_FROM = 8
"""Rows that are multiplied faster as a panel of bytes, padding included, than widened weights are with them."""


@njit(**FLAGS)
def divide_experts(step: Any, index: int) -> None:
    """Choose each row's experts, unless they are given, and divide the two products, which the next stages compute."""
    stage, room, shape = step.stages[index], step.room, step.shape[0]
    mixture = step.mixtures[stage.layer]
    if not stage.given:
        choose(mixture, room, shape.rows)
    group(mixture, room, shape.rows)
    groups = room.division[GROUPS]
    for which, width in ((UP_COLUMNS, mixture.width), (DOWN_COLUMNS, shape.hidden)):
        columns = columns_of(width, step.stages[index + which].chunk, groups, mixture.fewest)
        room.division[which] = columns
        step.chunks[index + which] = groups * -(-width // columns)


@njit(**FLAGS)
def multiply_group(step: Any, stage: Any, worker: Any, number: int, chunk: int, which: int) -> None:
    """Multiply the rows of a group with some columns of its expert. which: UP_COLUMNS or DOWN_COLUMNS."""
    mixture, room = step.mixtures[stage.layer], step.room
    width = mixture.width if which == UP_COLUMNS else step.shape[0].hidden
    columns = room.division[which]
    pieces = -(-width // columns)
    mine = room.groups[chunk // pieces]
    low = chunk % pieces * columns
    high = min(low + columns, width)
    count = _padded(step.matrices[stage.matrix], mine[COUNT])
    alone = which == UP_COLUMNS and step.shape[0].rows == 1  # all experts read the same row
    if worker.ready[0] != number or (worker.ready[1] != mine[FIRST] and not alone):
        _fill(step, stage, worker.rows, mine, which, count)
        prepare(step.matrices[stage.matrix], count, worker.rows)
        worker.ready[0], worker.ready[1] = number, mine[FIRST]
    for half in range(stage.halves):
        start = (half * mixture.count + mine[EXPERT]) * width
        _multiply_rows(step, stage, start, low, high, half * width, count, worker)
    for i in range(mine[COUNT]):
        place, products = mine[FIRST] + i, worker.products[i]
        if which == DOWN_COLUMNS:
            _share(products[low:high], room.shares[place], room.mixed[place, low:high])
        elif stage.halves == 2:
            gate_each(stage.activation, products[low:high], products[width + low :], room.features[place, low:high])
        else:
            activate(stage.activation, products[low:high])
            copy(products[low:high], room.features[place, low:high])


@njit(**FLAGS)
def _padded(matrix: Any, count: int) -> int:
    """Round a group's rows up to a number that a product can work on; where panels are multiplied in bytes, to whole
    panels, unless it is only a few rows more than those."""
    if IN_BYTES and matrix.kind >= BLOCKS and matrix.rounds and count % PANEL >= PANEL_FROM:
        return -(-count // PANEL) * PANEL
    return padded(count)


@njit(**FLAGS)
def _fill(step: Any, stage: Any, rows: Any, mine: Any, which: int, count: int) -> None:
    """Fill a thread's copy of the activations that a group's expert reads; padding rows, up to `count`, are zeros."""
    room, hidden = step.room, step.shape[0].hidden
    for i in range(mine[COUNT]):
        place = mine[FIRST] + i
        row = room.owners[place]
        if which == DOWN_COLUMNS:
            copy(room.features[place, : step.mixtures[stage.layer].width], rows.x[i])
        elif stage.given:
            copy(room.given[row, :hidden], rows.x[i])
        elif not stage.norm:
            copy(step.x[row, :hidden], rows.x[i])
        else:
            normalize(step.x[row], hidden, stage.norm, stage.norm_bias, stage.eps, rows.x[i])
    for i in range(mine[COUNT], count):
        rows.x[i] = f32(0)


@njit(**FLAGS)
def _multiply_rows(
    step: Any, stage: Any, start: int, low: int, high: int, to: int, count: int, worker: Any
) -> None:  # fmt: skip
    """Multiply rows start + low to start + high of a stack, into columns to + low to to + high of the products."""
    for part in range(stage.matrix, stage.matrix + stage.parts):
        matrix = step.matrices[part]
        first, end = max(start + low - matrix.first, 0), min(start + high - matrix.first, matrix.rows)
        if first >= end:
            continue
        if not stage.alike:
            prepare(matrix, count, worker.rows)
        multiply(matrix, matrix.first - start + to, first, end, count, worker.rows, worker.products)


@njit(**FLAGS)
def _share(products: Any, share: Any, out: Any) -> None:
    for j in range(products.shape[0]):
        out[j] = products[j] * share


@njit(**FLAGS)
def add_up(step: Any, stage: Any, worker: Any, chunk: int) -> None:
    """Add up the experts' results of each row of a chunk, and the dense MLP's, and add them to the stream."""
    mixture, room, hidden = step.mixtures[stage.layer], step.room, step.shape[0].hidden
    for r in range(chunk, step.shape[0].rows, stage.columns):
        total = worker.products[0, :hidden]
        copy(room.mixed[room.places[r, 0], :hidden], total)
        for j in range(1, mixture.chosen):
            _add(total, room.mixed[room.places[r, j]])
        if stage.given:
            copy(total, room.given[r])
            continue
        if mixture.out_norm:
            normalize(total, hidden, mixture.out_norm, 0, mixture.eps, total)
        if mixture.adds:
            if mixture.dense_norm:
                normalize(step.added[r], hidden, mixture.dense_norm, 0, mixture.eps, step.added[r])
            _add(total, step.added[r])
        if mixture.sum_norm:
            normalize(total, hidden, mixture.sum_norm, 0, mixture.eps, total)
        add_scaled(step.x[r, :hidden], total, stage.scale)


@njit(**FLAGS)
def _add(total: Any, values: Any) -> None:
    for j in range(total.shape[0]):
        total[j] += values[j]
