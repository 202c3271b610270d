"""Shows a step's draws to an observer. While `Sampler.observer` is None, nothing is computed or kept for it.

An observer must not write to what it is shown. It runs within the step, which takes longer by its work.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from gradus.engine.plan import Span

if TYPE_CHECKING:
    from gradus.sampling.sampler import Rows


class DrawObserver:
    """The base class of observers: its methods ignore what they see. A step calls them in this order.

    Only samplers in torch call them. Kernels leave masks and draws on the GPU, so an engine is watched without kernels.
    """

    def drafted(self, slot: int, proposed: Sequence[int], forced: Sequence[int], verified: Sequence[int]) -> None:
        """See the drafts chosen for a slot that keeps to a grammar.

        proposed: by the drafter. forced: by the grammar. verified: the forced ones, or else the proposed ones up to
        the first that is not legal.
        """

    def laid_out(self, spans: Iterable[Span]) -> None:
        """See the spans that a speculating runner made of a step's decodes: the newest token and drafts of each."""

    def drew(self, logits: Tensor, rows: "Rows", masked: Tensor, legal: Tensor, tokens: Tensor) -> None:
        """See a draw with masks, once it is made.

        logits: the model's own, float32 [R, V]. masked: the rows that have a mask, int64 [M]. legal: what their masks
        allow, bool [M, V]. tokens: int64 [R], as in `Drawn`.
        """
