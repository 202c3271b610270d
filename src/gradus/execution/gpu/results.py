"""The tokens of steps on their way to the host: each step writes them to pinned memory by itself.

The device numbers the steps as they write, and the host as it launches them. So both know which buffer a step uses,
and a step whose number does not match was lost.
"""

import torch
from torch import Tensor

from gradus.device.transfer import Arrival
from gradus.engine.plan import Column
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.step.send_tokens import send_tokens


class Landing(Arrival):
    """The point at which a step's tokens have arrived in their buffer. number: of the step."""

    def __init__(self, buffer: Column, device: torch.device, *, timed: bool) -> None:
        super().__init__(device, timed=timed)
        self._buffer, self.number = buffer, 0

    def tokens(self, count: int) -> Column:
        """The first `count` tokens, which are there when the step has arrived."""
        return self._buffer[1 : 1 + count]

    def wait(self) -> None:
        super().wait()
        if self._buffer[0] != self.number:
            raise RuntimeError(f"the tokens of step {self.number} are lost: those of step {self._buffer[0]} arrived")


class Results:
    """Pinned buffers that steps write their tokens to, in turn, each with room for `tokens`.

    A buffer is used again KEPT steps later. timed: as in `Arrival`.
    """

    KEPT = 6  # more than are under way or still being compared with the one before

    def __init__(self, tokens: int, device: torch.device, *, timed: bool) -> None:
        self._buffers = torch.zeros(self.KEPT, 1 + tokens, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._sent = torch.zeros(1, dtype=torch.int64, device=device)
        self._landings = [Landing(buffer, device, timed=timed) for buffer in self._buffers.numpy()]
        self._launched = 0

    def send(self, tokens: Tensor, *, early: bool = False) -> None:
        """Launch the write of a step's tokens, int64 of any shape, contiguous. May be captured."""
        with early_launches(early):
            send_tokens(tokens, self._buffers, self._sent)

    def land(self, count: int) -> tuple[Column, Landing]:
        """Return the next step's first `count` tokens, which are there when the step has arrived. Its `send` has just
        been launched, or replayed."""
        self._launched += 1
        landing = self._landings[self._launched % self.KEPT]
        landing.number = self._launched
        landing.renew()
        return landing.tokens(count), landing

    def restart(self) -> None:
        """Number the steps from 1 again, after trial steps. No step is under way."""
        self._sent.zero_()
        self._buffers.zero_()
        self._launched = 0
