"""Drafts without a model: the tokens that followed an earlier occurrence of the sequence's newest tokens.

Answers copy: code that is edited, a text that is summarized, names, lists, a loop. If the newest tokens occur earlier
in prompt or output, the tokens after them are likely to come again (prompt lookup decoding: Saxena 2023, which LLMA,
Yang et al. 2023, found before; vLLM's "ngram"). It costs a search through one row of token ids.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradus.kernels.step.ngram_reference import look_up
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History

MOST_AT_ONCE = 1 << 20
"""Tokens, padded to the longest text, that a CPU searches at once: the search takes some 40 bytes for each."""

LookUp = Callable[[Tensor, Tensor, Tensor, int], Tensor]


class NgramDrafter(Drafter):
    """Proposes the tokens after the longest and then the newest earlier match of a sequence's end.

    kernel: whether a Triton kernel does the search.
    """

    def __init__(self, kernel: bool = False) -> None:
        self._look_up: LookUp | None = None
        if kernel:
            from gradus.kernels.step.ngram import look_up_slots  # here: Triton is not everywhere

            self._look_up = look_up_slots

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        if self._look_up is not None:
            return self._look_up(slots, history.tokens, history.lengths, count)
        longest = int(history.lengths[slots].max())
        parts = slots.split(max(1, MOST_AT_ONCE // longest))
        return torch.cat([self._look_up_on_host(history, part, count) for part in parts])

    def _look_up_on_host(self, history: History, slots: Tensor, count: int) -> Tensor:
        """Search the columns in use alone."""
        lengths = history.lengths[slots]
        return look_up(history.tokens[slots, : int(lengths.max())], lengths, count)
