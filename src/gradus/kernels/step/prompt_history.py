"""Writes the tokens of a step with prompts, the tokens drawn, and their hidden states to the history, in one launch.

Idea: the step's own inputs are on the device, and give the slot and the position of each token; the inputs of the draw
do the same for the tokens drawn. So one kernel writes everything, and the host sends nothing. Torch operations would
take a dozen launches, and the host waits for the step's tokens until the last of them. A history that keeps only the
newest tokens takes only the tokens drawn.

Bytes: 24 per token of a prompt, and a hidden state per token drawn. A program writes BLOCK tokens of prompts, one token
drawn, and COLUMNS of its state.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

BLOCK, COLUMNS = 256, 512


@triton.jit(do_not_specialize=["tokens", "rows", "first"])
def keep_prompts_kernel(
    owners_ptr: tensor, places_ptr: tensor, tokens_ptr: tensor, slots_ptr: tensor, positions_ptr: tensor,
    drawn_ptr: tensor, hidden_ptr: tensor, history_ptr: tensor, known_ptr: tensor, states_ptr: tensor, tokens: int,
    rows: int, first: int, length: int, D: int, hidden_stride: int, BLOCK: constexpr, COLUMNS: constexpr,
) -> None:  # fmt: skip
    """Write block program_id(0) of the tokens, and row first + program_id(0) with its state's columns from
    program_id(1) * COLUMNS on. rows: the number of rows. states may be None."""
    row = first + tl.program_id(0)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=0)
    if tl.program_id(1) == 0:
        number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        said = number < tokens
        owner = tl.load(owners_ptr + number, mask=said, other=0)
        place = tl.load(places_ptr + number, mask=said, other=0)
        token = tl.load(tokens_ptr + number, mask=said, other=0)
        tl.store(history_ptr + owner * length + place, token.to(tl.int32), mask=said & (length > 1))
        if row < rows:
            position = tl.load(positions_ptr + row)
            drawn = tl.load(drawn_ptr + row)
            tl.store(history_ptr + slot * length + tl.minimum(position, length - 1), tl.maximum(drawn, 0).to(tl.int32))
            tl.store(known_ptr + slot, position + 1)
    if states_ptr is not None:
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = (column < D) & (row < rows)
        from_ptr = hidden_ptr + row.to(tl.int64) * hidden_stride
        tl.store(states_ptr + slot * D + column, tl.load(from_ptr + column, mask=inside, other=0.0), mask=inside)


def keep_prompts(
    said: tuple[Tensor, Tensor, Tensor],
    rows: tuple[Tensor, Tensor, Tensor],
    first: int,
    history: Tensor,
    known: Tensor,
    hidden: Tensor,
    states: Tensor | None = None,
) -> None:
    """Write tokens to the history, int32 [S, C], and each slot's number of tokens to `known`, int64 [S].

    said: the slot, position and id of each of the prompts' tokens: int64 [N] each. rows: the slot, position and id of
    each token drawn, where -1 counts as token 0: int64 [R] each; the prompts' begin at row `first`. (A view from there
    on may begin at any address, for which Triton would compile another kernel.) hidden: [R, D], of the rows. states, if
    given: [S, D]; a slot's state becomes the hidden state of its row.
    """
    count, drawn = len(said[0]), len(rows[0])
    programs = max(triton.cdiv(count, BLOCK), drawn - first)
    size = 0 if states is None else states.shape[1]
    if programs:
        keep_prompts_kernel[(programs, max(1, triton.cdiv(size, COLUMNS)))](
            *said, *rows, hidden, history, known, states, count, drawn, first, history.shape[1], size, hidden.stride(0),
            BLOCK, COLUMNS, num_warps=4,
        )  # fmt: skip
