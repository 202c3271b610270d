"""Packs a decode step's rows on the GPU, and accepts the tokens drawn for them.

Idea: only the device knows how long sequences are and what was drafted, and a CUDA graph has a fixed number of rows. So
`pack_rows` packs the rows of all sequences to the front (each one's newest token and its drafts, as far as it may
verify and store them) and leaves the rest to padding. `accept_drafts` compares each draft with the token that the row
before it drew, and appends the accepted tokens to the history; if drafts are made from hidden states, it also keeps the
last accepted row's. A step without drafts has one row per sequence, and accepts every token drawn. As torch operations
these are some fifty launches.

Bytes: a few numbers per row, and a hidden state per span. A program of `pack_rows` takes BLOCK rows; one of
`accept_drafts` takes a span, and COLUMNS of its state.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.engine import plan
from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.step.places import place_of
from gradus.kernels.step.rows import VerifyRows

BLOCK, COLUMNS = 32, 512
REJECTED, UNDRAFTED = constexpr(plan.REJECTED), constexpr(plan.UNDRAFTED)


@triton.jit
def store_places(
    places_ptr: tensor, tables_ptr: tensor, row: tensor, slot: tensor, position: tensor, inside: tensor, rows: int,
    group_stride: int, slot_stride: int, PAGE: constexpr, GROUPS: constexpr,
) -> None:  # fmt: skip
    """Write to places [GROUPS, rows] where each row's key and value go in each layer group."""
    for group in tl.static_range(GROUPS):
        place = place_of(tables_ptr + group * group_stride, slot, position, inside, slot_stride, PAGE)
        tl.store(places_ptr + group * rows + row, place, mask=inside)


