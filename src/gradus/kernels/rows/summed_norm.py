"""A sum over ranks, the residual addition and the RMSNorm after it, in one launch on each of several GPUs.

Idea: a product that is cut by columns leaves a summand on every rank. A collective, an addition and a norm would take
three launches, and at few rows the collective's own start and end take most of its time. Here each program has one
row: it writes its row straight into the other ranks' memory, waits for theirs in its own, and finishes the row.

    push     every word of the row goes to every other rank's inbox, with the number of the call (the epoch)
    wait     until all words in the inbox bear this epoch: data and flag are one 64-bit store, so no fence is needed
    finish   add the summands in rank order in float32, then the residual; round; normalize what was rounded

All ranks add in the same order, so they get the same bits. A rank counts its calls by row, and every rank makes the
same calls, so all count alike without an exchange. Two slots are enough: a rank sends call n + 2 of a row after it has
received call n + 1 from all others, and these had finished call n by then.

Bytes per row: 4 D sent to each other rank for 16-bit values, twice the row, and 4 D read from each one's inbox.
Layout: values as 32-bit words, two 16-bit values (the first in the low half) or one float32; one program per row.

If a rank is lost, its words never come. Every TURNS_A_LOOK turns a program looks at `stop`, a word in the host's memory
that ends all waiting; the results are then meaningless.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous

TURNS_A_LOOK = constexpr(1024)
MOST_TURNS = constexpr(1 << 26)  # about a minute; then a program stops all waiting by itself


class Inboxes(NamedTuple):
    """One rank's ends of the exchange.

    words: int64 [2, ranks, rows, W], where the others write, for up to `rows` rows of W words.
    addresses: int64 [ranks], of each rank's `words` as this GPU sees them. epochs: int32 [rows], calls so far.
    stop: int32 [1], in pinned host memory: anything but 0 ends all waiting.
    mapped: what keeps the others' memory mapped here, for as long as this exists.
    """

    rank: int
    words: Tensor
    addresses: Tensor
    epochs: Tensor
    stop: Tensor
    mapped: object = None

    @property
    def rows(self) -> int:
        return self.words.shape[2]

    def fit(self, x: Tensor) -> bool:
        """Whether x, [N, D], is few enough rows of a type that words hold."""
        return len(x) <= self.rows and x.element_size() in (2, 4) and words_of(x) <= self.words.shape[3]


def words_of(x: Tensor) -> int:
    """Count the 32-bit words of a row."""
    return x.shape[1] * x.element_size() // 4


@triton.jit
def first(words: tensor, KIND: constexpr, HALVES: constexpr) -> tensor:
    """The values in the low halves of the words, or in all of them, in float32."""
    if HALVES:
        return (words & 0xFFFF).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
    return words.to(tl.float32, bitcast=True)


@triton.jit
def second(words: tensor, KIND: constexpr) -> tensor:
    """The values in the high halves."""
    return ((words >> 16) & 0xFFFF).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)


@triton.jit
def rounded(x: tensor, KIND: constexpr, HALVES: constexpr) -> tensor:
    """The bits of a value in the row's type: the low half of a word, or all of it."""
    if HALVES:
        return x.to(KIND).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return x.to(tl.int32, bitcast=True)


