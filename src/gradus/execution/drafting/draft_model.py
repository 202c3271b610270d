"""Drafts with a smaller model of the same vocabulary: it draws a few tokens ahead, and the large model verifies them.

The draft model has its own keys and values, in pages with the same numbers as the model's: the model's block table says
where they are. So it needs no page allocation, no tables and no work from the scheduler. Its keys and values of a slot
may lag behind, by the tokens of steps without drafts or by a whole prompt. The next drafts compute these first, a
bounded number per step, so that a long prompt holds up no other sequence. So the draft model never runs while no drafts
are wanted, and it computes by itself a prefix that the model found in its cache.

It draws with the noise of the drafted position and the request's own parameters. So where the two models' probabilities
are similar, they draw the same token, at any temperature.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradus.engine.plan import Span
from gradus.execution.passes import TorchPass
from gradus.kernels.step.ngram_reference import NO_DRAFT
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History

CHUNK = 256
"""Most missing tokens that it computes in one step, of all slots together. Slots that lack more get no drafts yet."""
USUAL = 2
"""Most tokens that a draft begins with right after a step with drafts: the newest, and if all drafts were accepted, the
last of them, which the draft model drew but never ran."""


class DraftModel(Drafter):
    """Proposes drafts for slots whose block tables are up to date.

    passes: run the draft model, with the model's sampler, and with attention that reads the model's block tables.
    """

    def __init__(self, passes: TorchPass) -> None:
        self.passes = passes
        self.longest = passes.model.config.context_length
        self._stored: dict[int, int] = {}  # slot → positions with stored keys and values

    def keep(self, slot: int, positions: int) -> None:
        self._stored[slot] = min(self._stored.get(slot, 0), positions)

    def wipe(self, pages: Sequence[int]) -> None:
        self.passes.attention.storage.wipe(pages)

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        ends = dict(zip(slots.tolist(), limits.clamp(max=self.longest).tolist(), strict=True))
        lengths = dict(zip(slots.tolist(), history.lengths[slots].tolist(), strict=True))
        drafts: dict[int, list[int]] = {slot: [] for slot in lengths}
        spans = self._catch_up(history, {slot: length for slot, length in lengths.items() if length <= ends[slot]})
        for _ in range(count):
            drawn = self.passes.guess(spans) if spans else []
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

    def _catch_up(self, history: History, lengths: dict[int, int]) -> list[Span]:
        """Compute missing tokens, CHUNK in all. Returns the last part of each slot that then lacks nothing else: its
        draft begins with that part. Others go on in the next step.

        Only the accepted ones of the last drafts still count as stored. lengths: of each slot.
        """
        spans, room, self.steady = [], CHUNK, True
        for slot, length in lengths.items():
            start = min(self._stored.get(slot, 0), length - 1)
            missing = length - start
            if missing <= USUAL:
                spans.append(self._span(history, slot, start, length))
                continue
            self.steady = False
            if missing <= room:
                spans.append(self._span(history, slot, start, length))
            elif room:
                self.passes.store([self._span(history, slot, start, start + room, rows=0)])
                self._stored[slot] = start + room
            room -= min(missing, room)
        return spans

    def _span(self, history: History, slot: int, start: int, end: int, rows: int = 1) -> Span:
        return Span(None, slot, start, history.tokens[slot, start:end].tolist(), rows)
