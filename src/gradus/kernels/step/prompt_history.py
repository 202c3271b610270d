"""What a step with prompts leaves in the history, in one launch: its tokens, those drawn, and hidden states.

Idea: the step's own inputs lie on the device, and give the slot and the position of each token; so do the slots and
positions that tokens were drawn for. So one kernel writes all of it, and nothing is sent. As torch operations these
were a dozen launches, and the host asks for the step's tokens after the last of them. A history of the newest token
alone takes only what was drawn.

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
    """Block program_id(0) of the tokens, and row first + program_id(0), of its state the columns from
    program_id(1) * COLUMNS on. rows: where they end. states may be None."""
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
    """Write into the history, int32 [S, C], and what is known of it, int64 [S].

    said: of each of the prompts' tokens the slot, the position, and itself: int64 [N] each. rows: of each token drawn
    the slot, the position, and itself, where -1 counts as token 0: int64 [R] each. The prompts' are `first` and up. (A
    view from there on may begin at any address, and for such a one Triton would compile another kernel.) hidden:
    [R, D], of the rows. states, if given: [S, D]; a slot's row takes the hidden state of its row.
    """
    count, drawn = len(said[0]), len(rows[0])
    programs = max(triton.cdiv(count, BLOCK), drawn - first)
    size = 0 if states is None else states.shape[1]
    if programs:
        keep_prompts_kernel[(programs, max(1, triton.cdiv(size, COLUMNS)))](
            *said, *rows, hidden, history, known, states, count, drawn, first, history.shape[1], size, hidden.stride(0),
            BLOCK, COLUMNS, num_warps=4,
        )  # fmt: skip
