"""One step of decodes, from each slot's newest token to its next ones: the same on every device.

The host gives three numbers per sequence: its slot, the positions that it may store, and how many drafts it may verify.
Everything else stays where the device has it from step to step, in tables by slot: tokens and lengths (`History`),
block tables, sampling settings. So on a GPU the next step can be launched before the host knows what this one drew, and
a step can be replayed from a CUDA graph (`gpu/step_graphs.py`).

    rows     drafts are proposed and packed after each sequence's newest token; on a GPU the remaining rows are padding
    compute  the model runs the rows
    draw     a token is drawn for each row
    accept   each draft is compared with the token drawn in the row before it; accepted tokens go to the history
    send     the tokens go to the host

`kernels/step/rows.py` names the operations on the tables, and a `Pass` runs the model and draws.

A GPU's host launches a step with masked rows in two parts, because a grammar's mask depends on the tokens of the step
before: rows and `compute` at once, the rest when the masks are there (`gpu/masked_draws.py`).

A step without drafts is the same with one row per sequence, and every token is accepted. Then `accept` has nothing to
do: `rows` has counted the token, and the draw has written it. Only where the drafter reads hidden states are they kept
at every step's end.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gradus.engine.plan import UNDRAFTED, Column
from gradus.execution.passes import Pass
from gradus.execution.result import Landing
from gradus.kernels.step.rows import DecodeRows, StepOperations, StepRows, VerifyRows
from gradus.sampling.sampler import SlotDraw
from gradus.scheduling.draft_shapes import DraftShape
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History


class Accepted(NamedTuple):
    """The result of a step of B decodes. rows: how many the model computed, padding included. tokens: int64 [B, 1 + K],
    as in `Sampled`. pairs: each token's, as in DrawnLogprobs; None if no row may ask for them. faults: as in `Sampled`.
    """

    rows: int
    tokens: Any
    pairs: Tensor | None
    faults: Mapping[int, str] = {}


class Delivery(Protocol):
    """Sends the tokens of steps to the host."""

    def send(self, tokens: Any, *, early: bool = False) -> None:
        """Send a step's tokens, int64 of any shape, contiguous."""

    def land(self, count: int) -> tuple[Column, Landing | None]:
        """Return the first `count` of the tokens last sent, int64, valid once the landing has come, if there is one."""


