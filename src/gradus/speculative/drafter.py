"""What a drafter is."""

from typing import Protocol

from torch import Tensor

from gradus.kernels.ngram_reference import NO_DRAFT as NO_DRAFT
from gradus.speculative.history import History


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, the engine's tokens stay the same: only its speed is at stake.

    So it knows nothing of acceptance, and may propose too few tokens or none.
    """

    def propose(self, history: History, slots: Tensor, count: int) -> Tensor:
        """What each of these slots, int64 [B], may say next: int64 [B, count] on the device, from the first token after
        its newest on. NO_DRAFT where there is none, and then in all later columns."""
