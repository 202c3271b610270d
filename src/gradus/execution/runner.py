"""From a plan to tokens: lay it out flat, run the model once, sample the rows that were asked for."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.attention.batch import Batch
from gradus.device.transfer import current, upload_parts
from gradus.engine.plan import UNKNOWN, Admission, Plan
from gradus.execution.result import StepResult
from gradus.models import Model
from gradus.sampling.sampler import Drawn, Rows, Sampler
from gradus.scheduling.draft_shapes import MOST_ROWS
from gradus.speculative.history import History

RunModel = Callable[[Tensor, Tensor, AttentionBackend], Tensor]
"""(token ids [N], positions [N], attention) → hidden states, [N or more, D]: a `Model`, or what runs one."""


class ModelRunner:
    """One model on one device, run eagerly. Knows no policy: the plan says what to run.

    history: has the newest token of every slot, which plans call UNKNOWN; None where plans have spans alone.
    max_kernel_rows: with more rows than that, a step of decodes takes a slower way.
    verifies: whether the sampler says which rows of a span are accepted. Otherwise each row has what it drew.
    run_model: runs the model on a batch that attention is prepared for. It may compute more rows than the batch has.
    keeps_hidden: whether `hidden` is wanted, the hidden states of the newest step's rows with logits, [R, D].
    """

    max_kernel_rows: int = MOST_ROWS
    verifies: bool = False
    keeps_hidden: bool = False
    hidden: Tensor | None = None

    def __init__(
        self, model: Model, attention: AttentionBackend, sampler: Sampler, history: History | None = None
    ) -> None:
        self.model = model
        self.run_model: RunModel = model
        self.attention = attention
        self.sampler = sampler
        self.history = history

    def quiet(self, plan: Plan) -> AbstractContextManager[None]:
        """What a step with this plan wants around everything that it computes: nothing."""
        return nullcontext()

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        with current(self.model.device):
            return self._run(plan)

    def _run(self, plan: Plan) -> StepResult:
        batch, _, drawn = self.draw(plan)
        return StepResult.of(plan, len(batch.token_ids), drawn, self.model.device)

    def draw(self, plan: Plan) -> tuple[Batch, Rows, Drawn]:
        """Run the plan. Returns its batch, the rows of the draw, and what they drew."""
        batch = self.prepare(plan)
        if self.history is not None:
            self.history.fill_in(batch)
        rows = sampled_rows(batch, self.verifies)
        drawn = self.sampled(batch, rows, plan.admissions)
        if self.history is not None and len(rows):
            self.history.admit(plan.admissions)
            self.history.append(rows.slots, rows.positions, drawn.tokens)
        return batch, rows, drawn

    def answer(self, plan: Plan) -> Tensor:
        """The model's answer to a plan whose tokens are all known, and nothing drawn from it."""
        return self.logits(self.prepare(plan))

    def guess(self, plan: Plan) -> Tensor:
        """What the slots of such a plan would draw from this model's answer, int64 [R]. Nothing counts as sampled."""
        batch = self.prepare(plan)
        rows = sampled_rows(batch)
        return self.guessed(batch, rows)

    def sampled(self, batch: Batch, rows: Rows, admissions: Sequence[Admission]) -> Drawn:
        """Run the model and draw. What new owners of slots ask for is told while a GPU computes: first tokens wait."""
        logits = self.logits(batch)
        self.sampler.admit(admissions)
        return self.sampler.sample(logits, rows)

    def guessed(self, batch: Batch, rows: Rows) -> Tensor:
        """Run the model and choose as `guess` says: int64 [R]."""
        return self.sampler.guess(self.logits(batch), rows.slots, rows.positions)

    def logits(self, batch: Batch) -> Tensor:
        """The model's answer: float32 [R, V], of the rows that get logits."""
        self.attention.prepare(batch)
        hidden = self.run_model(batch.token_ids, batch.positions, self.attention)[batch.logits_rows]
        if self.keeps_hidden:
            self.hidden = hidden
        return self.model.logits(hidden)

    def prepare(self, plan: Plan) -> Batch:
        """The plan on the device. A phase that pads overrides this: padding is the runner's affair alone."""
        return lay_out(plan, self.model.device)


def lay_out(plan: Plan, device: torch.device) -> Batch:
    """The plan as one flat batch: first the decodes, then the spans, in their order."""
    decodes, spans = plan.decodes, plan.spans
    slots = decodes.slots.tolist() + [span.slot for span in spans]
    starts = decodes.starts.tolist() + [span.start for span in spans]
    counts = [1] * len(decodes) + [len(span.tokens) for span in spans]
    logits = [1] * len(decodes) + [span.logits for span in spans]
    firsts = [UNKNOWN] * len(decodes) + [span.tokens[0] for span in spans]
    changes = dict(decodes.pages)
    ends = list(accumulate(counts))
    # the last `logits` rows of each span
    rows = [(span, row) for span, count in enumerate(logits) for row in range(ends[span] - count, ends[span])]
    parts = _token_ids(plan), _positions(starts, counts), np.repeat(slots, counts), [row for _, row in rows]
    token_ids, positions, owners, logits_rows = upload_parts(parts, torch.int64, device)
    return Batch(
        token_ids=token_ids,
        positions=positions,
        owners=owners,
        slots=slots,
        query_start=[end - count for end, count in zip(ends, counts, strict=True)],
        counts=counts,
        starts=starts,
        lengths=[start + count for start, count in zip(starts, counts, strict=True)],
        tables=[changes.get(slot) for slot in slots[: len(decodes)]] + [span.pages for span in spans],
        logits_rows=logits_rows,
        row_spans=[span for span, _ in rows],
        unknown=[span for span, token in enumerate(firsts) if token == UNKNOWN],
        wiped=plan.wiped,
    )


def _token_ids(plan: Plan) -> list[int]:
    return [UNKNOWN] * len(plan.decodes) + [token for span in plan.spans for token in span.tokens]


def _positions(starts: list[int], counts: list[int]) -> list[int]:
    spans = zip(starts, counts, strict=True)
    return [position for start, count in spans for position in range(start, start + count)]


def sampled_rows(batch: Batch, verifies: bool = False) -> Rows:
    """Of each row with logits: its slot, the position of the token that follows it, and the drafts before it.

    verifies: also which tokens the drafts are, where there are any.
    """
    spans = np.array(batch.row_spans, np.int64)  # in their order: the rows of a span stand together
    counts = np.bincount(spans, minlength=len(batch.slots))
    drafts = np.arange(len(spans)) - (counts.cumsum() - counts)[spans]
    positions = np.array(batch.lengths)[spans] - counts[spans] + 1 + drafts
    inputs = batch.token_ids[batch.logits_rows].numpy(force=True) if verifies and drafts.any() else None
    return Rows(np.array(batch.slots)[spans], positions, drafts, inputs)


def kernel_logits(model: Model, hidden: Tensor) -> Tensor:
    """`model.logits` for a kernel that widens each as it reads it, [R, V]: no second matrix of them is made.

    They have the head's own type, unless something else is done to them.
    """
    return model.head(hidden) if model.config.final_softcap is None else model.logits(hidden)
