"""Runs the model's kernels on a step's rows, and draws with kernels: the host launches, and waits for nothing."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.device.transfer import current, upload_parts
from gradus.engine.plan import Admission, Plan
from gradus.execution.layout import sampled_rows
from gradus.execution.passes import Reading, RunModel, kernel_logits
from gradus.execution.prompt_scores import prompt_scores
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.step.rows import StepRows, VerifyRows
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.sampling.sampler import SlotDraw
from gradus.scheduling.draft_shapes import MOST_ROWS, DraftShape
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History


class KernelPass:
    """model: the kernels' view of it. run_model: runs the model in steps with prompts."""

    drafts_with_prompts = False  # the prompts' tokens already keep the GPU's arithmetic busy
    most_rows = MOST_ROWS

    def __init__(self, model: Model, attention: GraphPagedAttention, sampler: KernelSampler) -> None:
        self.model, self.attention, self.sampler = model, attention, sampler
        self.run_model: RunModel = model
        self.tables, self.page_size = attention.tables, attention.storage.page_size

    @property
    def barred(self) -> Tensor:
        """Penalties count what a sequence has said, and a draft has not been said yet: such a slot verifies none."""
        return self.sampler.table.adjusts

    def context(self, plan: Plan) -> AbstractContextManager[object]:
        return current(self.model.device)

    def rows(self, sequences: int, shape: DraftShape) -> int:
        return sequences + shape.rows

    def propose(
        self, drafter: Drafter | None, history: History, slots: Tensor, limits: Tensor, most: Tensor, count: int
    ) -> Tensor:
        if count and drafter is not None:
            return drafter.propose(history, slots, count, limits)
        return torch.empty(len(slots), count, dtype=torch.int64, device=slots.device)

    # -- decodes -------------------------------------------------------------------------------------------------------

    def compute(self, slots: Tensor, rows: StepRows, shape: DraftShape, early: bool, full: bool) -> Tensor:
        attention = self.attention
        if shape.drafts and isinstance(rows, VerifyRows):
            attention.prepare_drafts(slots, rows, 1 + shape.drafts)
        else:
            attention.prepare_decodes(rows.slots, rows.ends, rows.places)
        with early_launches(early):
            return self.model(rows.tokens, rows.positions, attention)

    def draw(self, rows: StepRows, hidden: Tensor, written: Tensor | None, early: bool, full: bool) -> SlotDraw:
        logits = kernel_logits(self.model, hidden)
        with early_launches(early):
            return self.sampler.draw_slots(logits, rows.slots, rows.ends, written, full=full)

    # -- with prompts --------------------------------------------------------------------------------------------------

    def read(self, rows: StepRows | None, prompts: Batch, admissions: Sequence[Admission]) -> Reading:
        """First tokens wait for the host, so it sends the draw's inputs only after it has launched the model."""
        device, count = self.model.device, 0 if rows is None else len(rows.tokens)
        wanted = sampled_rows(prompts)
        token_ids, positions, picked = prompts.token_ids, prompts.positions, prompts.logits_rows
        if rows is None:
            self.attention.prepare(prompts)
        else:
            self.attention.prepare_beside(rows, prompts)
            token_ids, positions = torch.cat([rows.tokens, token_ids]), torch.cat([rows.positions, positions])
            picked = torch.cat([torch.arange(count, device=device), picked + count])
        computed = self.run_model(token_ids, positions, self.attention)
        scores = prompt_scores(self.model, computed[count:], prompts.scores)
        hidden = computed[picked]
        logits = self.model.logits(hidden)
        self.sampler.admit(admissions)
        owners, ends = upload_parts([wanted.slots, wanted.positions], torch.int64, device)
        if rows is not None:
            owners, ends = torch.cat([rows.slots, owners]), torch.cat([rows.ends, ends])
        return Reading(len(computed), hidden, logits, owners, ends, scores)

    def draw_read(self, reading: Reading, written: Tensor | None, full: bool) -> SlotDraw:
        return self.sampler.draw_slots(reading.state, reading.slots, reading.ends, written, full=full)
