"""A draft model on a GPU: its passes have a fixed number of rows, so they are part of the step's graph.

The first pass runs the newest token and the one before it. That one the draft model may not have seen: where all drafts
stood, the last of them was drawn and never run. Each later pass runs one draft. Slots whose newer tokens came in steps
without drafts, or with a prompt, are caught up with before the step: what it has stored of them the host knows, and
which tokens are missing the history.

`draft_model.py` is the same where the host may look at the device's numbers, and says what both rest on.
"""

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.device.transfer import upload_parts
from gradus.engine.plan import Decodes
from gradus.execution.runner import RunModel
from gradus.kernels.draft_rows import draft_rows
from gradus.kernels.ngram_reference import NO_DRAFT
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.speculative.history import History

CHUNK = 2048
"""Tokens that it catches up with in one step."""


class DraftPasses:
    """model, attention: the draft's, the block tables being the model's. sampler: the model's."""

    def __init__(self, model: Model, attention: GraphPagedAttention, sampler: KernelSampler) -> None:
        self.model, self.attention, self.sampler = model, attention, sampler
        self.run_model: RunModel = model
        self.padding = attention.tables.shape[1] - 1
        self._verifies = torch.zeros(self.padding + 1, dtype=torch.int32, device=model.device)  # no slot is barred
        self.steady = True
        self._stored: dict[int, int] = {}  # slot → positions whose keys and values it has for certain
        self._current: set[int] = set()  # slots of which it has run all that the last step did

    # -- inside the graph ----------------------------------------------------------------------------------------------

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        lengths, longest = history.lengths[slots], self.model.config.context_length
        ends = limits.clamp(max=longest)
        token = self._first(history, slots, lengths, ends)
        drafts = [torch.where(lengths <= longest, token, NO_DRAFT)]
        for number in range(1, count):
            positions = lengths - 1 + number
            live = (positions < ends) & (drafts[-1] >= 0)
            rows = torch.where(live, slots, self.padding), torch.where(live, positions + 1, 0).int()
            self.attention.prepare_decodes(*rows)
            token = self._draw(token, torch.where(live, positions, 0), *rows)
            drafts.append(torch.where(live, token, NO_DRAFT))
        return torch.stack(drafts, dim=1)

    def _first(self, history: History, slots: Tensor, lengths: Tensor, ends: Tensor) -> Tensor:
        """The token after the newest of each slot, int64 [B]."""
        newest = history.tokens[slots, lengths - 1].long().unsqueeze(1)
        before = (history.lengths - 1).clamp(min=1)  # as if the newest token were the draft of the one before it
        rows = draft_rows(
            slots, ends, self._verifies, history.tokens, before, newest, self.attention.tables,
            self.attention.storage.page_size,
        )  # fmt: skip
        self.attention.prepare_drafts(slots, rows, 2)
        last = (rows.query_start[1:] - 1).clamp(min=0, max=len(rows.tokens) - 1)
        return self._draw(rows.tokens, rows.positions, slots, lengths.int(), last)

    def _draw(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, ends: Tensor, picked: Tensor | None = None
    ) -> Tensor:
        """Run rows, and draw for these slots and positions. A token that is none, or was not computed, is any other."""
        config = self.model.config
        tokens, positions = tokens.clamp(0, config.vocab_size - 1), positions.clamp(0, config.context_length - 1)
        hidden = self.model(tokens, positions, self.attention)
        logits = self.model.logits(hidden if picked is None else hidden[picked.long()])
        return self.sampler.draw_slots(logits, slots, ends, asked=False).tokens

    # -- before a step -------------------------------------------------------------------------------------------------

    def keep(self, slot: int, positions: int) -> None:
        if positions < self._stored.get(slot, 0):
            self._stored[slot] = positions
            self._current.discard(slot)

    def catch_up(self, history: History, decodes: Decodes) -> None:
        """The next step is of these decodes, whose block tables are up to date."""
        self.steady = True
        if not decodes.drafts:
            self._current.difference_update(decodes.slots.tolist())
            return
        for slot, start in zip(decodes.slots.tolist(), decodes.starts.tolist(), strict=True):
            if slot not in self._current:
                self.steady = False
                for first in range(min(self._stored.get(slot, 0), start), start, CHUNK):
                    self._run(history, slot, range(first, min(first + CHUNK, start)))
            self._stored[slot] = max(start, self._stored.get(slot, 0))
            self._current.add(slot)

    def _run(self, history: History, slot: int, span: range) -> None:
        """Store what it makes of tokens that the history has."""
        if span.start >= self.model.config.context_length:
            return
        span = range(span.start, min(span.stop, self.model.config.context_length))
        (positions,) = upload_parts([list(span)], torch.int64, self.model.device)
        batch = Batch(
            token_ids=history.tokens[slot, span.start : span.stop].long(),
            positions=positions,
            slots=[slot],
            query_start=[0],
            counts=[len(span)],
            starts=[span.start],
            lengths=[span.stop],
            tables=[None],
            logits_rows=positions[:0],
            row_spans=[],
        )
        self.attention.prepare(batch)
        self.run_model(batch.token_ids, batch.positions, self.attention)
