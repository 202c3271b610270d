"""The beginning and the end of a step on the device, in torch: its rows, the tokens drawn, and what was accepted."""

from itertools import pairwise

import torch
from torch import Tensor

from gradus.engine import plan
from gradus.kernels.sampling.noise import exponential
from gradus.kernels.step import ngram_reference
from gradus.kernels.step.decode_rows import DecodeRows
from gradus.kernels.step.draft_inputs import DraftInputs
from gradus.kernels.step.draft_passes import Drafting, NextRows
from gradus.kernels.step.verify import VerifyRows
from gradus.models.layers import EmbeddingTables


def sample_reference(logits: Tensor, seeds: Tensor, positions: Tensor, temperatures: Tensor) -> Tensor:
    best, likeliest = logits.float().max(dim=-1)
    divisor = torch.where(temperatures > 0, temperatures, 1.0).unsqueeze(1)
    shares = ((logits.float() - best.unsqueeze(1)) / divisor).softmax(-1)
    drawn = (shares / exponential(seeds, positions, logits.shape[1])).argmax(-1)
    return torch.where(best.isfinite(), torch.where(temperatures > 0, drawn, likeliest), -1)


def places_reference(slots: Tensor, lengths: Tensor, tables: Tensor, page_size: int) -> Tensor:
    positions = (lengths.long() - 1).clamp(min=0)
    return tables[:, slots.long(), positions // page_size].long() * page_size + positions % page_size


def decode_rows_reference(
    slots: Tensor, limits: Tensor, newest: Tensor, known: Tensor, tables: Tensor, page_size: int
) -> DecodeRows:
    owners = slots.long()
    live = known[owners] <= limits
    positions = torch.where(live, known[owners] - 1, 0)
    tokens = torch.where(live, newest[owners].long(), 0)
    known[owners[live]] += 1
    owners = torch.where(live, owners, len(known) - 1)
    places = tables[:, owners, positions // page_size] * page_size + positions % page_size
    ends = torch.where(live, positions + 1, 0).int()
    return DecodeRows(tokens, positions, owners.int(), ends, places)


def pack_rows_reference(
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
    (spans, depth), padding = drafts.shape, len(known) - 1
    lengths = known[slots.long()]
    counts = 1 + (drafts >= 0).long().cumprod(1).sum(1) * (barred[slots.long()] == 0)
    counts = counts.minimum(1 + most).minimum(limits - (lengths - 1)).clamp(min=0)
    ends = counts.cumsum(0)
    row = torch.arange(rows, device=slots.device)
    span = torch.searchsorted(ends, row, right=True)
    live = span < spans
    span = span.clamp(max=spans - 1)
    before = row - (ends - counts)[span]
    owners = torch.where(live, slots.long()[span], padding)
    positions = torch.where(live, lengths[span] - 1 + before, 0)
    newest = history[slots.long(), lengths - 1]
    choices = torch.cat([newest.long().unsqueeze(1), drafts], dim=1)
    tokens = torch.where(live, choices[span, before.clamp(max=depth)], 0)
    places = tables[:, owners, positions // page_size] * page_size + positions % page_size
    query_start = torch.cat([ends.new_zeros(1), ends]).int()
    stored = torch.where(counts > 0, lengths - 1 + counts, 0)
    row_ends = torch.where(live, positions + 1, 0)
    return VerifyRows(tokens, positions, owners.int(), row_ends.int(), places, query_start, stored.int())


def accept_drafts_reference(
    slots: Tensor,
    rows: VerifyRows,
    drawn: Tensor,
    history: Tensor,
    known: Tensor,
    depth: int,
    hidden: Tensor | None = None,
    states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    spans, width = len(slots), 1 + depth
    kept, origins = torch.full((spans, width), plan.UNDRAFTED), torch.zeros(spans, width, dtype=torch.int64)
    starts = rows.query_start.tolist()
    for span, (start, end) in enumerate(pairwise(starts)):
        slot, stands = int(slots[span]), True
        for number, row in enumerate(range(start, end)):
            token = int(drawn[row])
            stands = stands and (number == 0 or (int(drawn[row - 1]) == int(rows.tokens[row]) and token >= 0))
            kept[span, number], origins[span, number] = token if stands else plan.REJECTED, row
            if stands:
                history[slot, known[slot]] = max(token, 0)
                known[slot] += 1
                if hidden is not None and states is not None:
                    states[slot] = hidden[row]
    return kept, origins


def first_rows_reference(spans: Drafting, history: Tensor, tables: Tensor, page_size: int) -> VerifyRows:
    slots, padding = spans.slots.long(), len(spans.known) - 1
    known = spans.known[slots]
    live = (known > 1) & (known <= spans.limits.clamp(max=spans.longest))
    positions = torch.where(live.unsqueeze(1), known.unsqueeze(1) - torch.tensor([2, 1]), 0)
    tokens = torch.where(live.unsqueeze(1), history[slots.unsqueeze(1), positions], 0).long().flatten()
    ends = torch.where(live.unsqueeze(1), positions + 1, 0).flatten()
    positions, owners = positions.flatten(), torch.where(live, slots, padding).repeat_interleave(2)
    places = tables[:, owners, positions // page_size] * page_size + positions % page_size
    query_start = torch.arange(0, 2 * len(slots) + 1, 2)
    lengths = torch.where(live, known, 0)
    return VerifyRows(tokens, positions, owners.int(), ends.int(), places, query_start.int(), lengths.int())


def next_rows_reference(spans: Drafting, drawn: Tensor, drafts: Tensor, number: int) -> NextRows:
    slots, padding = spans.slots.long(), len(spans.known) - 1
    known = spans.known[slots]
    room = torch.where(known > 1, spans.limits.clamp(max=spans.longest) - known + 1, 0)  # for the newest and its drafts
    token = drawn.clamp(0, spans.vocabulary - 1)
    drafts[:, number] = torch.where(room > number, token, ngram_reference.NO_DRAFT)
    live = room > number + 1
    lengths = torch.where(live, known + number + 1, 0)
    return NextRows(
        torch.where(live, token, 0), (lengths - 1).clamp(min=0), torch.where(live, slots, padding).int(), lengths.int()
    )


def first_inputs_reference(
    slots: Tensor,
    history: Tensor,
    known: Tensor,
    states: Tensor,
    tables: EmbeddingTables,
    *,
    count: int,
    together: int,
) -> DraftInputs:
    slots = slots.long()
    lengths, drafts = known[slots], torch.arange(count, device=slots.device)
    newest = history[slots, lengths - 1].long()
    owners, positions = (
        numbers.view(-1, count // together, together).transpose(0, 1).flatten(1).int()
        for numbers in (slots.unsqueeze(1).expand(-1, count).contiguous(), lengths.unsqueeze(1) + drafts)
    )
    return DraftInputs(next_inputs_reference(states[slots], newest, lengths - 1, tables), owners, positions)


def next_inputs_reference(states: Tensor, drafts: Tensor, positions: Tensor, tables: EmbeddingTables) -> Tensor:
    embedded = tables.tokens[drafts.clamp(0, len(tables.tokens) - 1)].to(states.dtype) * tables.scale
    if tables.positions is not None:
        embedded += tables.positions[positions.long().clamp(max=len(tables.positions) - 1)].to(states.dtype)
    return torch.cat([states, embedded], dim=-1)
