"""What a drafter is."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from gradus.engine.plan import Decodes
from gradus.kernels.step.ngram_reference import NO_DRAFT as NO_DRAFT
from gradus.speculative.history import History


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, the engine's tokens stay the same: only its speed is at stake.

    So it knows nothing of acceptance, and may propose too few tokens or none.
    """

    steady: bool
    """Whether the newest proposal took what proposals usually take: nothing had to be caught up with."""

    def catch_up(self, history: History, decodes: Decodes) -> None:
        """The next step verifies drafts of these decodes, whose block tables are up to date, or at 0 drafts none."""

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        """What each of these slots, integers [B], may say next: int64 [B, count] on the device, from the first token
        after its newest on. NO_DRAFT where there is none, and then in all later columns.

        limits: integers [B], how many positions each may store, for drafters that have keys and values of their own.
        """

    def keep(self, slot: int, positions: int) -> None:
        """Of what it may have stored of a slot only the first positions still count: none if the slot changed owners,
        and those before a page that was exchanged for another sequence's with the same tokens."""

    def wipe(self, pages: Sequence[int]) -> None:
        """Fill these pages with zeros, where it has keys and values of its own: see `Plan`."""
