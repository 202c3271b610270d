"""What every slot's sequence has said so far, on the device.

The host learns a step's tokens when it commits the step, and plans the next one before. So how long a sequence is, and
which token is its newest, is known here first.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradus.device.transfer import upload
from gradus.engine.plan import REJECTED, Admission


def history_bytes(slots: int, context_length: int) -> int:
    return (slots + 1) * (4 * context_length + 8)


class History:
    """tokens: int32 [slots + 1, context_length]; lengths: int64 [slots + 1]. The last slot is padding's: one token."""

    def __init__(self, slots: int, context_length: int, device: torch.device) -> None:
        self.tokens = torch.zeros(slots + 1, context_length, dtype=torch.int32, device=device)
        self.lengths = torch.ones(slots + 1, dtype=torch.int64, device=device)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Slots change owners: their tokens are those known already. In one copy, since crowds arrive at once."""
        if not admissions:
            return
        longest = self.tokens.shape[1]
        known = {admission.slot: admission.tokens for admission in admissions}  # a slot may change hands twice
        places = [slot * longest + np.arange(len(tokens)) for slot, tokens in known.items()]
        lengths = [len(tokens) for tokens in known.values()]
        parts = [np.array(part) for part in (*places, *known.values(), list(known), lengths)]
        total, count = sum(lengths), len(known)
        numbers = upload(np.concatenate(parts), torch.int64, self.device)
        where, tokens, slots, ends = numbers.split([total, total, count, count])
        self.tokens.view(-1)[where] = tokens.int()
        self.lengths[slots] = ends

    def record(self, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Append what a step drew: token and position of each row, int64 [R]; rows that do not stand are passed over.

        A row without a finite logit counts as token 0: its sequence has ended, and runs a step in vain at most.
        """
        stands = tokens > REJECTED
        slots = torch.where(stands, slots, len(self.lengths) - 1)
        positions = torch.where(stands, positions, 0)
        self.tokens[slots, positions] = tokens.clamp(min=0).int()
        self.lengths.scatter_reduce_(0, slots, positions + 1, "amax")
