"""Runs plans: decodes as one step (`step.py`), replayed on a GPU if it was captured, or together with prompts.

A GPU's host launches a step with prompts kernel by kernel, except for the model's pass if that is short
(`gpu/prompt_graphs.py`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.engine.plan import NO_DRAFTS, Column, Decodes, Plan, Result, Sampled
from gradus.execution.layout import lay_out, sampled_rows
from gradus.execution.passes import Reading
from gradus.execution.result import StepClock, StepResult
from gradus.execution.step import Accepted, DecodeStep
from gradus.kernels.step.rows import StepRows, VerifyRows
from gradus.models import Model
from gradus.sampling.constraints import Constrained
from gradus.sampling.sampler import DrawnLogprobs, Sampler, SlotDraw
from gradus.scheduling.draft_shapes import NO_SHAPE, DraftShape

if TYPE_CHECKING:  # Triton is not everywhere
    from gradus.execution.gpu.masked_draws import ConstrainedStep, MaskedDraws
    from gradus.execution.gpu.step_graphs import StepGraphs


NO_FAULTS: Mapping[int, str] = {}


class Asked(NamedTuple):
    """The draw that the slots of a step's decodes ask for. full: some ask for more than the quick one. masked: some
    have a mask that the step waits for. turns: as in SlotTable, when this was looked up."""

    slots: Column
    full: bool
    masked: bool
    turns: int


class Runner:
    """Runs plans, with prompts or without.

    graphs: of `step`; None if it is not captured. masked_draws: given where a step is launched before its masks are
    known. clock: of a GPU whose steps are timed.
    """

    def __init__(
        self,
        step: DecodeStep,
        graphs: "StepGraphs | None" = None,
        masked_draws: "MaskedDraws | None" = None,
        clock: StepClock | None = None,
    ) -> None:
        self.step, self.graphs, self.masked_draws = step, graphs, masked_draws
        self.device = step.passes.model.device
        self.on_host = isinstance(step.history.columns[0], np.ndarray)
        self.clock = clock
        self._began = 0.0
        self._asked: Asked | None = None
        self._newest: ConstrainedStep | None = None  # the newest step, if answers in it keep to a grammar

    @property
    def attention(self) -> PagedAttention:
        return self.step.passes.attention

    @property
    def sampler(self) -> Sampler:
        return self.step.passes.sampler

    @property
    def model(self) -> Model:
        return self.step.passes.model

    @property
    def repeats(self) -> bool:
        """Whether rows of the newest step are still to be run again, before the next step is launched."""
        return self._newest is not None and self._newest.repeats

    def run(self, plan: Plan) -> Result:
        if self.masked_draws is None:
            return self._launch(plan)
        before = self._newest
        if before is not None:
            before.settle()
        step = self._launch(plan)
        self._newest = None if isinstance(step, StepResult) else step
        if before is not None:
            before.get()  # the loop asks for it next, but other ranks do not
        if self._newest is not None:
            self._newest.begin()
        else:
            self.masked_draws.take_begun(())
        return step

    def _launch(self, plan: Plan) -> "StepResult | ConstrainedStep":
        if self.graphs is not None and not (plan.spans or plan.admissions or plan.wiped):
            return self._run_decodes(plan)  # graphs are all that it launches
        self._began = time.perf_counter()
        with torch.inference_mode(), self.step.passes.context(plan):
            if plan.admissions or plan.wiped:
                self._make_way(plan)
            return self._run_prompts(plan) if plan.spans else self._run_decodes(plan)

    def _make_way(self, plan: Plan) -> None:
        """Forget what slots and pages held that the plan gives to others."""
        drafter = self.step.drafter
        if drafter is not None:
            for admission in plan.admissions:
                drafter.keep(admission.slot, 0)
            drafter.wipe(plan.wiped)
        self.attention.storage.wipe(plan.wiped)

    def verifies(self, slot: int) -> bool:
        """Whether the slot verifies drafts. On a GPU it does not if penalties or a grammar change its logits."""
        table = self.sampler.table
        return self.step.passes.barred is None or not (table.adjusting[slot] or table.masked[slot])

    # -- decodes alone -------------------------------------------------------------------------------------------------

    def _run_decodes(self, plan: Plan) -> "StepResult | ConstrainedStep":
        step, decodes = self.step, plan.decodes
        if plan.admissions:
            self.sampler.admit(plan.admissions)
        if decodes.pages:
            self._update_pages(decodes)
        if step.drafter is not None:
            step.drafter.catch_up(step.history, decodes)
        asked = self.asked(decodes.slots)
        if asked.masked:
            return self._watched(plan, decodes.slots, *self._begin_masked(plan))
        launched = self._decoded(plan, self.verify(decodes, asked.full), asked.full)
        return launched if self.masked_draws is None else self._watched(plan, decodes.slots, launched.rows, launched)

    def asked(self, slots: Column) -> Asked:
        """Look up what these slots ask of their draw; the same array, as in step after step, is looked up once."""
        asked, sampler = self._asked, self.step.passes.sampler
        table = sampler.table
        if asked is None or asked.slots is not slots or asked.turns != table.turns:
            masked = self.masked_draws is not None and bool(table.masked[slots].any())
            self._asked = asked = Asked(slots, sampler.needs_full(slots), masked, table.turns)
        return asked

    def _begin_masked(self, plan: Plan) -> tuple[int, Callable[[], StepResult]]:
        """Launch the model's pass of a step with masked rows, without drafts. Returns the number of rows, and what
        launches the draw once the masks are there."""
        step, decodes = self.step, replace(plan.decodes, drafts=NO_DRAFTS)
        if self.graphs is not None:
            rows, rest = self.graphs.begin(decodes)
            return rows, lambda: self._decoded(plan, rest.replay(), True)
        inputs = step.operations.inputs(decodes, self.device)
        begun = step.begin(inputs, NO_SHAPE)

        def draw() -> StepResult:
            return self._decoded(plan, step.end(inputs, *begun, NO_SHAPE, full=True), True)

        return decodes.rows, draw

    def _watched(
        self, plan: Plan, slots: Column, rows: int, drawn: StepResult | Callable[[], StepResult]
    ) -> "StepResult | ConstrainedStep":
        """See `MaskedDraws.watch`."""
        assert self.masked_draws is not None
        return self.masked_draws.watch(slots, rows, drawn, partial(self._draw_again, plan))

    def _draw_again(self, plan: Plan, answers: Sequence[Constrained]) -> Sampled:
        """Run the newest token of some of a plan's decodes once more, and draw with masks what follows it."""
        draws, decodes, rows = self.masked_draws, plan.decodes, [each.row for each in answers]
        assert draws is not None
        some = Decodes(decodes.slots[rows], decodes.starts[rows], decodes.limits[rows])
        _, draw = self._begin_masked(Plan(decodes=some))
        draws.fill(answers)
        draws.send()
        return draw().get()

    def _decoded(self, plan: Plan, accepted: Accepted, full: bool) -> StepResult:
        """Return a step's result, its log-probabilities on their way."""
        width = accepted.tokens.shape[1]
        logprobs = self._logprobs(accepted.pairs, plan.decodes.slots, width) if full else None
        count = len(plan.decodes.slots) * width
        return self._result(plan, accepted.rows, count, logprobs, width, faults=accepted.faults)

    def _logprobs(self, pairs: Tensor | None, slots: Column, width: int = 1) -> DrawnLogprobs | None:
        """Return what these slots ask for of the pairs of their rows, `width` each."""
        counts = self.sampler.table.reporting[slots]
        if pairs is None or (counts < 0).all():
            return None
        counts = np.repeat(counts, width)
        return DrawnLogprobs(pairs[: len(counts)], counts)

    def _update_pages(self, decodes: Decodes) -> None:
        attention, drafter = self.attention, self.step.drafter
        attention.update_tables(decodes.pages)
        if drafter is not None:
            for slot, change in decodes.pages:
                drafter.keep(slot, change.kept * attention.storage.page_size)

    def verify(self, decodes: Decodes, full: bool) -> Accepted:
        """Run a step of decodes alone, whose block tables are up to date."""
        if self.graphs is not None:
            return self.graphs.replay(decodes, full)
        inputs = self.step.operations.inputs(decodes, self.device)
        return self.step.run(inputs, shape_of(decodes), full=full)

    # -- with prompts --------------------------------------------------------------------------------------------------

    def _run_prompts(self, plan: Plan) -> "StepResult | ConstrainedStep":
        """Run a step with the rows of decodes, followed by the prompts' rows.

        Only this method admits new slot owners to the history: each begins with a span.
        """
        passes, decodes, prompts = self.step.passes, plan.decodes, lay_out(Plan(plan.spans), self.device)
        if not passes.drafts_with_prompts:
            decodes = replace(decodes, drafts=NO_DRAFTS)
        slots, rows = self._set_up_decodes(decodes, prompts) if len(decodes) else (None, None)
        reading = passes.read(rows, prompts, plan.admissions)
        owners = np.concatenate([decodes.slots, sampled_rows(prompts).slots])
        finish = partial(self._draw_prompts, plan, Mixed(decodes, prompts, slots, rows, reading, owners))
        if self.masked_draws is None:
            return finish()
        masked = self.sampler.table.masked[owners].any()
        return self._watched(plan, owners, reading.rows, finish if masked else finish())

    def _set_up_decodes(self, decodes: Decodes, prompts: Batch) -> tuple[Any, StepRows]:
        """Lay out decodes that prompts follow. Returns the decodes' slots and rows."""
        step = self.step
        self.attention.update_pages(prompts)
        if decodes.pages:
            self._update_pages(decodes)
        if step.drafter is not None:
            step.drafter.catch_up(step.history, decodes)
        slots, limits, most = step.operations.inputs(decodes, self.device)
        return slots, step.rows(slots, limits, most, shape_of(decodes))

    def _draw_prompts(self, plan: Plan, mixed: "Mixed") -> StepResult:
        """Draw, accept and send the tokens of a step with prompts.

        The host waits for the tokens, so the prompts are written to the history after these were sent.
        """
        step, rows, reading = self.step, mixed.rows, mixed.reading
        verifies, first = isinstance(rows, VerifyRows), 0 if rows is None else len(rows.tokens)
        full = self.sampler.needs_full(mixed.owners)
        draw = step.passes.draw_read(reading, None if verifies else step.written, full)
        tokens, pairs, faults, width = draw.tokens, draw.pairs, draw.faults, 1
        if rows is not None and verifies:  # a decode that may store no more has drawn nothing
            mine = SlotDraw(tokens[:first], None if pairs is None else pairs[:first], faults)
            hidden = None if reading.hidden is None else reading.hidden[:first]
            accepted = step.accept(mixed.slots, rows, mine, hidden, shape_of(mixed.decodes))
            width = accepted.tokens.shape[1]
            tokens = joined(accepted.tokens.flatten(), tokens[first:])
            pairs = None if accepted.pairs is None or pairs is None else torch.cat([accepted.pairs, pairs[first:]])
            faults = {**accepted.faults, **moved(faults, first, len(mixed.decodes) * width)}
        slots = np.concatenate([np.repeat(mixed.decodes.slots, width), mixed.owners[len(mixed.decodes) :]])
        step.results.send(tokens)
        logprobs = self._logprobs(pairs, slots) if full else None
        result = self._result(plan, reading.rows, len(slots), logprobs, width, reading.scores, faults)
        self._keep_prompts(plan, mixed.prompts, reading, draw.tokens, first)
        return result

    def _keep_prompts(self, plan: Plan, prompts: Batch, reading: Reading, tokens: Any, first: int) -> None:
        """Write the prompts' tokens, and those drawn after them from row `first` on, to the history.

        The spans lack the tokens that a new sequence found in the prefix cache: `history.admit` writes these.
        """
        history = self.step.history
        if history.whole:
            hits = {span.slot for span in plan.spans if span.start > 0}
            history.admit([admission for admission in plan.admissions if admission.slot in hits])
        said = [prompts.owners, prompts.positions, prompts.token_ids]
        columns = [column.numpy(force=True) for column in said] if self.on_host else said
        drawn = reading.slots, reading.ends, tokens
        self.step.operations.keep_prompts(columns, drawn, first, *history.columns, reading.hidden, self.step.states)

    # -- what a step drew ----------------------------------------------------------------------------------------------

    def _result(
        self,
        plan: Plan,
        rows: int,
        count: int,
        logprobs: DrawnLogprobs | None,
        width: int = 1,
        scores: Sequence[DrawnLogprobs] = (),
        faults: Mapping[int, str] = NO_FAULTS,
    ) -> StepResult:
        """Return the result of the step just launched, whose log-probabilities are sent now. rows: how many the model
        ran. count: how many tokens count; those after them are padding's."""
        drafter = self.step.drafter
        usual = drafter is None or drafter.steady or not len(plan.decodes.drafts)
        reported = None if logprobs is None else logprobs.to_host()
        tokens, landing = self.step.results.land(count)
        return StepResult(
            plan, rows, tokens, landing, reported, width=width, clock=self.clock, usual=usual,
            faults=faults, scores=scores, seconds=time.perf_counter() - self._began if self.on_host else 0.0,
        )  # fmt: skip


class Mixed(NamedTuple):
    """A step with prompts, up to its draw. decodes: the plan's, with the drafts that the step verifies. slots, rows:
    theirs, where the step's operations read them; None without decodes. owners: the slot of each decode, and of each
    of the prompts' rows with logits."""

    decodes: Decodes
    prompts: Batch
    slots: Any
    rows: StepRows | None
    reading: Reading
    owners: Column


def shape_of(decodes: Decodes) -> DraftShape:
    """Return the room that the decodes' drafts take at most."""
    return DraftShape(decodes.width - 1, decodes.rows - len(decodes)) if len(decodes.drafts) else NO_SHAPE


def moved(faults: Mapping[int, str], first: int, place: int) -> Mapping[int, str]:
    """Number the faults of the rows from `first` on by the places of their tokens, from `place` on."""
    return {place + row - first: reason for row, reason in faults.items() if row >= first}


def joined(first: Any, second: Any) -> Any:
    """Concatenate two tensors, or two columns on the host."""
    return torch.cat([first, second]) if isinstance(first, Tensor) else np.concatenate([first, second])
