"""Steps that verify drafts, all of it on a GPU: the host sends two numbers per sequence, and learns the rest at commit.

`speculating.py` does the same with a look at the device's numbers, which a GPU's host must not wait for. Here a step of
decodes has as many rows as its drafts could take, and those that there are not are padding. So it can be replayed from
a CUDA graph, one for each number of sequences and of drafts; and the next step sees what was accepted before the host
does.

A step with prompts beside decodes is launched by the host, but for the model's pass where that is short, and verifies
no drafts: the prompts' tokens use what the GPU can compute anyway.
"""

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.attention.batch import Batch
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.device.transfer import Arrival, current, to_host, upload_parts
from gradus.engine.plan import Column, Decodes, Plan, Sampled
from gradus.execution.runner import RunModel, kernel_logits, lay_out, sampled_rows
from gradus.execution.step import packed
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.step.draft_rows import DraftRows, draft_rows, keep_standing
from gradus.kernels.step.prompt_history import keep_prompts
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler, SlotDraw
from gradus.sampling.sampler import DrawnLogprobs
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History
from gradus.speculative.states import HiddenStates


class Verified(NamedTuple):
    """What a step of B decodes drew. tokens: int64 [B, 1 + drafts], as in `Sampled`. pairs: of each of these as in
    DrawnLogprobs, where rows may ask for them."""

    tokens: Tensor
    pairs: Tensor | None


class DraftStep:
    """A step of decodes on the device. attention and sampler have room for one slot more, which is padding's. states:
    kept where the drafter reads them."""

    def __init__(
        self,
        model: Model,
        attention: GraphPagedAttention,
        sampler: KernelSampler,
        drafter: Drafter,
        history: History,
        states: HiddenStates | None = None,
    ) -> None:
        self.model, self.attention, self.sampler = model, attention, sampler
        self.drafter, self.history, self.states = drafter, history, states

    def run(self, slots: Tensor, limits: Tensor, drafts: int, *, early: bool = False, asked: bool) -> Verified:
        """slots, limits: int32 [B], the limits being the positions that each may store: 0 for padding."""
        rows = self.rows(slots, limits, drafts, early)
        draw, hidden = self.draw(slots, rows, drafts, early, asked)
        return self.keep(slots, rows, draw, hidden, early)

    @torch.inference_mode()
    def rehearse(self, slots: Tensor, limits: Tensor, drafts: int, early: bool) -> None:
        """Go through the launches of `run` where they only compile: their results are never looked up."""
        rows = self.rows(slots, limits, drafts, early)
        nothing = torch.zeros_like(rows.tokens)
        for asked in (False, True):
            draw, hidden = self.draw(slots, rows._replace(tokens=nothing, positions=nothing), drafts, early, asked)
            self.keep_standing(slots, rows, draw.tokens, hidden, early)

    def rows(self, slots: Tensor, limits: Tensor, drafts: int, early: bool = False) -> DraftRows:
        """Of each slot the newest token, and behind it up to so many drafts, proposed here."""
        history, attention = self.history, self.attention
        proposed = torch.empty(len(slots), 0, dtype=torch.int64, device=slots.device)
        with early_launches(early and drafts > 0):  # a step's first launch has none before it to start beside
            if drafts:
                proposed = self.drafter.propose(history, slots, drafts, limits)
            # a slot that adjusts its logits counts what it has said, which a draft has not been yet: it verifies none
            return draft_rows(
                slots, limits, self.sampler.table.adjusts, history.tokens, history.lengths, proposed,
                attention.tables, attention.storage.page_size,
            )  # fmt: skip

    def draw(self, slots: Tensor, rows: DraftRows, drafts: int, early: bool, asked: bool) -> tuple[SlotDraw, Tensor]:
        """What the rows draw, and their hidden states, [R, D]."""
        model, attention = self.model, self.attention
        if drafts:
            attention.prepare_drafts(slots, rows, 1 + drafts)
        else:
            attention.prepare_decodes(rows.slots, rows.ends)
        with early_launches(early):
            hidden = model(rows.tokens, rows.positions, attention)
        logits = kernel_logits(model, hidden)
        with early_launches(early):
            return self.sampler.draw_slots(logits, rows.slots, rows.ends, asked=asked), hidden

    def keep(self, slots: Tensor, rows: DraftRows, draw: SlotDraw, hidden: Tensor, early: bool = False) -> Verified:
        """What stands of what the rows drew, appended to the history."""
        kept, origins = self.keep_standing(slots, rows, draw.tokens, hidden, early)
        return Verified(kept, None if draw.pairs is None else draw.pairs[origins.flatten()])

    def keep_prompts(self, plan: Plan, prompts: Batch, rows: tuple[Tensor, Tensor, Tensor], hidden: Tensor) -> None:
        """What prompts said, and what was drawn for them: slots, positions and tokens, and hidden states, of all rows
        of the step, the decodes' first.

        A newcomer's tokens before its first span, which others have computed, are not among the prompts'."""
        history, states = self.history, None if self.states is None else self.states.values
        hits = {span.slot for span in plan.spans if span.start > 0}
        history.admit([admission for admission in plan.admissions if admission.slot in hits])
        said = prompts.owners, prompts.positions, prompts.token_ids
        keep_prompts(said, rows, len(plan.decodes), history.tokens, history.lengths, hidden, states)

    def keep_standing(
        self, slots: Tensor, rows: DraftRows, drawn: Tensor, hidden: Tensor, early: bool
    ) -> tuple[Tensor, Tensor]:
        """As the kernel of that name, with the history and, where they are kept, the hidden states."""
        history, states = self.history, None if self.states is None else self.states.values
        with early_launches(early):
            return keep_standing(slots, rows, drawn, history.tokens, history.lengths, hidden, states)


