"""The operations of a step in plain array code: a CPU's step runs them, and the kernels of this room are tested against
them.

Arrays are numpy columns, which share their memory with the tables' tensors. Where torch would spend two or three
microseconds on each small operation, numpy spends less than one. `rows.py` has the records; each function's arguments
are those of the kernel with its name.
"""

from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradus.engine.plan import REJECTED, UNDRAFTED, Column, Decodes
from gradus.kernels.step.rows import DecodeRows, StepOperations, VerifyRows

Tokens = NDArray[Any]


def decode_rows(
    slots: Column, limits: Column, history: Tokens, known: Column, tables: Column | None = None, page_size: int = 1
) -> DecodeRows:
    """See `decode_rows.py`. tables: None leaves out the places of keys and values."""
    lengths = known[slots]
    live = lengths <= limits
    owners, tokens = slots, history[slots, np.minimum(lengths, history.shape[1]) - 1].astype(np.int64)
    if live.all():
        known[slots] = lengths + 1
    else:
        known[slots[live]] = lengths[live] + 1
        owners = np.where(live, slots, len(known) - 1)
        tokens, lengths = np.where(live, tokens, 0), np.where(live, lengths, 0)
    positions = np.maximum(lengths - 1, 0)
    where = None if tables is None else places(owners, positions, tables, page_size)
    return DecodeRows(tokens, positions, owners, lengths, where)


def pack_rows(
    slots: Column,
    limits: Column,
    most: Column,
    barred: NDArray[np.int32] | None,
    history: Tokens,
    known: Column,
    drafts: Column,
    tables: Column | None = None,
    page_size: int = 1,
    rows: int | None = None,
) -> VerifyRows:
    """See `verify.py`. barred: None bars no slot. rows: None packs the rows in use alone."""
    lengths = known[slots]
    found = (drafts >= 0).cumprod(1).sum(1)
    if barred is not None:
        found *= barred[slots] == 0
    counts = np.minimum(1 + np.minimum(found, most), limits - (lengths - 1)).clip(0)
    ends = counts.cumsum()
    live = int(ends[-1]) if len(ends) else 0
    rows = live if rows is None else rows
    spans = np.repeat(np.arange(len(slots)), counts)
    before = np.arange(live) - (ends - counts)[spans]
    choices = np.concatenate([history[slots, lengths - 1][:, None], drafts], axis=1)
    padding = (0, rows - live)
    owners = np.pad(slots[spans], padding, constant_values=len(known) - 1)
    positions = np.pad(lengths[spans] - 1 + before, padding)
    return VerifyRows(
        np.pad(choices[spans, before], padding),
        positions,
        owners,
        np.where(np.arange(rows) < live, positions + 1, 0),
        None if tables is None else places(owners, positions, tables, page_size),
        np.concatenate([[0], ends]),
        np.where(counts > 0, lengths - 1 + counts, 0),
    )


def accept_drafts(
    slots: Column,
    rows: VerifyRows,
    drawn: Column,
    history: Tokens,
    known: Column,
    depth: int,
    hidden: Tensor | None = None,
    states: Tensor | None = None,
) -> tuple[Column, Column]:
    """See `verify.py`. hidden, states: tensors, since numpy lacks their types."""
    spans, before = spans_of(rows)
    drawn, tokens = drawn[: len(spans)], rows.tokens[: len(spans)]
    stands = standing(drawn, tokens, before)
    kept, origins = np.full((len(slots), 1 + depth), UNDRAFTED), np.zeros((len(slots), 1 + depth), np.int64)
    kept[spans, before], origins[spans, before] = np.where(stands, drawn, REJECTED), np.arange(len(spans))
    mine, accepted = slots[spans[stands]], np.bincount(spans[stands], minlength=len(slots))
    history[mine, known[mine] + before[stands]] = np.maximum(drawn[stands], 0)
    known[slots] += accepted
    if hidden is not None and states is not None:
        last = (rows.query_start[:-1] + accepted - 1)[accepted > 0]
        states[torch.from_numpy(slots[accepted > 0])] = hidden[torch.from_numpy(last)].to(states.dtype)
    return kept, origins


def standing(drawn: Column, tokens: Column, before: Column) -> NDArray[np.bool_]:
    """Find the rows whose drawn tokens count, bool [R]: all drafts up to them are right.

    tokens: what each row runs. before: how many drafts its span has up to and including it. A draft is right if the row
    before it drew the same token. A row without a finite logit does not count either, unless it is its span's first:
    the next step computes that row first if the sequence really gets there.
    """
    wrong = (before > 0) & ((np.roll(drawn, 1) != tokens) | (drawn < 0))
    count = wrong.cumsum()
    return cast(NDArray[np.bool_], count == count[np.arange(len(drawn)) - before])


def keep_prompts(
    said: tuple[Column, Column, Column],
    rows: tuple[Column, Column, Column],
    first: int,
    history: Tokens,
    known: Column,
    hidden: Tensor,
    states: Tensor | None = None,
) -> None:
    """See `prompt_history.py`."""
    owners, places, tokens = said
    if history.shape[1] > 1:
        history[owners, places] = tokens
    slots, positions, drawn = (each[first:] for each in rows)
    write_drawn(slots, positions, drawn, history)
    known[slots] = positions + 1
    if states is not None:
        states[torch.from_numpy(slots)] = hidden[first:].to(states.dtype)


def spans_of(rows: VerifyRows) -> tuple[Column, Column]:
    """Return the span of each row that has one, and how many drafts it has up to and including this row."""
    counts = np.diff(rows.query_start)
    spans = np.repeat(np.arange(len(counts)), counts)
    return spans, np.arange(len(spans)) - rows.query_start[spans]


def places(slots: Any, positions: Any, tables: Any, page_size: int) -> Any:
    """Find where positions of slots are stored, [G, R], as `places.py` does, in columns or tensors."""
    return tables[:, slots, positions // page_size] * page_size + positions % page_size


def write_drawn(slots: Column, ends: Column, tokens: Column, history: Tokens) -> None:
    """Write the tokens drawn for rows to the history, as a draw does on a GPU: each at its end, and token 0 where no
    logit was finite."""
    history[slots, np.minimum(ends, history.shape[1] - 1)] = np.maximum(tokens, 0)


def inputs(decodes: Decodes, device: torch.device) -> tuple[Column, Column, Column]:
    """See `StepOperations`."""
    return decodes.slots, decodes.limits, decodes.drafts if len(decodes.drafts) else np.zeros_like(decodes.slots)


PLAIN = StepOperations(inputs, decode_rows, pack_rows, accept_drafts, keep_prompts, lambda early: nullcontext())
