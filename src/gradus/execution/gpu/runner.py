"""Runs plans on a GPU's kernels: decodes as one step (`decode_step.py`), replayed if it was captured.

The host launches a step with prompts kernel by kernel, except for the model's pass if that is short
(`prompt_graphs.py`). Such a step verifies no drafts: the prompts' tokens already keep the GPU's arithmetic busy.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.device.transfer import current, upload_parts
from gradus.engine.plan import NO_DRAFTS, Column, Decodes, Plan, Sampled
from gradus.execution.gpu.decode_step import Accepted, DecodeStep
from gradus.execution.gpu.masked_draws import ConstrainedStep, MaskedDraws
from gradus.execution.gpu.prompt_graphs import PromptGraphs
from gradus.execution.gpu.step_graphs import StepGraphs
from gradus.execution.prompt_scores import prompt_scores
from gradus.execution.result import StepClock, StepResult
from gradus.execution.runner import RunModel, lay_out, sampled_rows
from gradus.kernels.step.decode_rows import StepRows
from gradus.kernels.step.prompt_history import keep_prompts
from gradus.sampling.constraints import Constrained
from gradus.sampling.kernel_sampler import SlotDraw
from gradus.sampling.sampler import DrawnLogprobs
from gradus.scheduling.draft_shapes import NO_SHAPE, DraftShape


class Read(NamedTuple):
    """The draw of a step with prompts, for its R rows, the decodes' first. slots, positions: int64 [R]."""

    slots: Tensor
    positions: Tensor
    draw: SlotDraw


class Asked(NamedTuple):
    """The draw that the slots of a step's decodes ask for. full: some ask for more than a temperature. masked: some
    have a mask. turns: as in SlotTable, when this was looked up."""

    slots: Column
    full: bool
    masked: bool
    turns: int