@triton.jit(do_not_specialize=["spans", "rows", "padding"])
def pack_rows_kernel(
    slots_ptr: tensor, limits_ptr: tensor, most_ptr: tensor, barred_ptr: tensor, history_ptr: tensor, known_ptr: tensor,
    drafts_ptr: tensor, tables_ptr: tensor, tokens_ptr: tensor, positions_ptr: tensor, owners_ptr: tensor,
    ends_ptr: tensor, places_ptr: tensor, query_start_ptr: tensor, lengths_ptr: tensor, spans: int, rows: int,
    width: int, group_stride: int, slot_stride: int, padding: int, K: constexpr, PAGE: constexpr,
    GROUPS: constexpr, SPANS: constexpr, BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    let_next_start(PDL)
    wait_for_previous(PDL)
    span = tl.arange(0, SPANS)
    inside = span < spans
    slot = tl.load(slots_ptr + span, mask=inside, other=0)
    known = tl.load(known_ptr + slot, mask=inside, other=1).to(tl.int32)
    count = inside.to(tl.int32)
    drafted = inside & (tl.load(barred_ptr + slot, mask=inside, other=0) == 0)
    for number in tl.static_range(K):
        drafted = drafted & (tl.load(drafts_ptr + span * K + number, mask=inside, other=-1) >= 0)
        count += drafted.to(tl.int32)
    if K > 0:
        count = tl.minimum(count, 1 + tl.load(most_ptr + span, mask=inside, other=0))
    limit = tl.load(limits_ptr + span, mask=inside, other=0)
    count = tl.where(inside, tl.maximum(tl.minimum(count, limit - (known - 1)), 0), 0)
    ends = tl.cumsum(count)
    if tl.program_id(0) == 0:
        tl.store(query_start_ptr, 0)
        tl.store(query_start_ptr + span + 1, ends, mask=inside)
        tl.store(lengths_ptr + span, tl.where(count > 0, known - 1 + count, 0), mask=inside)

    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    passed = (ends[None, :] <= row[:, None]) & inside[None, :]
    mine = tl.sum(passed.to(tl.int32), 1)
    before = row - tl.max(tl.where(passed, ends[None, :], 0), 1)
    live, kept = mine < spans, row < rows
    owner = tl.load(slots_ptr + mine, mask=live, other=0)
    position = tl.load(known_ptr + owner, mask=live, other=1).to(tl.int32) - 1 + before
    newest = tl.load(history_ptr + owner.to(tl.int64) * width + position, mask=live & (before == 0), other=0)
    token = newest.to(tl.int64)
    if K > 0:
        draft = tl.load(drafts_ptr + mine * K + before - 1, mask=live & (before > 0), other=0)
        token = tl.where(before > 0, draft, token)
    owner = tl.where(live, owner, padding)
    position = tl.where(live, position, 0)
    tl.store(tokens_ptr + row, tl.where(live, token, 0), mask=kept)
    tl.store(positions_ptr + row, position.to(tl.int64), mask=kept)
    tl.store(owners_ptr + row, owner, mask=kept)
    tl.store(ends_ptr + row, tl.where(live, position + 1, 0), mask=kept)
    store_places(places_ptr, tables_ptr, row, owner, position, kept, rows, group_stride, slot_stride, PAGE, GROUPS)


def pack_rows(
    slots: Tensor,
    limits: Tensor,
    most: Tensor,
    barred: Tensor,
    history: Tensor,
    known: Tensor,
    drafts: Tensor,
    tables: Tensor,
    page_size: int,
    rows: int,
) -> VerifyRows:
    """Pack each span's newest token, then its drafts, as far as it may store and verify them, into `rows` rows.

    slots, limits, most: int32 [B]: the positions that each span may store, and the drafts that it may verify; `rows`
    must be enough for all. drafts: int64 [B, K], negative from the first missing one on. By slot: barred, int32 [S],
    not 0 if no draft may be verified; history, int32 [S, C], and known, int64 [S]: the tokens and their number; the
    last slot is padding's. tables: int64 [G, S, width], block tables.
    """
    (spans, depth), groups, device, early = drafts.shape, len(tables), slots.device, starts_early()
    tokens, positions = torch.empty(2, rows, dtype=torch.int64, device=device)
    owners, row_ends = torch.empty(2, rows, dtype=torch.int32, device=device)
    places = torch.empty(groups, rows, dtype=torch.int64, device=device)
    query_start = torch.empty(spans + 1, dtype=torch.int32, device=device)
    lengths = torch.empty(spans, dtype=torch.int32, device=device)
    pack_rows_kernel[(triton.cdiv(rows, BLOCK),)](
        slots, limits, most, barred, history, known, drafts, tables, tokens, positions, owners, row_ends, places,
        query_start, lengths,
        spans, rows, history.shape[1], tables.stride(0), tables.stride(1), len(known) - 1,
        depth, page_size, groups, triton.next_power_of_2(spans), BLOCK, early, num_warps=4, launch_pdl=early,
    )  # fmt: skip
    return VerifyRows(tokens, positions, owners, row_ends, places, query_start, lengths)


@triton.jit
def accept_drafts_kernel(
    slots_ptr: tensor, query_start_ptr: tensor, inputs_ptr: tensor, drawn_ptr: tensor, hidden_ptr: tensor,
    history_ptr: tensor, known_ptr: tensor, states_ptr: tensor, kept_ptr: tensor, rows_ptr: tensor,
    length: int, D: int, hidden_stride: int, WIDTH: constexpr, WIDER: constexpr, BLOCK: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    """Accept span program_id(0)'s tokens, and copy its state's columns from program_id(1) * BLOCK on.

    states may be None.
    """
    let_next_start(PDL)
    wait_for_previous(PDL)
    span, number = tl.program_id(0), tl.arange(0, WIDER)
    slot = tl.load(slots_ptr + span).to(tl.int64)
    start = tl.load(query_start_ptr + span)
    there = number < tl.load(query_start_ptr + span + 1) - start
    row, drafted = start + number, there & (number > 0)
    token = tl.load(drawn_ptr + row, mask=there, other=0)
    before = tl.load(drawn_ptr + row - 1, mask=drafted, other=0)
    draft = tl.load(inputs_ptr + row, mask=drafted, other=0)
    agrees = there & ((number == 0) | ((draft == before) & (token >= 0)))
    accepted = tl.min(tl.where(agrees, WIDER, number), 0)  # all rows before the first that does not agree
    stands = number < accepted
    if tl.program_id(1) == 0:
        known = tl.load(known_ptr + slot)
        said_ptr = history_ptr + slot * length + known
        out = tl.where(stands, token, tl.where(there, REJECTED, UNDRAFTED))
        tl.store(kept_ptr + span * WIDTH + number, out, mask=number < WIDTH)
        tl.store(rows_ptr + span * WIDTH + number, tl.where(there, row, 0).to(tl.int64), mask=number < WIDTH)
        tl.store(said_ptr + number, tl.maximum(token, 0).to(tl.int32), mask=stands)
        tl.store(known_ptr + slot, known + accepted, mask=accepted > 0)
    if states_ptr is not None:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = (column < D) & (accepted > 0)
        last_ptr = hidden_ptr + (start + accepted - 1).to(tl.int64) * hidden_stride
        tl.store(states_ptr + slot * D + column, tl.load(last_ptr + column, mask=inside, other=0.0), mask=inside)


def accept_drafts(
    slots: Tensor,
    rows: VerifyRows,
    drawn: Tensor,
    history: Tensor,
    known: Tensor,
    depth: int,
    hidden: Tensor | None = None,
    states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Append the accepted tokens to the history. drawn: int64 [R]. A row without a finite logit (-1) is accepted, as
    token 0, only if it is its span's first.

    depth: the most drafts K of a span. hidden: [R, D], of the rows. states, if given: [S, D]; a slot's state becomes
    the hidden state of its last accepted row, or stays if no row is accepted.

    Returns tokens, int64 [B, 1 + K], as in `gradus.engine.plan.Sampled`, and the rows that drew them (0 for none).
    """
    spans, early = len(slots), starts_early()
    width, size = 1 + depth, 0 if states is None else states.shape[1]
    kept, origins = torch.empty(2, spans, width, dtype=torch.int64, device=drawn.device)
    accept_drafts_kernel[(spans, max(1, triton.cdiv(size, COLUMNS)))](
        slots, rows.query_start, rows.tokens, drawn, hidden, history, known, states, kept, origins,
        history.shape[1], size, 0 if hidden is None else hidden.stride(0), width, triton.next_power_of_2(width),
        COLUMNS, early, num_warps=4, launch_pdl=early,
    )  # fmt: skip
    return kept, origins
