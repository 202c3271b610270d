"""Decodes: one query per sequence, of all sequences at once. What they see is given as rows of the storage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Visible:
    """What each of B decodes sees in one layer group: rows of the storage, int64 [B, L], oldest first.

    seen: bool [B, L], False where a sequence is shorter than the longest. The row there is its newest once more.
    """

    rows: Tensor
    seen: Tensor


class Decodes(Protocol):
    """Attends for all decodes of a step at once."""

    def prepare(self, visible: Sequence[Visible]) -> None:
        """Once per step: what the decodes see, in each layer group."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """q: [B, Hq, Dh], one query per sequence, whose own key and value are stored by now. Returns [B, Hq, Dh]."""
