"""The hidden state that every slot's sequence was left with, on the device: what trained heads draft from.

It is that of the row that drew the newest token, the last one that stood. Which row of a step that is, the device
knows a step before the host does, as with `History`. Every sequence has one: its prompt's last token is always run,
also where the rest of the prompt was found in the prefix cache, and also when it resumes after a preemption.
"""

import torch
from torch import Tensor


def states_bytes(slots: int, hidden_size: int, itemsize: int) -> int:
    return (slots + 1) * hidden_size * itemsize


class HiddenStates:
    """values: [slots + 1, D], as the model's head takes them. The last slot is padding's."""

    def __init__(self, slots: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.zeros(slots + 1, hidden_size, dtype=dtype, device=device)

    def record(self, slots: Tensor, hidden: Tensor) -> None:
        """The newest row of each slot left this. slots: int64 [R]; hidden: [R, D]."""
        self.values[slots] = hidden.to(self.values.dtype)
