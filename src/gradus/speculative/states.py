"""The newest hidden state of each slot's sequence, on the device: the input of trained heads.

It belongs to the row that drew the newest token, the last accepted one. The device knows which row of a step this is
a step before the host does, as with `History`. Every sequence has a state: its prompt's last token is always run, even
if the rest of the prompt was found in the prefix cache, and even when the sequence resumes after a preemption.
"""

import torch
from torch import Tensor


def states_bytes(slots: int, hidden_size: int, itemsize: int) -> int:
    return (slots + 1) * hidden_size * itemsize


class HiddenStates:
    """The states by slot. values: [slots + 1, D], as the model's head takes them. The last slot is padding's."""

    def __init__(self, slots: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.zeros(slots + 1, hidden_size, dtype=dtype, device=device)

    def record(self, slots: Tensor, hidden: Tensor) -> None:
        """Store the hidden state of each slot's newest row. slots: int64 [R]; hidden: [R, D]."""
        self.values[slots] = hidden.to(self.values.dtype)
