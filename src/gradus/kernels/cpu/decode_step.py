"""A decode step on a CPU: five stages per layer, instead of torch's few hundred small operations.

    qkv        normalize the residual stream, multiply                     x → queries, keys, values
    attend     turn heads to their positions, store, read the pages        → unfinished sums of each span
    output     put the spans together, multiply, add to the stream         → x
    up         normalize, multiply, activate                               x → features
    down       multiply, add to the stream                                 → x

and `head` at the end. Some models have more: a stage that normalizes a block's output before adding it (Gemma 3); one
before `attend` that normalizes all of a token's query heads together, and all its key heads (OLMo); and `gate` and a
second `down`, where every layer has an embedding of its own of each token (Gemma 4 E2B). A layer with experts has other
stages instead of the last two, or around them:

    route      normalize, multiply                                         x → the router's logits
    divide     choose each row's experts, group rows by expert
    experts up, experts down    multiply each group's rows with its expert's matrices
    mix        add up each row's experts, and the dense MLP                → x

Each stage is divided into chunks of columns (attention: spans of positions; experts: columns of a group), which threads
take as they become free (`team.py`). Each thread normalizes and rounds a stage's input once for itself, which costs
less than another stage.

A step's data lies in a few arrays, allocated once; each step fills in its rows and calls `run`. One function
serves every model, number of layers and scheme, so it is compiled once, and its code is kept on disk.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gradus.kernels.cpu.activations import Rows, padded, prepare
from gradus.kernels.cpu.attention.block import Block, attend_block
from gradus.kernels.cpu.attention.row import Scratch, attend, gather
from gradus.kernels.cpu.attention.spans import divide
from gradus.kernels.cpu.elementary import (
    activate,
    add_scaled,
    copy,
    exp,
    gate_each,
    multiply_each,
    normalize,
    scale_by,
    tanh,
)
from gradus.kernels.cpu.experts.choice import DOWN_COLUMNS, UP_COLUMNS, Room
from gradus.kernels.cpu.experts.stages import add_up, divide_experts, multiply_group
from gradus.kernels.cpu.greedy import NOTHING, token, winner
from gradus.kernels.cpu.kept.code import kept, sources
from gradus.kernels.cpu.machine import FLAGS, load
from gradus.kernels.cpu.product import multiply
from gradus.kernels.cpu.team import BETWEEN_STEPS, FIRST, OVER, PATIENCE, WITHIN_STEP, finish, open_step, take, wait

f32 = np.float32

QKV, NORMALIZE_HEADS, ATTEND, OUTPUT, ADD_NORMALIZED, UP, DOWN, GATE, HEAD, BESIDE = range(10)
"""GATE: the product that gates a layer's own embedding of each token. BESIDE: a product outside the model's step, which
runs on its own."""
ROUTE, DIVIDE, EXPERTS_UP, EXPERTS_DOWN, MIX = range(10, 15)
"""Stages of experts. Those behind ROUTE have no chunks of columns of one matrix (`experts/stages.py`)."""

STAGE = np.dtype(
    [
        ("kind", np.int64),
        ("layer", np.int64),
        ("matrix", np.int64),  # the first of `parts` records
        ("parts", np.int64),
        ("columns", np.int64),  # of the result, or of each of its halves
        ("halves", np.int64),  # 2 if the result is [gate, up]
        ("chunk", np.int64),  # columns of a chunk
        ("norm", np.int64),  # addresses of float32; 0: none
        ("norm_bias", np.int64),
        ("key_norm", np.int64),  # of all key heads as one row, `norm` being that of the query heads
        ("eps", np.float32),
        ("alike", np.int64),  # whether activations are prepared once for all of them
        ("activation", np.int64),
        ("onto", np.int64),  # whether the result is added to the stream; else it goes to `added`
        ("scale", np.float32),  # of the stream, once the result is added to it
        ("gate", np.int64),  # the column of the router's logits that gates the features, counted from 1; 0: none
        ("given", np.int64),  # whether experts read a prompt's rows, which torch has routed, and leave the sum there
    ]
)

WANTED = 3  # of `Step.rows`

SHAPE = np.dtype(
    [
        ("rows", np.int64),  # of this step
        ("wanted", np.int64),  # number of rows that get logits
        ("hidden", np.int64),
        ("softcap", np.float32),  # of the logits; 0: none
        ("greedy", np.int64),  # whether the head chooses tokens and stores no logits
    ]
)


class Step(NamedTuple):
    """All data of a step. Buffers are float32 [R, …], R being MOST_ROWS: one row per new token.

    shape: SHAPE [1]; heads: HEADS [layers]; stages: STAGE [S]; matrices: MATRIX; layers: LAYER [layers].
    chunks: int64 [S], the number of chunks of each stage in this step.
    rows: int64 [4, R]: each row's slot, its position, and the number of rows of the same slot right before it; then
    the numbers of the rows that get logits.
    contexts: CONTEXT [groups of layers]; spans: SPAN [groups, most]; span_starts: int64 [groups, R + 1], the first
    partial of each row, and the end.
    x: the stream, [R, D], and behind it the tokens' embeddings of every layer, [R, layers, P], if there are any.
    partials: float32 [most, Hq, Dh + 2], Dh being that of the widest layer, as in qkv and features.
    winners: int64 [chunks of the head, R], see `greedy.py`; tokens: int64 [R], the choice.
    given, made: inputs and results of products outside the step, as wide as the widest of each.
    mixtures: MIXTURE [layers]; room: what their experts work in.
    """

    shape: Any
    heads: Any
    stages: Any
    chunks: NDArray[np.int64]
    rows: NDArray[np.int64]
    matrices: Any
    layers: Any
    contexts: Any
    spans: Any
    span_starts: NDArray[np.int64]
    x: NDArray[np.float32]
    qkv: NDArray[np.float32]
    partials: NDArray[np.float32]
    added: NDArray[np.float32]
    features: NDArray[np.float32]
    logits: NDArray[np.float32]
    winners: NDArray[np.int64]
    tokens: NDArray[np.int64]
    given: NDArray[np.float32]
    made: NDArray[np.float32]
    mixtures: Any
    room: Room


class Worker(NamedTuple):
    """One thread's own buffers: copies of activations, and what they were made for: the stage, counted over all steps,
    and the first place of an expert's group."""

    rows: Rows
    scratch: Scratch
    block: Block
    ready: NDArray[np.int64]
    products: NDArray[np.float32]  # [R, columns], a chunk's product before it is added


