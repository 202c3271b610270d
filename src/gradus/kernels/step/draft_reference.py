"""The rows and inputs of drafters' passes in torch: the reference of `draft_passes.py` and `draft_inputs.py`."""

import torch
from torch import Tensor

from gradus.kernels.step import ngram_reference
from gradus.kernels.step.draft_inputs import DraftInputs
from gradus.kernels.step.draft_passes import Drafting, NextRows
from gradus.kernels.step.rows import VerifyRows
from gradus.models.layers import EmbeddingTables


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
