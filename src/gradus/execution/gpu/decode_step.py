"""Runs one step of decodes on a GPU, from each slot's newest token to its next ones, entirely on the device.

The host sends three numbers per sequence: its slot, the positions that it may store, and how many drafts it may verify.
Everything else stays on the device from step to step, in tables by slot: tokens and lengths (`History`), block tables,
sampling settings. So the next step can be launched before the host knows what this one drew, and a step can be replayed
from a CUDA graph (`step_graphs.py`).

    rows     drafts are proposed and packed after each sequence's newest token; the remaining rows are padding
    compute  the model runs the rows
    draw     a token is drawn for each row
    accept   each draft is compared with the token drawn in the row before it; accepted tokens go to the history
    send     the tokens go to the host (`results.py`)

A step with masked rows is launched in two parts, because a grammar's mask depends on the tokens of the step before:
rows and `compute` at once, the rest when the masks are there (`masked_draws.py`).

A step without drafts is the same with one row per sequence, and every token is accepted. Then `accept` has nothing to
do: `rows` has counted the token, and the draw has written it. Only where the drafter reads hidden states are they kept
at every step's end.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gradus.attention.graph_paged import GraphPagedAttention
from gradus.execution.gpu.results import Results
from gradus.execution.runner import kernel_logits
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.step.decode_rows import DecodeRows, StepRows, decode_rows
from gradus.kernels.step.verify import VerifyRows, accept_drafts, pack_rows
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler, SlotDraw
from gradus.scheduling.draft_shapes import DraftShape
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History
from gradus.speculative.states import HiddenStates


class Accepted(NamedTuple):
    """The result of a step of B decodes. tokens: int64 [B, 1 + K], as in `Sampled`. pairs: each token's, as in
    DrawnLogprobs; None if no row may ask for them."""

    tokens: Tensor
    pairs: Tensor | None


class DecodeStep:
    """Composes the launches of a step of decodes.

    model: the kernels' view of it. attention, sampler and history have room for one more slot, for padding. drafter:
    None for an engine that does not speculate. states: hidden states, kept only if the drafter reads them. drafts: the
    most that a sequence verifies.
    """

    def __init__(
        self,
        model: Model,
        attention: GraphPagedAttention,
        sampler: KernelSampler,
        history: History,
        drafter: Drafter | None = None,
        states: HiddenStates | None = None,
        drafts: int = 0,
    ) -> None:
        self.model, self.attention, self.sampler = model, attention, sampler
        self.history, self.drafter, self.states = history, drafter, states
        most = len(history.lengths) * (1 + drafts)
        self.results = Results(most, model.device, timed=drafter is not None)

    def run(self, inputs: Tensor, shape: DraftShape, *, early: bool = False, full: bool) -> Accepted:
        """Run the step.

        inputs: int32 [3, B]: slots, limits (positions that each sequence may store; 0 for padding), and the most drafts
        of each, which fit in `shape`. early: see `early_launches`. full: rows may ask for more than a temperature.
        """
        rows, hidden = self.begin(inputs, shape, early=early)
        return self.end(inputs, rows, hidden, shape, early=early, full=full)

    def begin(self, inputs: Tensor, shape: DraftShape, *, early: bool = False) -> tuple[StepRows, Tensor]:
        """Run the step up to the hidden states of its rows, [R, D]."""
        slots, limits, most = inputs
        rows = self.rows(slots, limits, most, shape, early)
        return rows, self.compute(slots, rows, shape, early)

    def end(
        self, inputs: Tensor, rows: StepRows, hidden: Tensor, shape: DraftShape, *, early: bool = False, full: bool
    ) -> Accepted:
        """Draw the rows' tokens, accept those that count, and send them to the host."""
        accepted = self.accept(inputs[0], rows, self.draw(rows, hidden, early, full), hidden, shape, early)
        self.results.send(accepted.tokens, early=early)
        return accepted

    @torch.inference_mode()
    def rehearse(self, inputs: Tensor, shape: DraftShape, early: bool) -> None:
        """Go through the launches of `run` while launches only compile; nothing reads their results."""
        slots, limits, most = inputs
        rows = self.rows(slots, limits, most, shape, early)
        nothing = torch.zeros_like(rows.tokens)
        for full in (False, True):
            blank = rows._replace(tokens=nothing, positions=nothing)
            hidden = self.compute(slots, blank, shape, early)
            draw = self.draw(blank, hidden, early, full)
            if isinstance(rows, VerifyRows):
                self._accept(slots, rows, draw.tokens, hidden, shape, early)
            self.results.send(draw.tokens, early=early)

    @property
    def written(self) -> Tensor | None:
        """The history's tokens, where a draw without drafts writes to them; None where `accept` does."""
        return self.history.tokens if self.states is None else None

    def rows(self, slots: Tensor, limits: Tensor, most: Tensor, shape: DraftShape, early: bool = False) -> StepRows:
        """Propose drafts, and pack each slot's newest token and its drafts into rows."""
        history, attention = self.history, self.attention
        if not shape.drafts and self.written is not None:
            tables, page_size = attention.tables, attention.storage.page_size
            return decode_rows(slots, limits, history.tokens, history.lengths, tables, page_size)
        proposed = torch.empty(len(slots), shape.drafts, dtype=torch.int64, device=slots.device)
        with early_launches(early and shape.drafts > 0):  # a step's first launch has no launch before it to overlap
            if shape.drafts and self.drafter is not None:
                proposed = self.drafter.propose(history, slots, shape.drafts, limits)
            # penalties count what a sequence has said, and a draft has not been said yet: such a slot verifies none
            return pack_rows(
                slots, limits, most, self.sampler.table.adjusts, history.tokens, history.lengths, proposed,
                attention.tables, attention.storage.page_size, len(slots) + shape.rows,
            )  # fmt: skip

    def compute(self, slots: Tensor, rows: StepRows, shape: DraftShape, early: bool) -> Tensor:
        """Run the model. Returns the rows' hidden states, [R, D]."""
        attention = self.attention
        if shape.drafts and isinstance(rows, VerifyRows):
            attention.prepare_drafts(slots, rows, 1 + shape.drafts)
        else:
            attention.prepare_decodes(rows.slots, rows.ends, rows.places)
        with early_launches(early):
            return self.model(rows.tokens, rows.positions, attention)

    def draw(self, rows: StepRows, hidden: Tensor, early: bool, full: bool) -> SlotDraw:
        """Draw a token for each row from the logits of its hidden state."""
        logits = kernel_logits(self.model, hidden)
        written = self.written if isinstance(rows, DecodeRows) else None
        with early_launches(early):
            return self.sampler.draw_slots(logits, rows.slots, rows.ends, written, full=full)

    def accept(
        self, slots: Tensor, rows: StepRows, draw: SlotDraw, hidden: Tensor, shape: DraftShape, early: bool = False
    ) -> Accepted:
        """Append the accepted tokens to the history."""
        if isinstance(rows, DecodeRows):
            return Accepted(draw.tokens.unsqueeze(1), draw.pairs)
        tokens, origins = self._accept(slots, rows, draw.tokens, hidden, shape, early)
        return Accepted(tokens, None if draw.pairs is None else draw.pairs[origins.flatten()])

    def _accept(
        self, slots: Tensor, rows: VerifyRows, drawn: Tensor, hidden: Tensor, shape: DraftShape, early: bool
    ) -> tuple[Tensor, Tensor]:
        history, states = self.history, None if self.states is None else self.states.values
        with early_launches(early):
            return accept_drafts(slots, rows, drawn, history.tokens, history.lengths, shape.drafts, hidden, states)
