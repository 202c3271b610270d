"""Drafts without a model: the tokens that followed an earlier occurrence of the sequence's newest tokens.

Answers copy: code that is edited, a text that is summarized, names, lists, a loop. If the newest tokens occur earlier
in prompt or output, the tokens after them are likely to come again (prompt lookup decoding: Saxena 2023, which LLMA,
Yang et al. 2023, found before; vLLM's "ngram"). It costs a search through one row of token ids.
"""

from collections.abc import Callable

from torch import Tensor

from gradus.kernels.step.ngram_reference import look_up
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History

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
        lengths = history.lengths[slots]
        # only the columns in use, if the host knows them without waiting for a GPU
        longest = int(lengths.max()) if history.device.type == "cpu" else history.tokens.shape[1]
        return look_up(history.tokens[slots, :longest], lengths, count)
