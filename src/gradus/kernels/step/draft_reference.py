"""The rows and inputs of drafters' passes in torch: the reference of `draft_passes.py` and `draft_inputs.py`.

Trained heads run on these inputs on a CPU.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradus.kernels.step import ngram_reference
from gradus.kernels.step.rows import Drafting, DraftInputs, NextRows, VerifyRows

Embed = Callable[[Tensor, Tensor], Tensor]
"""(tokens [B], positions [B]), any integers → embeddings [B, D]: see `Model.embed`."""


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
    embed: Embed,
    *,
    count: int,
    together: int,
) -> DraftInputs:
    lengths, pass_drafts = known[slots], torch.arange(count, device=slots.device).view(-1, 1, together)
    owners = slots.view(-1, 1).expand(len(pass_drafts), -1, together).flatten(1).int()
    positions = (lengths.view(-1, 1) + pass_drafts).flatten(1).int()
    joined = next_inputs_reference(states[slots], history[slots, lengths - 1], lengths - 1, embed)
    return DraftInputs(joined, owners, positions)


def next_inputs_reference(states: Tensor, drafts: Tensor, positions: Tensor, embed: Embed) -> Tensor:
    return torch.cat([states, embed(drafts, positions)], dim=-1)
