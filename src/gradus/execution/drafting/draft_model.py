"""Drafts by a smaller model of the same vocabulary: it says what comes next a few times, and the large one verifies.

The draft model has keys and values of its own, in pages of the same numbers as the model's: what it stores of a
sequence lies where the model's block table says. So it needs no pages, no tables, and no word from the scheduler. What
it has stored of a slot may lag behind, by tokens of steps without drafts or by a whole prompt: a draft begins with
these. So nothing of it runs while no drafts are asked for, and a prefix that the model finds in its cache the draft
model computes for itself.

It draws with the noise of the position that it drafts, by the request's own parameters. So where both models expect
about the same, they draw the same token, at any temperature.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradus.attention.paged import PagedAttention
from gradus.engine.plan import Decodes, Plan, Span
from gradus.execution.runner import ModelRunner
from gradus.kernels.step.ngram_reference import NO_DRAFT
from gradus.speculative.history import History

CHUNK = 256
"""Tokens that it catches up with in one step."""
USUAL = 2
"""Tokens that a draft begins with where the last step had one too: where all of that stood, its last was never run."""


class DraftModel:
    """Proposes for slots whose block tables are up to date.

    runner: of the draft model, with the model's sampler. pages: its attention, which reads the model's block tables.
    """

    def __init__(self, runner: ModelRunner, pages: PagedAttention) -> None:
        self.runner, self.pages = runner, pages
        self.longest = runner.model.config.context_length
        self.steady = True
        self._stored: dict[int, int] = {}  # slot → positions whose keys and values it has

    def catch_up(self, history: History, decodes: Decodes) -> None:
        """It does when it is asked for drafts."""

    def keep(self, slot: int, positions: int) -> None:
        self._stored[slot] = min(self._stored.get(slot, 0), positions)

    def wipe(self, pages: Sequence[int]) -> None:
        self.pages.storage.wipe(pages)

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        ends = dict(zip(slots.tolist(), limits.clamp(max=self.longest).tolist(), strict=True))
        lengths = dict(zip(slots.tolist(), history.lengths[slots].tolist(), strict=True))
        drafts: dict[int, list[int]] = {slot: [] for slot in lengths}
        spans = [self._catch_up(history, slot, length) for slot, length in lengths.items() if length <= ends[slot]]
        self.steady = all(len(span.tokens) <= USUAL for span in spans)
        for _ in range(count):
            drawn = self._draw(spans) if spans else []
            following = []
            for span, token in zip(spans, drawn, strict=True):
                slot, end = span.slot, span.start + len(span.tokens)
                self._stored[slot] = end
                if token >= 0:
                    drafts[slot].append(token)
                    if end < ends[slot]:  # the last draft need not be stored
                        following.append(Span(None, slot, end, (token,), 1))
            spans = following
        return torch.tensor([(each + [NO_DRAFT] * count)[:count] for each in drafts.values()])

    def _catch_up(self, history: History, slot: int, length: int) -> Span:
        """What a draft begins with: the tokens that it has not stored, after all but a chunk of them have been.

        Of what was drafted last, only what was accepted still counts.
        """
        start = min(self._stored.get(slot, 0), length - 1)
        while length - start > CHUNK:
            tokens = history.tokens[slot, start : start + CHUNK].tolist()
            self.runner.answer(Plan([Span(None, slot, start, tokens, 0)]))
            start += CHUNK
        return Span(None, slot, start, history.tokens[slot, start:length].tolist(), 1)

    def _draw(self, spans: list[Span]) -> list[int]:
        """The token after each span."""
        return self.runner.guess(Plan(spans)).tolist()
