"""Decodes: one query per sequence, for all sequences at once. Their keys and values are given as rows of the
storage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Visible:
    """The positions that each of B decodes sees in one layer group: rows of the storage, int64 [B, L], oldest first.

    seen: bool [B, L], False past the end of a shorter sequence. The row there repeats its newest one.
    """

    rows: Tensor
    seen: Tensor


class Decodes(Protocol):
    """Attends for all decodes of a step at once."""

    def prepare(self, visible: Sequence[Visible]) -> None:
        """Set up a step. visible: the positions that the decodes see, in each layer group."""

    def attend(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Attend. q: [B, Hq, Dh], one query per sequence, whose key and value are stored already. sinks: see
        `gradus.models.attention`. Returns [B, Hq, Dh]."""
