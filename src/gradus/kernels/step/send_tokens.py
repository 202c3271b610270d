"""Writes a step's tokens to the host's memory, as the step's last launch.

Idea: the GPU writes to pinned memory as to its own. So the tokens need no copy after the step, which would cost the
host another call, and leave the GPU idle for 8 µs before the next step (measured on an H100). A captured launch always
writes to the same address; so the buffers are used in turn, and the number of steps, on the device, says whose turn it
is.

Bytes: 8 per token, over the bus. One program writes everything: there are at most some thousand tokens.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous

BLOCK = 512


@triton.jit(do_not_specialize=["count", "room"])
def send_tokens_kernel(
    tokens_ptr: tensor, buffers_ptr: tensor, sent_ptr: tensor, count: int, room: int, BUFFERS: constexpr,
    BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    let_next_start(PDL)
    wait_for_previous(PDL)
    number = tl.load(sent_ptr) + 1
    buffer = buffers_ptr + number % BUFFERS * room
    for first in range(0, count, BLOCK):
        place = first + tl.arange(0, BLOCK)
        tl.store(buffer + 1 + place, tl.load(tokens_ptr + place, mask=place < count), mask=place < count)
    tl.debug_barrier()  # every thread has read the number
    tl.store(buffer, number)
    tl.store(sent_ptr, number)


def send_tokens(tokens: Tensor, buffers: Tensor, sent: Tensor) -> None:
    """Write tokens, int64 [...] contiguous, to the next of the buffers, int64 [BUFFERS, 1 + room], in pinned memory:
    the step's number, then the tokens. sent: int64 [1], on the device, the number of the last step that was sent."""
    count, room = tokens.numel(), buffers.shape[1]
    assert count < room, "more tokens than a buffer has room for"
    early = starts_early()
    send_tokens_kernel[(1,)](
        tokens, buffers, sent, count, room, len(buffers), BLOCK, early, num_warps=4, launch_pdl=early
    )
