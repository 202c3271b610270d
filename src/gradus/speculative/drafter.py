"""The interface of a drafter."""

from collections.abc import Sequence

from torch import Tensor

from gradus.engine.plan import Decodes
from gradus.kernels.step.ngram_reference import NO_DRAFT as NO_DRAFT
from gradus.speculative.history import History


class Drafter:
    """Proposes tokens. Whatever it proposes, the engine's tokens stay the same: only its speed is at stake.

    A drafter needs no knowledge of acceptance, and may propose too few tokens or none. The methods other than
    `propose` are for drafters with keys and values of their own, and do nothing for all others.
    """

    steady = True
    """Whether the newest proposal took the usual time: the drafter had nothing to catch up on."""

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        """Propose the tokens after the newest one of each slot: int64 [B, count], on the device. slots: integers [B].

        NO_DRAFT marks a missing proposal, and then all later columns as well. limits: integers [B], how many positions
        each slot may store, for drafters with keys and values of their own.
        """
        raise NotImplementedError

    def catch_up(self, history: History, decodes: Decodes) -> None:
        """Prepare for the next step, which verifies drafts of `decodes`, or none if they have none.

        The decodes' block tables are up to date.
        """

    def keep(self, slot: int, positions: int) -> None:
        """Forget everything stored for `slot` beyond `positions`: 0 when the slot changes owners, the page's start when
        a page is exchanged for another sequence's with the same tokens."""

    def wipe(self, pages: Sequence[int]) -> None:
        """Fill these pages with zeros: see `Plan`."""
