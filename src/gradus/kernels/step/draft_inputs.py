"""Prepares the inputs of trained heads on the GPU: a sequence's state, joined with the embedding of its newest token.

Idea: before the first draft only the device knows a sequence's length, its newest token and its state; after each draft
of a chain, the draft itself is embedded. Torch operations would take ten small launches before the first product of the
heads, and four before each later one. Here it is one launch in both cases: `first_inputs` reads the tables by slot, and
also lays out the slots and positions of the draws; `next_inputs` reads each draft from the draw's output. Embeddings
equal those of `Model.embed`, bit for bit.

Bytes: 2 D numbers per sequence read, and as many written. A program takes BLOCK columns of both halves.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.step.rows import DraftInputs
from gradus.models.layers import EmbeddingTables

BLOCK = 512


@triton.jit
def _join(
    state_ptr: tensor, token: tensor, position: tensor, tokens_ptr: tensor, places_ptr: tensor, joined_ptr: tensor,
    scale: float, D: int, tokens: int, places: int, BLOCK: constexpr,
) -> None:  # fmt: skip
    """Store this program's columns of a state, and of the embedding of a token at this position, side by side."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    kind: constexpr = joined_ptr.dtype.element_ty
    row_ptr = joined_ptr + tl.program_id(0) * 2 * D + column
    tl.store(row_ptr, tl.load(state_ptr + column, mask=inside, other=0.0), mask=inside)
    token = tl.minimum(tl.maximum(token, 0), tokens - 1).to(tl.int64)
    embedded = tl.load(tokens_ptr + token * D + column, mask=inside, other=0.0).to(kind)
    embedded = (embedded.to(tl.float32) * scale).to(kind)  # rounded where torch rounds
    if places_ptr is not None:
        place = tl.minimum(position, places - 1).to(tl.int64)
        where = tl.load(places_ptr + place * D + column, mask=inside, other=0.0).to(kind)
        embedded = (embedded.to(tl.float32) + where.to(tl.float32)).to(kind)
    tl.store(row_ptr + D, embedded, mask=inside)


@triton.jit
def first_inputs_kernel(
    slots_ptr: tensor, history_ptr: tensor, known_ptr: tensor, states_ptr: tensor, tokens_ptr: tensor,
    places_ptr: tensor, joined_ptr: tensor, owners_ptr: tensor, positions_ptr: tensor, scale: float, D: int,
    tokens: int, places: int, history_stride: int, COUNT: constexpr, COUNTS: constexpr, TOGETHER: constexpr,
    BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Prepare sequence program_id(0). As a step's first launch, it is not launched early itself."""
    let_next_start(PDL)
    span, spans = tl.program_id(0), tl.num_programs(0)
    slot = tl.load(slots_ptr + span)
    known = tl.load(known_ptr + slot).to(tl.int32)
    newest = tl.load(history_ptr + slot.to(tl.int64) * history_stride + known - 1)
    state_ptr = states_ptr + slot.to(tl.int64) * D
    _join(state_ptr, newest, known - 1, tokens_ptr, places_ptr, joined_ptr, scale, D, tokens, places, BLOCK)
    if tl.program_id(1) == 0:
        draft = tl.arange(0, COUNTS)
        row = (draft // TOGETHER * spans + span) * TOGETHER + draft % TOGETHER
        tl.store(owners_ptr + row, slot, mask=draft < COUNT)
        tl.store(positions_ptr + row, known + draft, mask=draft < COUNT)


def first_inputs(
    slots: Tensor,
    history: Tensor,
    known: Tensor,
    states: Tensor,
    tables: EmbeddingTables,
    *,
    count: int,
    together: int,
) -> DraftInputs:
    """Prepare the first pass. slots: integers [B].

    history, known: each slot's tokens, int32 [S, C], and their number, int64 [S]. states: [S, D], the hidden state of
    each slot's newest row. count: drafts per sequence, `together` of them in each pass.
    """
    spans, size, device = len(slots), states.shape[1], states.device
    joined = torch.empty(spans, 2 * size, dtype=states.dtype, device=device)
    owners, positions = torch.empty(2, count // together, spans * together, dtype=torch.int32, device=device)
    first_inputs_kernel[(spans, triton.cdiv(size, BLOCK))](
        slots, history, known, states, tables.tokens, tables.positions, joined, owners, positions, tables.scale, size,
        len(tables.tokens), 0 if tables.positions is None else len(tables.positions), history.stride(0), count,
        triton.next_power_of_2(count), together, BLOCK, starts_early(), num_warps=4,
    )  # fmt: skip
    return DraftInputs(joined, owners, positions)


@triton.jit
def next_inputs_kernel(
    states_ptr: tensor, drafts_ptr: tensor, positions_ptr: tensor, tokens_ptr: tensor, places_ptr: tensor,
    joined_ptr: tensor, scale: float, D: int, tokens: int, places: int, drafts_stride: int, BLOCK: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    let_next_start(PDL)
    wait_for_previous(PDL)
    span = tl.program_id(0)
    draft, position = tl.load(drafts_ptr + span * drafts_stride), tl.load(positions_ptr + span)
    _join(states_ptr + span * D, draft, position, tokens_ptr, places_ptr, joined_ptr, scale, D, tokens, places, BLOCK)


def next_inputs(states: Tensor, drafts: Tensor, positions: Tensor, tables: EmbeddingTables) -> Tensor:
    """Prepare a later pass. Returns [B, 2 D], states and embeddings.

    states: [B, D]. drafts: int64 [B], with any stride; a negative one is no token, and counts as 0. positions:
    integers [B], the drafts'.
    """
    spans, size = states.shape
    assert states.is_contiguous()
    joined, early = torch.empty(spans, 2 * size, dtype=states.dtype, device=states.device), starts_early()
    next_inputs_kernel[(spans, triton.cdiv(size, BLOCK))](
        states, drafts, positions, tables.tokens, tables.positions, joined, tables.scale, size, len(tables.tokens),
        0 if tables.positions is None else len(tables.positions), drafts.stride(0), BLOCK, early,
        num_warps=4, launch_pdl=early,
    )  # fmt: skip
    return joined