@triton.jit
def received(box: tensor, inside: tensor, epoch: tensor, stop_ptr: tensor) -> tensor:
    """Wait until every word at `box` bears the epoch, and return the words without it."""
    got = tl.load(box, mask=inside, other=0, volatile=True)
    missing = tl.sum((((got >> 32).to(tl.int32) != epoch) & inside).to(tl.int32))
    turns = tl.full((), 0, tl.int32)
    stopped = tl.full((), 0, tl.int32)
    while (missing > 0) & (stopped == 0):
        got = tl.load(box, mask=inside, other=0, volatile=True)
        missing = tl.sum((((got >> 32).to(tl.int32) != epoch) & inside).to(tl.int32))
        turns += 1
        if turns % TURNS_A_LOOK == 0:
            stopped = tl.load(stop_ptr, volatile=True)
            if turns >= MOST_TURNS:
                stopped += 1
                tl.store(stop_ptr, 1)
    return (got & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def push(
    mine: tensor, inside: tensor, epoch: tensor, place: tensor, addresses_ptr: tensor,
    RANK: constexpr, RANKS: constexpr, SHARE: constexpr,
) -> None:  # fmt: skip
    """Write a row's words into the other ranks' inboxes. An inbox has SHARE words for each rank."""
    message = (epoch.to(tl.int64) << 32) | (mine.to(tl.int64) & 0xFFFFFFFF)
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            outbox = tl.multiple_of(tl.load(addresses_ptr + rank).to(tl.pointer_type(tl.int64)), 16)
            tl.store(outbox + place + RANK * SHARE, message, mask=inside)


@triton.jit
def both(low: tensor, high: tensor, KIND: constexpr, HALVES: constexpr) -> tensor:
    """Round values to the row's type, and pack them into words."""
    words = rounded(low, KIND, HALVES)
    if HALVES:
        words = words | (rounded(high, KIND, HALVES) << 16)
    return words


@triton.jit
def summed_norm_kernel(
    x_ptr: tensor, ids_ptr: tensor, first_id: int, last_id: int,
    inbox_ptr: tensor, addresses_ptr: tensor, epochs_ptr: tensor, stop_ptr: tensor,
    stream_ptr: tensor, weight_ptr: tensor, y_ptr: tensor, eps: float,
    RANK: constexpr, RANKS: constexpr, ROWS: constexpr, CAPACITY: constexpr,
    W: constexpr, KIND: constexpr, HALVES: constexpr, BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """One row. ids, stream and weight may be None: that part is then not compiled. Words are int32, rows of W.

    ids: the row is that of a token in the table x, or zeros for a token before `first_id`, or from `last_id` on.
    """
    row = tl.program_id(0)
    word = tl.arange(0, BLOCK)
    inside = word < W
    here = row.to(tl.int64) * W + word
    let_next_start(PDL)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + word, mask=inside, other=0)
    wait_for_previous(PDL)
    epoch = tl.load(epochs_ptr + row) + 1
    if ids_ptr is None:
        mine = tl.load(x_ptr + here, mask=inside, other=0)
    else:
        token = tl.load(ids_ptr + row).to(tl.int64)
        own = (token >= first_id) & (token < last_id)
        mine = tl.load(x_ptr + (token - first_id) * W + word, mask=inside & own, other=0)
    place = (epoch & 1) * (RANKS * ROWS * CAPACITY) + row * CAPACITY + word
    push(mine, inside, epoch, place, addresses_ptr, RANK, RANKS, ROWS * CAPACITY)
    if stream_ptr is not None:
        before = tl.load(stream_ptr + here, mask=inside, other=0)  # arrives meanwhile
    low = tl.zeros([BLOCK], tl.float32)
    high = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(RANKS):
        words = mine
        if rank != RANK:
            words = received(inbox_ptr + place + rank * ROWS * CAPACITY, inside, epoch, stop_ptr)
        low += first(words, KIND, HALVES)
        if HALVES:
            high += second(words, KIND)
    tl.store(epochs_ptr + row, epoch)
    if stream_ptr is not None:
        low += first(before, KIND, HALVES)
        if HALVES:
            high += second(before, KIND)
    total = both(low, high, KIND, HALVES)
    if stream_ptr is not None:
        tl.store(stream_ptr + here, total, mask=inside)
    if weight_ptr is not None:
        low = first(total, KIND, HALVES)  # normalize the sum as later layers will read it
        squares = low * low
        if HALVES:
            high = second(total, KIND)
            squares += high * high
        scale = tl.rsqrt(tl.sum(squares) / (2 * W if HALVES else W) + eps)
        low *= scale * first(weight, KIND, HALVES)
        if HALVES:
            high *= scale * second(weight, KIND)
        total = both(low, high, KIND, HALVES)
    tl.store(y_ptr + here, total, mask=inside)


def summed(x: Tensor, inboxes: Inboxes) -> Tensor:
    """Add all ranks' x: [N, D], the same shape on every rank. Returns [N, D]."""
    return _launch(x, inboxes, None, None, 0.0)


def summed_rms_norm(x: Tensor, inboxes: Inboxes, stream: Tensor, weight: Tensor, eps: float) -> Tensor:
    """stream += the sum of all ranks' x (in place), then stream / rms(stream) * weight.

    x, stream: [N, D], contiguous; weight: [D]; all of one type, 16 or 32 bits wide. stream is the same on every rank.
    Returns [N, D], the same bits on every rank.
    """
    assert stream.is_contiguous() and stream.shape == x.shape and stream.dtype == x.dtype == weight.dtype
    return _launch(x, inboxes, stream, weight, eps)


def summed_rows(ids: Tensor, table: Tensor, first_id: int, inboxes: Inboxes) -> Tensor:
    """Look tokens up in a table whose rows the ranks share: [N] integers → [N, D].

    table: this rank's rows, [V', D], contiguous, from token `first_id` on.
    """
    return _launch(table, inboxes, None, None, 0.0, ids, first_id)


def _launch(
    x: Tensor, inboxes: Inboxes, stream: Tensor | None, weight: Tensor | None, eps: float,
    ids: Tensor | None = None, first_id: int = 0,
) -> Tensor:  # fmt: skip
    assert x.is_contiguous() and words_of(x) * 4 == x.shape[1] * x.element_size()
    rows = len(x) if ids is None else len(ids)
    y = x.new_empty(rows, x.shape[1])
    assert rows <= inboxes.rows and words_of(x) <= inboxes.words.shape[3]
    if rows:
        _, ranks, most, capacity = inboxes.words.shape
        block, early, halves = triton.next_power_of_2(words_of(x)), starts_early(), x.element_size() == 2
        summed_norm_kernel[(rows,)](
            _words(x), ids, first_id, first_id + len(x),
            inboxes.words, inboxes.addresses, inboxes.epochs, inboxes.stop,
            None if stream is None else _words(stream), None if weight is None else _words(weight), _words(y), eps,
            inboxes.rank, ranks, most, capacity,
            words_of(x), KINDS.get(x.dtype), halves, block, early,
            num_warps=min(max(block // 256, 1), 16), launch_pdl=early,
        )  # fmt: skip
    return y


KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _words(x: Tensor) -> Tensor:
    return x.view(torch.int32)