@njit(**FLAGS)
def run_chunk(step: Step, worker: Worker, number: int, index: int, chunk: int) -> None:
    """Run one chunk of stage `index`. `number` counts stages over all steps, so it distinguishes this step's stage."""
    stage = step.stages[index]
    if stage.kind == ATTEND:
        layer = step.layers[stage.layer]
        span = step.spans[layer.group, chunk]
        if span.rows == 1:
            attend(step.heads[stage.layer], layer, span, step.qkv, worker.scratch, step.partials[span.partial])
        else:
            attend_block(step.heads[stage.layer], layer, span, step.qkv, worker.block, step.partials)
        return
    if stage.kind == ADD_NORMALIZED:
        _add_normalized(step, stage, worker)
        return
    if stage.kind == NORMALIZE_HEADS:
        _normalize_heads(step, stage)
        return
    if stage.kind > ROUTE:
        _run_experts(step, stage, worker, number, index, chunk)
        return
    low = chunk * stage.chunk
    high = min(low + stage.chunk, stage.columns)
    if worker.ready[0] != number:
        _fill(step, stage, worker.rows)
        prepare(step.matrices[stage.matrix], padded(_count(step, stage)), worker.rows)
        worker.ready[0] = number
    chooses = stage.kind == HEAD and step.shape[0].greedy != 0
    y = _result(step, stage, worker, chooses)
    before = low if chooses else 0  # columns of the result that y leaves out
    for half in range(stage.halves):
        _multiply(step, stage, before, low + half * stage.columns, high + half * stage.columns, worker.rows, y)
    if stage.kind == UP or stage.kind == GATE:
        _activate(step, stage, low, high, y)
    elif stage.kind == HEAD:
        _cap(step, low - before, high - before, y)
        if chooses:
            _leave_winners(step, chunk, low, high, y)
    elif stage.kind != QKV and stage.kind != BESIDE and stage.kind != ROUTE:
        _add(step, stage, low, high, y)


