"""A draft model on a GPU: its passes have a fixed number of rows, so they are part of the step's graph.

The first pass runs the newest token and the one before it. That one the draft model may not have seen: where all drafts
stood, the last of them was drawn and never run. Each later pass runs one draft. Slots whose newer tokens came in steps
without drafts, or with a prompt, are caught up with before the step: what it has stored of them the host knows, and
which tokens are missing the history.

`draft_model.py` is the same where the host may look at the device's numbers, and says what both rest on.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.device.transfer import upload_parts
from gradus.engine.plan import Decodes
from gradus.execution.runner import RunModel, kernel_logits
from gradus.kernels.step.draft_passes import Drafting, first_rows, keep_draft, next_rows
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.speculative.history import History

CHUNK = 2048
"""Tokens that it catches up with in one step, at most."""


Missing = tuple[int, range]  # a slot, and positions that the draft model has not stored


class DraftPasses:
    """model, attention: the draft's, the block tables being the model's. sampler: the model's. budget: of a step's
    tokens; None where prompts are not cut."""

    def __init__(
        self, model: Model, attention: GraphPagedAttention, sampler: KernelSampler, budget: int | None
    ) -> None:
        self.model, self.attention, self.sampler = model, attention, sampler
        self.chunk = min(CHUNK, budget or CHUNK)
        self.run_model: RunModel = model
        self.padding = attention.tables.shape[1] - 1
        # tokens and positions of a pass: kept, since kernels are compiled in passes that compute nothing, and there too
        # the model looks its tokens up
        self._inputs = torch.zeros(2, 2 * (self.padding + 1), dtype=torch.int64, device=model.device)
        self.steady = True
        self._stored: dict[int, int] = {}  # slot → positions whose keys and values it has for certain
        self._current: set[int] = set()  # slots of which it has run all that the last step did

    # -- inside the graph ----------------------------------------------------------------------------------------------

    def propose(self, history: History, slots: Tensor, count: int, limits: Tensor) -> Tensor:
        config = self.model.config
        spans = Drafting(slots, limits, history.lengths, config.context_length, config.vocab_size)
        drafts = torch.empty(len(slots), count, dtype=torch.int64, device=slots.device)
        drawn = self._first(history, spans)
        for number in range(1, count):
            rows = next_rows(spans, self._inputs, drawn, drafts, number - 1)
            self.attention.prepare_decodes(rows.slots, rows.lengths)
            hidden = self.model(rows.tokens, rows.positions, self.attention)
            drawn = self._draw(hidden, rows.slots, rows.lengths)
        keep_draft(spans, drawn, drafts, count - 1)
        return drafts

    def _first(self, history: History, spans: Drafting) -> Tensor:
        """The token after the newest of each slot, int64 [B]."""
        attention = self.attention
        rows = first_rows(spans, self._inputs, history.tokens, attention.tables, attention.storage.page_size)
        attention.prepare_drafts(spans.slots, rows, 2)
        hidden = self.model(rows.tokens, rows.positions, attention)
        return self._draw(hidden[1::2].contiguous(), spans.slots, rows.lengths)

    def _draw(self, hidden: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Any token of the vocabulary where no logit is finite: what is drafted is verified."""
        return self.sampler.guess_slots(kernel_logits(self.model, hidden), slots, positions)

    # -- before a step -------------------------------------------------------------------------------------------------

    def keep(self, slot: int, positions: int) -> None:
        if positions < self._stored.get(slot, 0):
            self._stored[slot] = positions
            self._current.discard(slot)

    def wipe(self, pages: Sequence[int]) -> None:
        self.attention.wipe(pages)

    def catch_up(self, history: History, decodes: Decodes) -> None:
        """Store what is missing of these decodes, which the next step runs. Slots that lag behind share passes."""
        self.steady = True
        if not len(decodes.drafts):
            self._current.difference_update(decodes.slots.tolist())
            return
        missing, longest = [], self.model.config.context_length
        for slot, start in zip(decodes.slots.tolist(), decodes.starts.tolist(), strict=True):
            if slot not in self._current:
                self.steady = False
                missing.append((slot, range(min(self._stored.get(slot, 0), start), min(start, longest))))
            self._stored[slot] = max(start, self._stored.get(slot, 0))
            self._current.add(slot)
        for spans in pieces(missing, self.chunk):
            self._run(history, spans)

    def _run(self, history: History, spans: Sequence[Missing]) -> None:
        """Store what it makes of tokens that the history has: one pass over all of them."""
        slots, counts = [slot for slot, _ in spans], [len(span) for _, span in spans]
        places = [place for _, span in spans for place in span]
        positions, owners = upload_parts([places, np.repeat(slots, counts)], torch.int64, self.model.device)
        batch = Batch(
            token_ids=history.tokens[owners, positions].long(),
            positions=positions,
            owners=owners,
            slots=slots,
            query_start=[0, *accumulate(counts[:-1])],
            counts=counts,
            starts=[span.start for _, span in spans],
            lengths=[span.stop for _, span in spans],
            tables=[None] * len(spans),
            logits_rows=positions[:0],
            row_spans=[],
        )
        self.attention.prepare(batch)
        self.run_model(batch.token_ids, batch.positions, self.attention)


def pieces(spans: Iterable[Missing], most: int) -> Iterator[list[Missing]]:
    """These spans in their order, cut into passes of `most` positions; the last has the rest."""
    taken: list[Missing] = []
    room = most
    for slot, span in spans:
        while span:
            taken.append((slot, span[:room]))
            span, room = span[room:], room - len(taken[-1][1])
            if not room:
                yield taken
                taken, room = [], most
    if taken:
        yield taken
