"""A pass of the model over a step's rows, and the draw of their tokens: what differs from device to device.

`TorchPass` runs anywhere, and lays rows out on the host. On a CPU `compiled.py` runs passes of few rows in compiled
kernels; on a GPU `gpu/kernel_pass.py` runs all of them in Triton's.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.device.transfer import current
from gradus.engine.plan import Admission, Column, Plan, Span, upto_missing
from gradus.execution.layout import lay_out, sampled_rows
from gradus.execution.prompt_scores import prompt_scores
from gradus.kernels.step.ngram_reference import NO_DRAFT
from gradus.kernels.step.plain import spans_of, write_drawn
from gradus.kernels.step.rows import DecodeRows, StepRows, VerifyRows
from gradus.models import Model
from gradus.sampling.sampler import Drawn, DrawnLogprobs, Rows, Sampler, SlotDraw
from gradus.scheduling.draft_shapes import MOST_ROWS, DraftShape
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History

RunModel = Callable[[Tensor, Tensor, AttentionBackend], Tensor]
"""(token ids [N], positions [N], attention) → hidden states, [N or more, D]: a `Model`, or a wrapper around one."""


class Reading(NamedTuple):
    """A step with prompts up to its hidden states: R rows with logits, those of the decodes first.

    rows: how many the model computed. hidden: [R, D], as far as anything reads them. state: what the pass's draw needs
    besides. slots, ends: of the R rows, as in `StepRows`. scores: of spans that ask for some.
    """

    rows: int
    hidden: Any
    state: Any
    slots: Any
    ends: Any
    scores: Sequence[DrawnLogprobs]


class Pass(Protocol):
    """Runs a model on rows, and draws their tokens.

    tables, page_size: to look up where rows are stored; tables are None if the pass does so itself. barred: by slot,
    not 0 if it verifies no draft; None if all do. drafts_with_prompts: whether a step with prompts verifies drafts too.
    most_rows: steps of decodes with more rows are slower.
    """

    model: Model
    run_model: RunModel
    page_size: int
    drafts_with_prompts: bool
    most_rows: int

    @property
    def attention(self) -> PagedAttention: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def tables(self) -> Any: ...

    @property
    def barred(self) -> Any: ...

    def context(self, plan: Plan) -> AbstractContextManager[object]:
        """Return a context for all that a step with this plan computes."""

    def rows(self, sequences: int, shape: DraftShape) -> int | None:
        """Return how many rows a step has, padding included; None: only those that hold tokens."""

    def propose(self, drafter: Drafter | None, history: History, slots: Any, limits: Any, most: Any, count: int) -> Any:
        """Return up to `count` drafts per sequence, int64 [B, count]."""

    def compute(self, slots: Any, rows: StepRows, shape: DraftShape, early: bool, full: bool) -> Any:
        """Run the model on the rows of decodes. Returns hidden states, [R, D], as far as anything reads them."""

    def draw(self, rows: StepRows, hidden: Any, written: Any, early: bool, full: bool) -> SlotDraw:
        """Draw a token for each row. written: the history's tokens, if it writes them there, each at its end."""

    def read(self, rows: StepRows | None, prompts: Batch, admissions: Sequence[Admission]) -> Reading:
        """Run the model on the rows of decodes, if any, followed by prompts, and give slots to new owners. The decodes'
        block tables are up to date."""

    def draw_read(self, reading: Reading, written: Any, full: bool) -> SlotDraw:
        """Draw as `draw` does, after `read`."""


