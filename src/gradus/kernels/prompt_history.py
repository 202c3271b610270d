"""What a step with prompts leaves behind for drafts, in one launch: texts of new owners, tokens drawn, hidden states.

Idea: the host knows all of it but the tokens drawn and the states, also how long each history is now, since a prompt's
token always stands. So one copy brings places and values, and one kernel writes them. As torch operations these were a
dozen launches, and the host asks for the step's tokens after the last of them.

Bytes: 16 per token of a text, and a hidden state per token drawn. A program writes BLOCK tokens of texts, one token
drawn, and COLUMNS of its state.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.device.transfer import Numbers, upload

BLOCK, COLUMNS = 256, 512


@triton.jit(do_not_specialize=["texts", "slots", "rows", "first"])
def keep_prompts_kernel(
    numbers_ptr: tensor, drawn_ptr: tensor, hidden_ptr: tensor, history_ptr: tensor, known_ptr: tensor,
    states_ptr: tensor, texts: int, slots: int, rows: int, first: int, D: int, hidden_stride: int, BLOCK: constexpr,
    COLUMNS: constexpr,
) -> None:  # fmt: skip
    """Block program_id(0) of the texts and of the lengths, and row program_id(0), of its state the columns from
    program_id(1) * COLUMNS on. states may be None.

    numbers: of each text's token the place, then the tokens; of each slot the number, then the lengths; of each row the
    place, then the slots.
    """
    lengths_ptr = numbers_ptr + 2 * texts
    places_ptr = lengths_ptr + 2 * slots
    row = tl.program_id(0)
    if tl.program_id(1) == 0:
        number = row * BLOCK + tl.arange(0, BLOCK)
        said = number < texts
        token = tl.load(numbers_ptr + texts + number, mask=said, other=0)
        tl.store(history_ptr + tl.load(numbers_ptr + number, mask=said, other=0), token.to(tl.int32), mask=said)
        owned = number < slots
        slot = tl.load(lengths_ptr + number, mask=owned, other=0)
        tl.store(known_ptr + slot, tl.load(lengths_ptr + slots + number, mask=owned, other=0), mask=owned)
        if row < rows:
            drawn = tl.load(drawn_ptr + first + row)
            tl.store(history_ptr + tl.load(places_ptr + row), tl.maximum(drawn, 0).to(tl.int32))
    if states_ptr is not None:
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = (column < D) & (row < rows)
        from_ptr = hidden_ptr + (first + row).to(tl.int64) * hidden_stride
        to_ptr = states_ptr + tl.load(places_ptr + rows + row, mask=row < rows, other=0) * D
        tl.store(to_ptr + column, tl.load(from_ptr + column, mask=inside, other=0.0), mask=inside)


def keep_prompts(
    texts: tuple[Numbers, Numbers],
    lengths: dict[int, int],
    rows: tuple[Numbers, Numbers],
    first: int,
    drawn: Tensor,
    history: Tensor,
    known: Tensor,
    hidden: Tensor,
    states: Tensor | None = None,
) -> None:
    """Write into the history, int32 [S, C], and what is known of it, int64 [S].

    texts: of each token the place in the history's flat memory, and itself. lengths: by slot. rows: of each token drawn
    slot and position; they are rows `first` and up of drawn, int64 [R], where -1 counts as token 0, and of hidden,
    [R, D]. states, if given: [S, D]; a slot's row takes the hidden state of its row.
    """
    places, said = texts
    slots, positions = (np.asarray(each) for each in rows)
    parts = [places, said, [*lengths], [*lengths.values()], slots * history.shape[1] + positions, slots]
    numbers = upload(np.concatenate(parts).astype(np.int64), torch.int64, history.device)
    programs = max(triton.cdiv(max(len(said), len(lengths)), BLOCK), len(slots))
    size = 0 if states is None else states.shape[1]
    if programs:
        keep_prompts_kernel[(programs, max(1, triton.cdiv(size, COLUMNS)))](
            numbers, drawn, hidden, history, known, states, len(said), len(lengths), len(slots), first, size,
            hidden.stride(0), BLOCK, COLUMNS, num_warps=4,
        )  # fmt: skip
