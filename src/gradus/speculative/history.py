"""The tokens of every slot's sequence, on the device: all of them, or the newest alone.

The host learns a step's tokens when it commits the step, and plans the next one before. So the length of a sequence and
its newest token are known here first. Drafters that read the text need all of it; other steps only the newest token.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.device.transfer import upload_parts
from gradus.device.zeros import zeros
from gradus.engine.plan import Admission


def history_bytes(slots: int, context_length: int, *, whole: bool) -> int:
    return (slots + 1) * (4 * (context_length if whole else 1) + 8)


class History:
    """The tokens and the length of each slot's sequence.

    tokens: int32 [slots + 1, context_length], or [slots + 1, 1] for the newest of each, where not `whole`.
    lengths: int64 [slots + 1]. longest: the context length. The last slot is padding's, with one token. On a CPU, room
    for tokens takes memory once a sequence is long enough to write there.

    columns: tokens and lengths, as a step's operations take them (`gradus.kernels.step.rows`): numpy columns if
    `on_host`, in a CPU's memory.
    """

    def __init__(
        self, slots: int, context_length: int, device: torch.device, *, whole: bool = True, on_host: bool = False
    ) -> None:
        self.longest, self.whole = context_length, whole
        self.tokens = zeros((slots + 1, context_length if whole else 1), torch.int32, device)
        self.lengths = torch.ones(slots + 1, dtype=torch.int64, device=device)
        self.columns: tuple[Any, Any] = self.tokens, self.lengths
        if on_host:
            self.columns = self.tokens.numpy(), self.lengths.numpy()  # the same memory

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Give slots to new owners, with the tokens known so far: in one copy, since many may arrive at once."""
        if not admissions:
            return
        known = {admission.slot: admission.tokens for admission in admissions}  # a slot may change hands twice
        slots = np.array([*known], np.int64)
        ends = np.array([len(tokens) for tokens in known.values()], np.int64)
        if not self.whole:
            owned, lengths = upload_parts([slots, ends], torch.int64, self.device)
            self.lengths[owned] = lengths
            return
        total = int(ends.sum())
        # flat positions in the table: each slot's tokens fill its row from the start
        where = np.arange(total) + np.repeat(slots * self.tokens.shape[1] + ends - ends.cumsum(), ends)
        said = np.fromiter(chain.from_iterable(known.values()), np.int64, total)
        places, tokens, owned, lengths = upload_parts([where, said, slots, ends], torch.int64, self.device)
        self.tokens.view(-1)[places] = tokens.int()
        self.lengths[owned] = lengths

    def rewind(self, slots: Sequence[int], counts: Sequence[int], newest: Sequence[int]) -> None:
        """Take back the last `counts` tokens of each slot. newest: those before them, which may be lost."""
        owned, back, tokens = upload_parts([slots, counts, newest], torch.int64, self.device)
        self.lengths[owned] = lengths = self.lengths[owned] - back
        self.tokens[owned, self._places(lengths - 1)] = tokens.int()

    def _places(self, positions: Tensor) -> Tensor:
        return positions if self.whole else positions.clamp(max=0)