class TorchPass:
    """Runs a model in torch, on any device, with tables and rows in the host's memory.

    keeps_hidden: whether anything reads hidden states.
    """

    tables = None
    barred = None
    drafts_with_prompts = True
    most_rows = MOST_ROWS

    def __init__(
        self, model: Model, attention: PagedAttention, sampler: Sampler, *, keeps_hidden: bool = False
    ) -> None:
        self.model, self.attention, self.sampler = model, attention, sampler
        self.run_model: RunModel = model
        self.page_size, self.keeps_hidden = attention.storage.page_size, keeps_hidden

    def context(self, plan: Plan) -> AbstractContextManager[object]:
        return current(self.model.device)

    def rows(self, sequences: int, shape: DraftShape) -> int | None:
        return None

    def propose(
        self, drafter: Drafter | None, history: History, slots: Column, limits: Column, most: Column, count: int
    ) -> Column:
        """Propose for the sequences that may verify a draft. Grammars choose among their proposals."""
        proposed = np.full((len(slots), count), NO_DRAFT)
        asking = most.nonzero()[0]
        if drafter is None or not len(asking) or not count:
            return proposed
        asked, ends = torch.from_numpy(slots[asking]), torch.from_numpy(limits[asking])
        proposed[asking] = drafter.propose(history, asked, count, ends).numpy(force=True)
        if self.sampler.constraints is not None:
            for row in asking.tolist():
                room = int(most[row])
                chosen = self.sampler.drafts(int(slots[row]), upto_missing(proposed[row, :room].tolist()), room)
                proposed[row] = NO_DRAFT
                proposed[row, : len(chosen)] = chosen
        return proposed

    # -- decodes -------------------------------------------------------------------------------------------------------

    def compute(self, slots: Column, rows: StepRows, shape: DraftShape, early: bool, full: bool) -> Tensor | None:
        if not len(rows.tokens):  # every sequence has reached its end
            return None
        batch = self._batch(rows)
        self.attention.prepare(batch)
        return self.run_model(batch.token_ids, batch.positions, self.attention)

    def draw(self, rows: StepRows, hidden: Tensor | None, written: Column | None, early: bool, full: bool) -> SlotDraw:
        if not len(rows.tokens):
            return SlotDraw(rows.tokens, None)
        return self.choose(sampling_rows(rows), hidden, written, full)

    def choose(self, rows: Rows, hidden: Tensor | None, written: Column | None, full: bool) -> SlotDraw:
        """Draw a token for each row from its hidden state."""
        assert hidden is not None
        return kept(self.sampler.sample(self.model.logits(hidden), rows), rows, written)

    def _batch(self, rows: StepRows) -> Batch:
        spans = laid_out(rows)
        if self.sampler.observer is not None:
            self.sampler.observer.laid_out(spans)
        return lay_out(Plan(spans), self.model.device)

    # -- with prompts --------------------------------------------------------------------------------------------------

    def read(self, rows: StepRows | None, prompts: Batch, admissions: Sequence[Admission]) -> Reading:
        self.sampler.admit(admissions)
        batch = prompts if rows is None else beside(self._batch(rows), prompts)
        wanted = sampled_rows(batch)
        if isinstance(rows, VerifyRows):
            wanted = replace(wanted, inputs=batch.token_ids[batch.logits_rows].numpy(force=True))
        hidden, state, scores = self.run_prompts(batch, wanted)
        return Reading(len(batch.token_ids), hidden, state, wanted.slots, wanted.positions, scores)

    def run_prompts(self, batch: Batch, rows: Rows) -> tuple[Tensor | None, Rows, list[DrawnLogprobs]]:
        """Run the model on a batch. Returns the hidden states of its rows with logits, the rows, and scores."""
        self.attention.prepare(batch)
        computed = self.run_model(batch.token_ids, batch.positions, self.attention)
        return computed[batch.logits_rows], rows, prompt_scores(self.model, computed, batch.scores)

    def draw_read(self, reading: Reading, written: Column | None, full: bool) -> SlotDraw:
        return self.choose(reading.state, reading.hidden, written, full)

    # -- a draft model -------------------------------------------------------------------------------------------------

    def store(self, spans: Sequence[Span]) -> None:
        """Store the keys and values of spans, whose tokens are all known."""
        plan = Plan([*spans])
        with self.context(plan):
            batch = lay_out(plan, self.model.device)
            self.run_prompts(batch, sampled_rows(batch))

    def guess(self, spans: Sequence[Span]) -> list[int]:
        """Store spans, and return the token that each slot would draw next, without recording it."""
        plan = Plan([*spans])
        with self.context(plan):
            batch = lay_out(plan, self.model.device)
            rows = sampled_rows(batch)
            return self.guesses(rows, self.run_prompts(batch, rows)[0]).tolist()

    def guesses(self, rows: Rows, hidden: Tensor | None) -> Tensor:
        assert hidden is not None
        return self.sampler.guess(self.model.logits(hidden), rows.slots, rows.positions)


def kept(drawn: Drawn, rows: Rows, written: Column | None) -> SlotDraw:
    """Bring what was drawn to the host, and write the tokens to the history."""
    tokens, logprobs = drawn.tokens.numpy(force=True), drawn.logprobs
    if written is not None:
        write_drawn(rows.slots, rows.positions, tokens, written)
    return SlotDraw(tokens, None if logprobs is None else logprobs.pairs, drawn.faults)


def sampling_rows(rows: StepRows) -> Rows:
    """Convert rows of decodes to what a sampler in torch reads."""
    if isinstance(rows, DecodeRows):
        return Rows(rows.slots, rows.ends)
    _, before = spans_of(rows)
    return Rows(rows.slots, rows.ends, before, rows.tokens if before.any() else None)


def laid_out(rows: StepRows) -> list[Span]:
    """Convert rows of decodes to spans: each sequence's newest token and its drafts."""
    tokens, positions, owners = rows.tokens.tolist(), rows.positions.tolist(), rows.slots.tolist()
    if isinstance(rows, VerifyRows):
        starts = rows.query_start.tolist()
        pairs = [(first, end) for first, end in pairwise(starts) if first < end]
    else:
        pairs = [(row, row + 1) for row in range(len(tokens))]
    return [Span(None, owners[first], positions[first], tokens[first:end], end - first) for first, end in pairs]


def beside(decodes: Batch, prompts: Batch) -> Batch:
    """Join two batches: decodes, followed by prompts."""
    rows, spans = len(decodes.token_ids), len(decodes.slots)
    return Batch(
        token_ids=torch.cat([decodes.token_ids, prompts.token_ids]),
        positions=torch.cat([decodes.positions, prompts.positions]),
        owners=torch.cat([decodes.owners, prompts.owners]),
        slots=decodes.slots + prompts.slots,
        query_start=decodes.query_start + [rows + start for start in prompts.query_start],
        counts=decodes.counts + prompts.counts,
        starts=decodes.starts + prompts.starts,
        lengths=decodes.lengths + prompts.lengths,
        tables=decodes.tables + prompts.tables,
        logits_rows=torch.cat([decodes.logits_rows, rows + prompts.logits_rows]),
        row_spans=decodes.row_spans + [spans + span for span in prompts.row_spans],
        scores=[(rows + first, scores) for first, scores in prompts.scores],
    )


def kernel_logits(model: Model, hidden: Tensor) -> Tensor:
    """Compute `model.logits`, [R, V], for a kernel that widens each logit as it reads it: this saves a second matrix.

    The logits have the output head's own type, except where a soft cap is applied to them.
    """
    return model.head(hidden) if model.config.final_softcap is None else model.logits(hidden)