class Replays(Protocol):
    """Captured steps: `gradus.execution.draft_graphs.DraftGraphs`."""

    def replay(self, decodes: Decodes, asked: bool) -> Verified: ...


class DraftRunner:
    """Runs plans of an engine that speculates. graphs: of `step`, where there are some. run_model: runs the model where
    prompts are read."""

    def __init__(self, step: DraftStep, graphs: Replays | None = None) -> None:
        self.step, self.graphs = step, graphs
        self.run_model: RunModel = step.model
        self.device = step.model.device
        self.arrived: Arrival | None = None  # of the newest step that the host saw; None if prompts were in it

    @property
    def attention(self) -> AttentionBackend:
        return self.step.attention

    @torch.inference_mode()
    def run(self, plan: Plan) -> "DraftResult":
        with current(self.device):
            for admission in plan.admissions:
                self.step.drafter.keep(admission.slot, 0)
            self.step.attention.wipe(plan.wiped)
            self.step.drafter.wipe(plan.wiped)
            return self._run_prompts(plan) if plan.spans else self._run_decodes(plan)

    def _run_decodes(self, plan: Plan) -> "DraftResult":
        step, decodes = self.step, plan.decodes
        step.sampler.admit(plan.admissions)
        self._update_pages(decodes)
        step.drafter.catch_up(step.history, decodes)
        asked = step.sampler.asked(decodes.slots)
        verified = self.verify(decodes, asked)
        reports = self.reports(decodes.slots) if asked else None
        return self.result(plan, verified.tokens.numel(), verified, reports, None)

    def _update_pages(self, decodes: Decodes) -> None:
        attention = self.step.attention
        if decodes.pages:
            attention.update_tables(*zip(*decodes.pages, strict=True))
        for slot, change in decodes.pages:
            self.step.drafter.keep(slot, change.kept * attention.storage.page_size)

    def verify(self, decodes: Decodes, asked: bool) -> Verified:
        """Run a step of decodes alone, whose block tables are up to date. A replay has rows of padding behind them."""
        if self.graphs is not None:
            return self.graphs.replay(decodes, asked)
        return self.step.run(*self.numbers(decodes), decodes.drafts, asked=asked)

    def numbers(self, decodes: Decodes) -> tuple[Tensor, Tensor]:
        """Slots and limits on the device."""
        assert decodes.limits is not None, "a plan of an engine that does not speculate"
        slots, limits = upload_parts([decodes.slots, decodes.limits], torch.int32, self.device)
        return slots, limits

    def reports(self, slots: Column) -> Column:
        """How many likeliest tokens each slot has reported; -1: nothing."""
        return self.step.sampler.table.reporting[slots]

    def _run_prompts(self, plan: Plan) -> "DraftResult":
        """A step with prompts: a row for each decode, then theirs.

        What only the draw needs is sent once the model runs: first tokens wait for the host. What the next step needs
        of the prompts is kept behind the copy of the tokens, which is what is waited for. The history admits new owners
        of slots here alone: each begins with a span.
        """
        step, decodes, count = self.step, plan.decodes, len(plan.decodes)
        prompts = lay_out(Plan(plan.spans), self.device)
        wanted = sampled_rows(prompts)
        token_ids, positions, picked = prompts.token_ids, prompts.positions, prompts.logits_rows
        if count:
            mine, rows = self._set_up_beside(decodes, prompts)
            token_ids, positions = torch.cat([rows.tokens, token_ids]), torch.cat([rows.positions, positions])
            picked = torch.cat([torch.arange(count, device=self.device), picked + count])
        else:
            step.attention.prepare(prompts)
        computed = self.run_model(token_ids, positions, step.attention)
        hidden = computed[picked]
        logits = step.model.logits(hidden)
        step.sampler.admit(plan.admissions)
        owners = np.concatenate([decodes.slots, wanted.slots])
        asked = step.sampler.asked(owners)
        slots, ends = upload_parts([wanted.slots, wanted.positions], torch.int64, self.device)
        if count:
            slots, ends = torch.cat([rows.slots, slots]), torch.cat([rows.ends, ends])
        draw = step.sampler.draw_slots(logits, slots, ends, asked=asked)
        decoded, read = _split(draw, count)
        verified = step.keep(mine, rows, decoded, hidden[:count]) if count else None
        result = self.result(plan, len(computed), verified, self.reports(owners) if asked else None, read)
        step.keep_prompts(plan, prompts, (slots, ends, draw.tokens), hidden)
        return result

    def _set_up_beside(self, decodes: Decodes, prompts: Batch) -> tuple[Tensor, DraftRows]:
        """Set attention up for decodes without drafts, and prompts behind them. Returns the decodes' slots and rows."""
        step = self.step
        step.attention.update_pages(prompts)
        self._update_pages(decodes)
        step.drafter.catch_up(step.history, replace(decodes, drafts=0))
        slots, limits = self.numbers(decodes)
        rows = step.rows(slots, limits, 0)
        step.attention.prepare_beside(rows, prompts)
        return slots, rows

    def result(
        self,
        plan: Plan,
        rows: int,
        verified: Verified | None,
        reports: Column | None,
        prompts: SlotDraw | None,
    ) -> "DraftResult":
        """rows: that the model ran. reports: of each decode, then of each prompt's row; None where none was asked for
        more than a temperature. prompts: what their rows drew."""
        count = len(plan.decodes)
        width = 1 if verified is None else verified.tokens.shape[1]
        parts = [] if verified is None else [SlotDraw(verified.tokens.flatten()[: count * width], verified.pairs)]
        parts += [] if prompts is None else [prompts]
        # of decodes alone it is what the step left, and a launch fewer
        drawn = parts[0][0] if len(parts) == 1 else torch.cat([tokens for tokens, _ in parts])
        logprobs = None
        if reports is not None and (reports >= 0).any():
            counts = np.concatenate([np.repeat(reports[:count], width), reports[count:]])
            pairs = [told[: len(tokens)] for tokens, told in parts if told is not None]
            logprobs = DrawnLogprobs(torch.cat(pairs), counts)
        return DraftResult(self, plan, rows, drawn, width, logprobs)