@njit(**FLAGS)
def _run_experts(step: Step, stage: Any, worker: Worker, number: int, index: int, chunk: int) -> None:
    if stage.kind == DIVIDE:
        divide_experts(step, index)
    elif stage.kind == EXPERTS_UP:
        multiply_group(step, stage, worker, number, chunk, UP_COLUMNS)
    elif stage.kind == EXPERTS_DOWN:
        multiply_group(step, stage, worker, number, chunk, DOWN_COLUMNS)
    else:
        add_up(step, stage, worker, chunk)


# -- a stage's input ---------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _fill(step: Step, stage: Any, rows: Rows) -> None:
    """Fill a thread's copy of the activations that a stage multiplies; padding rows are zeros."""
    shape, count = step.shape[0], _count(step, stage)
    for r in range(count):
        if stage.kind == OUTPUT:
            layer = step.layers[stage.layer]
            first, end = step.span_starts[layer.group, r], step.span_starts[layer.group, r + 1]
            gather(step.heads[stage.layer], layer, step.partials, first, end - first, rows.x[r])
        elif stage.kind == DOWN:
            copy(step.features[r, : step.matrices[stage.matrix].width], rows.x[r])
        elif stage.kind == BESIDE:
            copy(step.given[r, : step.matrices[stage.matrix].width], rows.x[r])
        elif stage.kind == HEAD:
            row = step.x[step.rows[WANTED, r]]
            normalize(row, shape.hidden, stage.norm, stage.norm_bias, stage.eps, rows.x[r])
        elif not stage.norm:
            copy(step.x[r, : shape.hidden], rows.x[r])
        else:
            normalize(step.x[r], shape.hidden, stage.norm, stage.norm_bias, stage.eps, rows.x[r])
    for r in range(count, padded(count)):
        rows.x[r] = f32(0)


@njit(**FLAGS)
def _count(step: Step, stage: Any) -> int:
    """The number of rows of a stage's product."""
    return step.shape[0].wanted if stage.kind == HEAD else step.shape[0].rows


@njit(**FLAGS)
def _multiply(step: Step, stage: Any, before: int, low: int, high: int, rows: Rows, y: Any) -> None:
    """Compute columns low to high of the stage's product. Its matrix may consist of several, side by side."""
    count = padded(_count(step, stage))
    for part in range(stage.matrix, stage.matrix + stage.parts):
        matrix = step.matrices[part]
        start, end = max(low - matrix.first, 0), min(high - matrix.first, matrix.rows)
        if start >= end:
            continue
        if not stage.alike:  # each part needs its activations prepared in its own way
            prepare(matrix, count, rows)
        multiply(matrix, matrix.first - before, start, end, count, rows, y)


# -- after a product ---------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _result(step: Step, stage: Any, worker: Worker, chooses: bool) -> Any:
    """The product's destination: a buffer of the step, or the thread's own if it processes the product further."""
    if stage.kind == QKV:
        return step.qkv
    if stage.kind == BESIDE:
        return step.made
    if stage.kind == ROUTE:
        return step.room.logits
    return step.logits if stage.kind == HEAD and not chooses else worker.products


@njit(**FLAGS)
def _add(step: Step, stage: Any, low: int, high: int, products: Any) -> None:
    for r in range(step.shape[0].rows):
        if stage.onto:
            add_scaled(step.x[r, low:high], products[r, low:high], stage.scale)
        else:
            copy(products[r, low:high], step.added[r, low:high])


@njit(**FLAGS)
def _add_normalized(step: Step, stage: Any, worker: Worker) -> None:
    shape = step.shape[0]
    for r in range(shape.rows):
        out = worker.products[r]
        normalize(step.added[r], shape.hidden, stage.norm, stage.norm_bias, stage.eps, out)
        add_scaled(step.x[r, : shape.hidden], out[: shape.hidden], stage.scale)


