"""The hidden state that every slot's sequence was left with, on the device: what trained heads draft from.

It is that of the row that drew the newest token, the last one that stood. Which row of a step that is, the device
knows a step before the host does, as with `History`. Every sequence has one: its prompt's last token is always run,
also where the rest of the prompt was found in the prefix cache, and also when it resumes after a preemption.
"""

import torch
from torch import Tensor

from gradus.engine.plan import REJECTED


def states_bytes(slots: int, hidden_size: int, itemsize: int) -> int:
    return (slots + 1) * hidden_size * itemsize


class HiddenStates:
    """values: [slots + 1, D], as the model's head takes them. The last slot is padding's."""

    def __init__(self, slots: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.zeros(slots + 1, hidden_size, dtype=dtype, device=device)

    def record(self, slots: Tensor, hidden: Tensor) -> None:
        """The newest row of each slot left this. slots: int64 [R]; hidden: [R, D]."""
        self.values[slots] = hidden.to(self.values.dtype)

    def record_standing(self, slots: Tensor, kept: Tensor, origins: Tensor, hidden: Tensor) -> None:
        """What is left by the last row that stood of each slot. May be captured in a CUDA graph.

        slots: integers [B]; kept, origins: [B, 1 + K], as `keep_standing` gives them; hidden: [R, D], of a step's rows.
        A slot without a row that stood keeps what it has.
        """
        count = (kept > REJECTED).sum(1)
        last = origins.gather(1, (count - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        self.record(torch.where(count > 0, slots, len(self.values) - 1).long(), hidden[last])
