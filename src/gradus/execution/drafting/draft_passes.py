"""Runs a draft model on a GPU: its passes have a fixed number of rows, so they are part of the step's graph.

The first pass runs the newest token and the one before it. The draft model may not have run the latter: if all drafts
were accepted, it drew the last of them but never ran it. Each later pass runs one draft. Slots that got tokens in steps
without drafts, or from a prompt, catch up before the step: the host knows which positions are stored, and the history
has the missing tokens.

`draft_model.py` does the same where the host can read the device's numbers, and explains the idea of both.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from gradus.attention.graph_paged import GraphPagedAttention
from gradus.device.transfer import current
from gradus.engine.plan import Decodes, Plan, Span
from gradus.execution.layout import lay_out
from gradus.execution.passes import RunModel, kernel_logits
from gradus.kernels.step.draft_passes import first_rows, keep_draft, next_rows
from gradus.kernels.step.rows import Drafting
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History

CHUNK = 2048
"""Most missing tokens that it computes in one step."""


Missing = tuple[int, range]  # a slot, and positions that the draft model has not stored


class DraftPasses(Drafter):
    """Proposes drafts within the step's graph, and catches up before it.

    model, attention: the draft's, except that the block tables are the model's. sampler: the model's. budget: most
    tokens of a step; None if prompts are not cut.
    """

    def __init__(
        self, model: Model, attention: GraphPagedAttention, sampler: KernelSampler, budget: int | None
    ) -> None:
        self.model, self.attention, self.sampler = model, attention, sampler
        self.chunk = min(CHUNK, budget or CHUNK)
        self.run_model: RunModel = model
        self.padding = attention.tables.shape[1] - 1
        # Tokens and positions of a pass, kept in one tensor: passes that only compile kernels write no tokens, but the
        # model looks tokens up even then, so they must be valid ones.
        self._inputs = torch.zeros(2, 2 * (self.padding + 1), dtype=torch.int64, device=model.device)
        self._stored: dict[int, int] = {}  # slot → positions that certainly have stored keys and values
        self._current: set[int] = set()  # slots whose last step had passes too, so that no token is missing

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
        """Draw the token after the newest of each slot, int64 [B]."""
        attention = self.attention
        rows = first_rows(spans, self._inputs, history.tokens, attention.tables, attention.storage.page_size)
        attention.prepare_drafts(spans.slots, rows, 2)
        hidden = self.model(rows.tokens, rows.positions, attention)
        return self._draw(hidden[1::2].contiguous(), spans.slots, rows.lengths)

    def _draw(self, hidden: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Draw a token for each row. Where no logit is finite it may be any token: drafts are verified anyway."""
        return self.sampler.guess_slots(kernel_logits(self.model, hidden), slots, positions)

    # -- before a step -------------------------------------------------------------------------------------------------

    def keep(self, slot: int, positions: int) -> None:
        if positions < self._stored.get(slot, 0):
            self._stored[slot] = positions
            self._current.discard(slot)

    def wipe(self, pages: Sequence[int]) -> None:
        self.attention.wipe(pages)

    def catch_up(self, history: History, decodes: Decodes) -> None:
        """Store the keys and values that the next step's decodes are missing. Slots that lag behind share passes."""
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
        with current(self.model.device):
            for spans in pieces(missing, self.chunk):
                self._run(history, spans)

    @torch.inference_mode()
    def _run(self, history: History, spans: Sequence[Missing]) -> None:
        """Store the keys and values of the missing positions, in one pass. Their tokens come from the history."""
        # only the device knows the tokens: their positions fill in until they are looked up
        batch = lay_out(Plan([Span(None, slot, part.start, part, 0) for slot, part in spans]), self.model.device)
        batch.token_ids = history.tokens[batch.owners, batch.positions].long()
        self.attention.prepare(batch)
        self.run_model(batch.token_ids, batch.positions, self.attention)


def pieces(spans: Iterable[Missing], most: int) -> Iterator[list[Missing]]:
    """Cut the spans, in their order, into passes of `most` positions; the last pass has the rest."""
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
