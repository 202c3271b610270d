"""Prepares each pass of a draft model on the GPU: its tokens, and where they are.

Idea: a draft model runs once per draft, each time on the token that it has just drawn. Between two passes that draft is
stored, and becomes the next row if there is room for it. Torch operations would take a dozen launches, each waiting for
the one before, and the model's own launches are short because it is small. Here it is one launch: `first_rows` before
the first pass, `next_rows` between two passes, `keep_draft` after the last.

A pass has a fixed number of rows, so that it can be captured in a CUDA graph. A sequence without room for another draft
becomes padding: token 0 at position 0 of the last slot, with the length 0, so that attention reads nothing for it and
stores nothing in its pages. A sequence of one token drafts nothing, since the first pass runs two.

Bytes: some forty per sequence. A program takes BLOCK sequences.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.step import ngram_reference
from gradus.kernels.step.rows import Drafting, NextRows, VerifyRows
from gradus.kernels.step.verify import store_places

BLOCK = 128
NO_DRAFT = constexpr(ngram_reference.NO_DRAFT)


@triton.jit
def _has_room(known: tensor, end: tensor, drafts: tensor) -> tensor:
    """True if the newest of `known` tokens, and `drafts` drafts after it, may be stored."""
    return (known > 1) & (known - 1 + drafts < end)


@triton.jit(do_not_specialize=["spans", "longest", "padding"])
def first_rows_kernel(
    slots_ptr: tensor, limits_ptr: tensor, history_ptr: tensor, known_ptr: tensor, tables_ptr: tensor,
    tokens_ptr: tensor, positions_ptr: tensor, owners_ptr: tensor, ends_ptr: tensor, places_ptr: tensor,
    query_start_ptr: tensor, lengths_ptr: tensor, spans: int, longest: int, padding: int, history_stride: int,
    group_stride: int, slot_stride: int, PAGE: constexpr, GROUPS: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    span = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = span < spans
    slot = tl.load(slots_ptr + span, mask=inside, other=0)
    known = tl.load(known_ptr + slot, mask=inside, other=0).to(tl.int32)
    end = tl.minimum(tl.load(limits_ptr + span, mask=inside, other=0), longest)
    live = inside & _has_room(known, end, 0)
    owner = tl.where(live, slot, padding)
    tl.store(lengths_ptr + span, tl.where(live, known, 0), mask=inside)
    tl.store(query_start_ptr + span + 1, 2 * (span + 1), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(query_start_ptr, 0)
    for number in tl.static_range(2):
        row, position = 2 * span + number, tl.where(live, known - 2 + number, 0)
        token = tl.load(history_ptr + slot.to(tl.int64) * history_stride + position, mask=live, other=0)
        tl.store(tokens_ptr + row, token.to(tl.int64), mask=inside)
        tl.store(positions_ptr + row, position.to(tl.int64), mask=inside)
        tl.store(owners_ptr + row, owner, mask=inside)
        tl.store(ends_ptr + row, tl.where(live, position + 1, 0), mask=inside)
        store_places(
            places_ptr, tables_ptr, row, owner, position, inside, 2 * spans, group_stride, slot_stride, PAGE, GROUPS
        )


def first_rows(spans: Drafting, inputs: Tensor, history: Tensor, tables: Tensor, page_size: int) -> VerifyRows:
    """Lay out two rows for each sequence: the token before its newest, and its newest. Padding has two as well.

    inputs: int64 [2, 2 B or more], takes tokens and positions. It is the caller's, so that its tokens can be looked up
    even if no kernel has run. history: int32 [S, C], the tokens. tables: int64 [G, S, width], block tables.
    """
    count, groups, device = len(spans.slots), len(tables), inputs.device
    if inputs.shape[1] < 2 * count:  # the kernel would write behind them
        raise ValueError(f"{count} sequences take {2 * count} rows of inputs, and there are {inputs.shape[1]}")
    tokens, positions = inputs[:, : 2 * count]
    owners, ends = torch.empty(2, 2 * count, dtype=torch.int32, device=device)
    places = torch.empty(groups, 2 * count, dtype=torch.int64, device=device)
    query_start = torch.empty(count + 1, dtype=torch.int32, device=device)
    lengths = torch.empty(count, dtype=torch.int32, device=device)
    first_rows_kernel[(triton.cdiv(count, BLOCK),)](
        spans.slots, spans.limits, history, spans.known, tables, tokens, positions, owners, ends, places, query_start,
        lengths, count, spans.longest, len(spans.known) - 1, history.stride(0), tables.stride(0), tables.stride(1),
        page_size, groups, BLOCK, num_warps=4,
    )  # fmt: skip
    return VerifyRows(tokens, positions, owners, ends, places, query_start, lengths)


@triton.jit(do_not_specialize=["spans", "count", "number", "longest", "vocabulary", "padding"])
def next_rows_kernel(
    slots_ptr: tensor, limits_ptr: tensor, known_ptr: tensor, drawn_ptr: tensor, drafts_ptr: tensor,
    tokens_ptr: tensor, positions_ptr: tensor, owners_ptr: tensor, lengths_ptr: tensor, spans: int, count: int,
    number: int, longest: int, vocabulary: int, padding: int, BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Store the drafts, and lay out the next pass; if tokens, positions, owners and lengths are None, none follows."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    span = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = span < spans
    slot = tl.load(slots_ptr + span, mask=inside, other=0)
    known = tl.load(known_ptr + slot, mask=inside, other=0).to(tl.int32)
    end = tl.minimum(tl.load(limits_ptr + span, mask=inside, other=0), longest)
    # clamped to a token that can be looked up, even if no logit was finite
    draft = tl.minimum(tl.maximum(tl.load(drawn_ptr + span, mask=inside, other=0), 0), vocabulary - 1)
    kept = tl.where(_has_room(known, end, number), draft, NO_DRAFT)
    tl.store(drafts_ptr + span * count + number, kept, mask=inside)
    if tokens_ptr is not None:
        live = inside & _has_room(known, end, number + 1)
        length = tl.where(live, known + number + 1, 0)
        tl.store(tokens_ptr + span, tl.where(live, draft, 0), mask=inside)
        tl.store(positions_ptr + span, tl.maximum(length - 1, 0).to(tl.int64), mask=inside)
        tl.store(owners_ptr + span, tl.where(live, slot, padding), mask=inside)
        tl.store(lengths_ptr + span, length, mask=inside)


def next_rows(spans: Drafting, inputs: Tensor, drawn: Tensor, drafts: Tensor, number: int) -> NextRows:
    """Store the last pass's draws, as `keep_draft` does, and lay out the next pass's rows.

    inputs: int64 [2, B or more], as in `first_rows`.
    """
    if inputs.shape[1] < len(drawn):  # the kernel would write behind them
        raise ValueError(f"{len(drawn)} sequences take as many rows of inputs, and there are {inputs.shape[1]}")
    tokens, positions = inputs[:, : len(drawn)]
    rows = NextRows(tokens, positions, *torch.empty(2, len(drawn), dtype=torch.int32, device=drawn.device))
    keep_draft(spans, drawn, drafts, number, rows)
    return rows


def keep_draft(spans: Drafting, drawn: Tensor, drafts: Tensor, number: int, rows: NextRows | None = None) -> None:
    """Store a pass's draws, int64 [B], as column `number` of the drafts, int64 [B, K]: tokens of the vocabulary, or
    NO_DRAFT for a sequence without room. rows: takes the next pass's rows, if one follows."""
    count, early = len(drawn), starts_early()
    next_rows_kernel[(triton.cdiv(count, BLOCK),)](
        spans.slots, spans.limits, spans.known, drawn, drafts, *(rows or [None] * 4), count, drafts.shape[1], number,
        spans.longest, spans.vocabulary, len(spans.known) - 1, BLOCK, early, num_warps=4, launch_pdl=early,
    )  # fmt: skip