class DecodeStep:
    """Composes the parts of a step of decodes.

    passes: runs the model and draws; its tables, and the history, have room for one more slot, for padding. drafter:
    None for an engine that does not speculate. states: each slot's newest hidden state, [slots + 1, D], kept only if
    the drafter reads them.

    written: the history's tokens, where a draw without drafts writes to them; None where `accept` does.
    """

    def __init__(
        self,
        passes: Pass,
        history: History,
        operations: StepOperations,
        results: Delivery,
        drafter: Drafter | None = None,
        states: Tensor | None = None,
    ) -> None:
        self.passes, self.history, self.operations, self.results = passes, history, operations, results
        self.drafter, self.states = drafter, states
        self.written = history.columns[0] if states is None else None

    def run(self, inputs: Any, shape: DraftShape, *, early: bool = False, full: bool) -> Accepted:
        """Run the step.

        inputs: slots, limits (positions that each sequence may store; 0 for padding), and the most drafts of each,
        which fit in `shape`: [3, B], int32 on a GPU. early: see `StepOperations`. full: rows may ask for more than the
        pass's quick draw.
        """
        rows, hidden = self.begin(inputs, shape, early=early, full=full)
        return self.end(inputs, rows, hidden, shape, early=early, full=full)

    def begin(self, inputs: Any, shape: DraftShape, *, early: bool = False, full: bool = True) -> tuple[StepRows, Any]:
        """Run the step up to the hidden states of its rows, [R, D]."""
        slots, limits, most = inputs
        rows = self.rows(slots, limits, most, shape, early)
        return rows, self.passes.compute(slots, rows, shape, early, full)

    def end(
        self, inputs: Any, rows: StepRows, hidden: Any, shape: DraftShape, *, early: bool = False, full: bool
    ) -> Accepted:
        """Draw the rows' tokens, accept those that count, and send them to the host."""
        written = self.written if isinstance(rows, DecodeRows) else None
        draw = self.passes.draw(rows, hidden, written, early, full)
        accepted = self.accept(inputs[0], rows, draw, hidden, shape, early)
        self.results.send(accepted.tokens, early=early)
        return accepted

    @torch.inference_mode()
    def rehearse(self, inputs: Tensor, shape: DraftShape, early: bool) -> None:
        """Go through the launches of `run` while launches only compile; nothing reads their results."""
        slots, limits, most = inputs
        rows = self.rows(slots, limits, most, shape, early)
        nothing = torch.zeros_like(rows.tokens)
        written = self.written if isinstance(rows, DecodeRows) else None
        for full in (False, True):
            blank = rows._replace(tokens=nothing, positions=nothing)
            hidden = self.passes.compute(slots, blank, shape, early, full)
            draw = self.passes.draw(blank, hidden, written, early, full)
            if isinstance(rows, VerifyRows):
                self._accept(slots, rows, draw.tokens, hidden, shape, early)
            self.results.send(draw.tokens, early=early)

    def rows(self, slots: Any, limits: Any, most: Any, shape: DraftShape, early: bool = False) -> StepRows:
        """Propose drafts, and pack each slot's newest token and its drafts into rows."""
        history, passes, operations = self.history, self.passes, self.operations
        said, known = history.columns
        if not shape.drafts and self.states is None:
            return operations.decode_rows(slots, limits, said, known, passes.tables, passes.page_size)
        with operations.early(early and shape.drafts > 0):  # a step's first launch has no launch before it to overlap
            proposed = passes.propose(self.drafter, history, slots, limits, most, shape.drafts)
            return operations.pack_rows(
                slots, limits, most, passes.barred, said, known, proposed, passes.tables, passes.page_size,
                passes.rows(len(slots), shape),
            )  # fmt: skip

    def accept(
        self, slots: Any, rows: StepRows, draw: SlotDraw, hidden: Any, shape: DraftShape, early: bool = False
    ) -> Accepted:
        """Append the accepted tokens to the history."""
        if isinstance(rows, DecodeRows):
            return Accepted(len(rows.tokens), draw.tokens.reshape(-1, 1), draw.pairs, draw.faults)
        tokens, origins = self._accept(slots, rows, draw.tokens, hidden, shape, early)
        pairs = None if draw.pairs is None else _pairs_of(draw.pairs, origins.flatten())
        faults = _placed(draw.faults, tokens, origins) if draw.faults else {}
        return Accepted(len(rows.tokens), tokens, pairs, faults)

    def _accept(
        self, slots: Any, rows: VerifyRows, drawn: Any, hidden: Any, shape: DraftShape, early: bool
    ) -> tuple[Any, Any]:
        with self.operations.early(early):
            columns = self.history.columns
            return self.operations.accept_drafts(slots, rows, drawn, *columns, shape.drafts, hidden, self.states)


def _pairs_of(pairs: Tensor, origins: Any) -> Tensor:
    """The pairs of each place's row. A place without a row has any, and zeros where no decode may store any more."""
    return pairs[origins] if len(pairs) else pairs.new_zeros(len(origins), *pairs.shape[1:])


def _placed(faults: Mapping[int, str], tokens: Column, origins: Column) -> Mapping[int, str]:
    """Number the faults by the places of their tokens, instead of by row. origins: the row of each place that has
    one."""
    there = np.flatnonzero(tokens != UNDRAFTED)
    places = dict(zip(origins.ravel()[there].tolist(), there.tolist(), strict=True))
    return {places[row]: reason for row, reason in faults.items() if row in places}