@njit(**FLAGS)
def _normalize_heads(step: Step, stage: Any) -> None:
    """Normalize each row's query heads as one row of numbers, and its key heads as another, if it has any."""
    shape = step.heads[stage.layer]
    q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for r in range(step.shape[0].rows):
        queries, keys = step.qkv[r, :q_width], step.qkv[r, q_width : q_width + kv_width]
        normalize(queries, q_width, stage.norm, 0, stage.eps, queries)
        if stage.key_norm:
            normalize(keys, kv_width, stage.key_norm, 0, stage.eps, keys)


@njit(**FLAGS)
def _activate(step: Step, stage: Any, low: int, high: int, products: Any) -> None:
    """Compute features low to high from the first half of the product and what it gates: the second half, if there is
    one, or the token's own embedding in this layer."""
    own = step.shape[0].hidden + stage.layer * stage.columns
    for r in range(step.shape[0].rows):
        gates, features = products[r, low:high], step.features[r, low:high]
        if stage.halves == 2:
            gate_each(stage.activation, gates, products[r, stage.columns + low :], features)
        elif stage.kind == GATE:
            activate(stage.activation, gates)
            multiply_each(gates, step.x[r, own + low :], features)
        else:
            activate(stage.activation, gates)
            copy(gates, features)
        if stage.gate:
            scale_by(features, f32(1) / (f32(1) + exp(-step.room.logits[r, stage.gate - 1])))


@njit(**FLAGS)
def _cap(step: Step, low: int, high: int, logits: Any) -> None:
    cap = step.shape[0].softcap
    if cap:
        for r in range(step.shape[0].wanted):
            for i in range(low, high):
                logits[r, i] = cap * tanh(logits[r, i] / cap)


@njit(**FLAGS)
def _leave_winners(step: Step, chunk: int, low: int, high: int, logits: Any) -> None:
    """Store each row's winner among the head's columns low to high, which are the first columns of `logits`."""
    for r in range(step.shape[0].wanted):
        step.winners[chunk, r] = winner(logits[r], high - low, low)


@njit(**FLAGS)
def _choose(step: Step) -> None:
    """Choose each row's token from the winners of all chunks."""
    for r in range(step.shape[0].wanted):
        best = NOTHING
        for chunk in range(step.winners.shape[0]):
            best = max(best, step.winners[chunk, r])
        step.tokens[r] = token(best)


# -- a whole step ------------------------------------------------------------------------------------------------------


@njit(**FLAGS)
def _divide(step: Step) -> None:
    """Divide every row's context into spans, for each group of layers: the chunks of their stages of attention."""
    rows = step.rows[:WANTED, : step.shape[0].rows]
    for group in range(len(step.contexts)):
        count = divide(step.contexts[group], rows, step.spans[group], step.span_starts[group])
        for index in range(len(step.stages)):
            stage = step.stages[index]
            if stage.kind == ATTEND and step.layers[stage.layer].group == group:
                step.chunks[index] = count


def _compiled(made_of: int) -> Callable[[int, Step, Worker, int, int], None]:
    @kept
    def run(words: int, step: Step, worker: Worker, first: int, stages: int) -> None:
        """Open a step of `stages` stages from `first` on, and take part in it.

        With 0 stages, take part in the steps that others open, until there is nothing to do for PATIENCE turns.
        """
        turns = made_of & 0  # puts the sources' number into the closure, for `kept`
        if stages:
            if first == 0:  # not a product outside the model's step
                _divide(step)
            open_step(words, first, stages)
        while True:
            stage, chunk = take(words, step.chunks)
            if stage >= 0:
                run_chunk(step, worker, load(words, FIRST) + stage, stage, chunk)
                finish(words, step.chunks[stage])
                turns = 0
            elif stage == OVER and (stages or turns >= load(words, PATIENCE)):
                if stages and step.shape[0].greedy:
                    _choose(step)
                return
            else:
                turns = wait(turns, BETWEEN_STEPS if stage == OVER else WITHIN_STEP)

    return run


run = _compiled(sources())