class GpuRunner:
    """Runs plans, with prompts or without.

    graphs: of `step`; None if it is not captured. slots: how many sequences run at once. run_model: runs the model in
    steps with prompts.
    """

    def __init__(self, step: DecodeStep, graphs: StepGraphs | None = None, *, slots: int) -> None:
        self.step, self.graphs = step, graphs
        self.run_model: RunModel = step.model
        self.device = step.model.device
        self.clock = StepClock() if step.drafter is not None else None
        constraints = step.sampler.constraints
        self.masked_draws = None if constraints is None else MaskedDraws(constraints, step.sampler, step.history, slots)
        self._asked: Asked | None = None
        self._newest: ConstrainedStep | None = None  # the newest step, if answers in it keep to a grammar

    @property
    def attention(self) -> GraphPagedAttention:
        return self.step.attention

    def run(self, plan: Plan) -> StepResult | ConstrainedStep:
        if self.masked_draws is None:
            return self._launch(plan)
        before = self._newest
        if before is not None:
            before.settle()
        step = self._launch(plan)
        self._newest = step if isinstance(step, ConstrainedStep) else None
        if before is not None:
            before.get()  # the loop asks for it next, but other ranks do not
        if self._newest is not None:
            self._newest.begin()
        else:
            self.masked_draws.take_begun(())
        return step

    def _launch(self, plan: Plan) -> StepResult | ConstrainedStep:
        if self.graphs is not None and not (plan.spans or plan.admissions or plan.wiped):
            return self._run_decodes(plan)  # graphs are all that it launches
        with torch.inference_mode(), current(self.device):
            self._make_way(plan)
            return self._run_prompts(plan) if plan.spans else self._run_decodes(plan)

    def _make_way(self, plan: Plan) -> None:
        """Forget what slots and pages held that the plan gives to others."""
        drafter = self.step.drafter
        if drafter is not None:
            for admission in plan.admissions:
                drafter.keep(admission.slot, 0)
            drafter.wipe(plan.wiped)
        if plan.wiped:
            self.step.attention.wipe(plan.wiped)

    def verifies(self, slot: int) -> bool:
        """Whether the slot verifies drafts: not if penalties or a grammar change its logits (`DecodeStep.rows`)."""
        table = self.step.sampler.table
        return not (table.adjusting[slot] or table.masked[slot])

    def drop_graphs(self) -> None:
        """Delete all graphs, once the steps under way are done. No step may follow."""
        torch.cuda.synchronize(self.device)
        if self.graphs is not None:
            self.graphs.captured.clear()
            self.graphs.halves.clear()
            self.attention.drop_captured()
        if isinstance(self.run_model, PromptGraphs):
            self.run_model.captured.clear()

    # -- decodes alone -------------------------------------------------------------------------------------------------

    def _run_decodes(self, plan: Plan) -> StepResult | ConstrainedStep:
        step, decodes = self.step, plan.decodes
        if plan.admissions:
            step.sampler.admit(plan.admissions)
        if decodes.pages:
            self._update_pages(decodes)
        if step.drafter is not None:
            step.drafter.catch_up(step.history, decodes)
        asked = self.asked(decodes.slots)
        if asked.masked:
            return self._watched(plan, decodes.slots, *self._begin_masked(plan))
        accepted, rows = self.verify(decodes, asked.full)
        return self._watched(plan, decodes.slots, rows, self._decoded(plan, accepted, rows, asked.full))

    def asked(self, slots: Column) -> Asked:
        """Look up what these slots ask of their draw; the same array, as in step after step, is looked up once."""
        sampler = self.step.sampler
        if self._asked is None or self._asked.slots is not slots or self._asked.turns != sampler.table.turns:
            masked = bool(sampler.table.masked[slots].any())
            self._asked = Asked(slots, sampler.needs_full(slots), masked, sampler.table.turns)
        return self._asked

    def _begin_masked(self, plan: Plan) -> tuple[int, Callable[[], StepResult]]:
        """Launch the model's pass of a step with masked rows, without drafts. Returns the number of rows, and what
        launches the draw once the masks are there."""
        step, decodes = self.step, replace(plan.decodes, drafts=NO_DRAFTS)
        if self.graphs is not None:
            rows, rest = self.graphs.begin(decodes)
            return rows, lambda: self._decoded(plan, rest.replay(), rows, True)
        inputs = self.numbers(decodes)
        begun = step.begin(inputs, NO_SHAPE)

        def draw() -> StepResult:
            return self._decoded(plan, step.end(inputs, *begun, NO_SHAPE, full=True), decodes.rows, True)

        return decodes.rows, draw

    def _watched(
        self, plan: Plan, slots: Column, rows: int, drawn: StepResult | Callable[[], StepResult]
    ) -> StepResult | ConstrainedStep:
        """Watch a step's answers that keep to a grammar. slots: of the rows that get tokens. drawn: the step, or the
        draw that it holds back."""
        draws = self.masked_draws
        answers = [] if draws is None else draws.answers(slots)
        if isinstance(drawn, StepResult):
            if draws is None or not answers:
                return drawn
            return ConstrainedStep(draws, answers, rows, partial(self._draw_again, plan), result=drawn)
        assert draws is not None
        return ConstrainedStep(draws, answers, rows, partial(self._draw_again, plan), draw=drawn)

    def _draw_again(self, plan: Plan, answers: Sequence[Constrained]) -> Sampled:
        """Run the newest token of some of a plan's decodes once more, and draw with masks what follows it."""
        draws, decodes, rows = self.masked_draws, plan.decodes, [each.row for each in answers]
        assert draws is not None
        some = Decodes(decodes.slots[rows], decodes.starts[rows], decodes.limits[rows])
        _, draw = self._begin_masked(Plan(decodes=some))
        draws.fill(answers)
        draws.send()
        return draw().get()

    def _decoded(self, plan: Plan, accepted: Accepted, rows: int, full: bool) -> StepResult:
        """Return a step's result, its log-probabilities on their way. rows: the number that the model computed."""
        width, logprobs = accepted.tokens.shape[1], None
        count = len(plan.decodes) * width
        if full and accepted.pairs is not None:
            reports = self.step.sampler.table.reporting[plan.decodes.slots]
            if (reports >= 0).any():
                logprobs = DrawnLogprobs(accepted.pairs[:count], np.repeat(reports, width))
        return self._result(plan, rows, count, logprobs, width)

    def _update_pages(self, decodes: Decodes) -> None:
        attention, drafter = self.step.attention, self.step.drafter
        attention.update_tables(decodes.pages)
        if drafter is not None:
            for slot, change in decodes.pages:
                drafter.keep(slot, change.kept * attention.storage.page_size)

    def verify(self, decodes: Decodes, full: bool) -> tuple[Accepted, int]:
        """Run a step of decodes alone, whose block tables are up to date. Returns its result, and the number of its
        rows, padding included."""
        if self.graphs is not None:
            return self.graphs.replay(decodes, full)
        shape = DraftShape(decodes.width - 1, decodes.rows - len(decodes))
        accepted = self.step.run(self.numbers(decodes), shape, full=full)
        return accepted, decodes.rows

    def numbers(self, decodes: Decodes) -> Tensor:
        """Send slots, limits and drafts to the device. Returns int32 [3, B]."""
        drafts = decodes.drafts if len(decodes.drafts) else np.zeros(len(decodes), np.int64)
        return torch.stack(upload_parts([decodes.slots, decodes.limits, drafts], torch.int32, self.device))

    # -- with prompts --------------------------------------------------------------------------------------------------

    def _run_prompts(self, plan: Plan) -> StepResult | ConstrainedStep:
        """Run a step with one row for each decode, followed by the prompts' rows.

        First tokens wait for the host, so it sends the draw's inputs only after it has launched the model. The host
        waits for the tokens, so the prompts are written to the history after these were sent. Only this method admits
        new slot owners to the history: each begins with a span.
        """
        step, decodes, count = self.step, plan.decodes, len(plan.decodes)
        prompts = lay_out(Plan(plan.spans), self.device)
        wanted = sampled_rows(prompts)
        token_ids, positions, picked = prompts.token_ids, prompts.positions, prompts.logits_rows
        if count:
            mine, rows = self._set_up_decodes(decodes, prompts)
            token_ids, positions = torch.cat([rows.tokens, token_ids]), torch.cat([rows.positions, positions])
            picked = torch.cat([torch.arange(count, device=self.device), picked + count])
        else:
            step.attention.prepare(prompts)
        computed = self.run_model(token_ids, positions, step.attention)
        scores = prompt_scores(step.model, computed[count:], prompts.scores)
        hidden = computed[picked]
        logits = step.model.logits(hidden)
        step.sampler.admit(plan.admissions)
        owners = np.concatenate([decodes.slots, wanted.slots])
        full = step.sampler.needs_full(owners)
        slots, ends = upload_parts([wanted.slots, wanted.positions], torch.int64, self.device)
        if count:
            slots, ends = torch.cat([rows.slots, slots]), torch.cat([rows.ends, ends])

        def finish() -> StepResult:
            draw = step.sampler.draw_slots(logits, slots, ends, step.written, full=full)
            tokens = draw.tokens
            if count and step.written is None:  # a decode that may store no more has drawn nothing
                accepted = step.accept(mine, rows, SlotDraw(tokens[:count], None), hidden[:count], NO_SHAPE)
                tokens = torch.cat([accepted.tokens.flatten(), tokens[count:]])
            logprobs = step.sampler.drawn(draw, owners).logprobs
            step.results.send(tokens)
            result = self._result(plan, len(computed), len(tokens), logprobs, scores=scores)
            self._keep_prompts(plan, prompts, Read(slots, ends, draw), hidden)
            return result

        masked = step.sampler.table.masked[owners].any()
        return self._watched(plan, owners, len(computed), finish if masked else finish())

    def _set_up_decodes(self, decodes: Decodes, prompts: Batch) -> tuple[Tensor, StepRows]:
        """Prepare attention for decodes without drafts, followed by prompts. Returns the decodes' slots and rows."""
        step = self.step
        decodes = replace(decodes, drafts=NO_DRAFTS)
        step.attention.update_pages(prompts)
        if decodes.pages:
            self._update_pages(decodes)
        if step.drafter is not None:
            step.drafter.catch_up(step.history, decodes)
        slots, limits, most = self.numbers(decodes)
        rows = step.rows(slots, limits, most, NO_SHAPE)
        step.attention.prepare_beside(rows, prompts)
        return slots, rows

    def _keep_prompts(self, plan: Plan, prompts: Batch, read: Read, hidden: Tensor) -> None:
        """Write the prompts' tokens, and those drawn after them, to the history.

        The spans lack the tokens that a new sequence found in the prefix cache: `history.admit` writes these.
        """
        history, states = self.step.history, None if self.step.states is None else self.step.states.values
        if history.whole:
            hits = {span.slot for span in plan.spans if span.start > 0}
            history.admit([admission for admission in plan.admissions if admission.slot in hits])
        said = prompts.owners, prompts.positions, prompts.token_ids
        drawn = read.slots, read.positions, read.draw.tokens
        keep_prompts(said, drawn, len(plan.decodes), history.tokens, history.lengths, hidden, states)

    # -- what a step drew ----------------------------------------------------------------------------------------------

    def _result(
        self,
        plan: Plan,
        rows: int,
        count: int,
        logprobs: DrawnLogprobs | None,
        width: int = 1,
        scores: Sequence[DrawnLogprobs] = (),
    ) -> StepResult:
        """Return the result of the step just launched, whose log-probabilities are sent now. rows: how many the model
        ran. count: how many tokens count; those after them are padding's."""
        usual = self.step.drafter is None or self.step.drafter.steady
        reported = None if logprobs is None else logprobs.to_host()
        landing = self.step.results.next()
        return StepResult(
            plan, rows, landing.tokens(count), landing, reported, width=width, clock=self.clock, usual=usual,
            scores=scores,
        )  # fmt: skip
