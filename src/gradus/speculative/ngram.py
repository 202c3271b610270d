"""Drafts without a model: what followed the last time that the sequence ended in the same tokens.

Answers copy: code that is edited, a text that is summarized, names, lists, a loop. Where the newest tokens stand
earlier in prompt or output, the ones after them are likely to come again (prompt lookup decoding: Saxena 2023, which
LLMA, Yang et al. 2023, found before; vLLM's "ngram"). It costs a search through one row of token ids.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from gradus.engine.plan import Decodes
from gradus.kernels.step.ngram_reference import look_up
from gradus.speculative.history import History

LookUp = Callable[[Tensor, Tensor, Tensor, int], Tensor]


class NgramDrafter:
    """Proposes what followed the longest and then the newest earlier match of a sequence's end.

    kernel: whether a Triton kernel looks it up.
    """

    steady = True

    def __init__(self, kernel: bool = False) -> None:
        self._look_up: LookUp | None = None
        if kernel:
            from gradus.kernels.step.ngram import look_up_slots  # here: Triton is not everywhere

            self._look_up = look_up_slots

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        if self._look_up is not None:
            return self._look_up(slots, history.tokens, history.lengths, count)
        lengths = history.lengths[slots]
        # the columns in use where that is known; a GPU's host would have to wait for it
        longest = int(lengths.max()) if history.device.type == "cpu" else history.tokens.shape[1]
        return look_up(history.tokens[slots, :longest], lengths, count)

    def catch_up(self, history: History, decodes: Decodes) -> None:
        """It has seen what the history has."""

    def keep(self, slot: int, positions: int) -> None:
        """It has nothing but the history."""

    def wipe(self, pages: Sequence[int]) -> None:
        """It has no pages."""