def _split(draw: SlotDraw, count: int) -> tuple[SlotDraw, SlotDraw]:
    """What the first `count` rows drew, and what the others did."""
    pairs = (None, None) if draw.pairs is None else (draw.pairs[:count], draw.pairs[count:])
    return SlotDraw(draw.tokens[:count], pairs[0]), SlotDraw(draw.tokens[count:], pairs[1])


class DraftResult:
    """A step on its way to the host until `get`. width: rows of each decode that it drew; its plan may allow more."""

    def __init__(
        self, runner: DraftRunner, plan: Plan, rows: int, tokens: Tensor, width: int, logprobs: DrawnLogprobs | None
    ) -> None:
        self.rows = rows
        self._runner, self._width = runner, width
        self._usual = runner.step.drafter.steady
        self._counts = [span.logits for span in plan.spans]
        self._tokens = to_host(tokens)
        self._logprobs = None if logprobs is None else logprobs.to_host()
        self._arrival = Arrival(runner.device, timed=True)

    def get(self) -> Sampled:
        """Wait until it is there, and for nothing that comes later."""
        self._arrival.wait()
        before = self._runner.arrived
        # From one's end to the next's: where the host is slower than the device, what it does is part of a step. By the
        # device's clock: the host may look late, and then see two at once. After prompts it has more to do than after
        # decodes, and before them it may have had nothing to do.
        seconds = 0.0 if before is None else self._arrival.since(before)
        self._runner.arrived = None if self._counts else self._arrival
        told = () if self._logprobs is None else packed(self._logprobs)
        return Sampled(self._tokens.numpy(), self._counts, told, self._width, seconds, self._usual)
