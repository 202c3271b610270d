"""Turns a plan into tokens: lay it out flat, run the model once, and sample the rows that need a token."""

import time
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
from gradus.execution.prompt_scores import prompt_scores
from gradus.execution.result import StepResult
from gradus.models import Model
from gradus.sampling.sampler import Drawn, DrawnLogprobs, Rows, Sampler
from gradus.scheduling.draft_shapes import MOST_ROWS
from gradus.speculative.history import History

RunModel = Callable[[Tensor, Tensor, AttentionBackend], Tensor]
"""(token ids [N], positions [N], attention) → hidden states, [N or more, D]: a `Model`, or a wrapper around one."""


class ModelRunner:
    """Runs one model on one device, eagerly. It has no policy: the plan says what to run.

    history: holds the newest token of every slot, which plans call UNKNOWN; None if plans contain only spans.
    max_kernel_rows: steps of decodes with more rows than this are slower.
    verifies: True if the sampler decides which rows of a span are accepted; otherwise each row returns its own draw.
    run_model: runs the model on a batch that attention is prepared for. It may compute more rows than the batch has.
    keeps_hidden: True to keep `hidden`: the hidden states of the newest step's rows with logits, [R, D].
    scores: of the newest step's prompts.
    """

    max_kernel_rows: int = MOST_ROWS
    verifies: bool = False
    keeps_hidden: bool = False
    hidden: Tensor | None = None
    scores: Sequence[DrawnLogprobs] = ()

    def __init__(
        self, model: Model, attention: AttentionBackend, sampler: Sampler, history: History | None = None
    ) -> None:
        self.model = model
        self.run_model: RunModel = model
        self.attention = attention
        self.sampler = sampler
        self.history = history

    def quiet(self, plan: Plan) -> AbstractContextManager[None]:
        """Return a context for all that a step with this plan computes; here it does nothing."""
        return nullcontext()

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        with current(self.model.device):
            return self._run(plan)

    def _run(self, plan: Plan) -> StepResult:
        began, device = time.perf_counter(), self.model.device
        batch, _, drawn = self.draw(plan)
        seconds = time.perf_counter() - began if device.type == "cpu" else 0.0  # a GPU has only begun
        return StepResult.of(plan, len(batch.token_ids), drawn, device, self.scores, seconds)

    def draw(self, plan: Plan) -> tuple[Batch, Rows, Drawn]:
        """Run the plan. Returns its batch, the sampled rows, and the tokens drawn for them."""
        batch, self.scores = self.prepare(plan), ()
        if self.history is not None:
            self.history.admit(plan.admissions)
            self.history.fill_in(batch)
        rows = sampled_rows(batch, self.verifies)
        drawn = self.sampled(batch, rows, plan.admissions)
        if self.history is not None and len(rows):
            self.history.append(rows.slots, rows.positions, drawn.tokens)
        return batch, rows, drawn

    def answer(self, plan: Plan) -> Tensor:
        """Return the logits of a plan whose tokens are all known, without drawing from them."""
        return self.logits(self.prepare(plan))

    def guess(self, plan: Plan) -> Tensor:
        """Return the tokens, int64 [R], that the slots would draw from this model's logits, without recording them.

        All of the plan's tokens are known, as in `answer`.
        """
        batch = self.prepare(plan)
        rows = sampled_rows(batch)
        return self.guessed(batch, rows)

    def sampled(self, batch: Batch, rows: Rows, admissions: Sequence[Admission]) -> Drawn:
        """Run the model and draw. New slot owners' settings are sent while the GPU computes, which hides that work."""
        logits = self.logits(batch)
        self.sampler.admit(admissions)
        return self.sampler.sample(logits, rows)

    def guessed(self, batch: Batch, rows: Rows) -> Tensor:
        """Run the model and choose as `guess` says: int64 [R]."""
        return self.sampler.guess(self.logits(batch), rows.slots, rows.positions)

    def logits(self, batch: Batch) -> Tensor:
        """Compute the logits, float32 [R, V], of the rows that get some."""
        self.attention.prepare(batch)
        computed = self.run_model(batch.token_ids, batch.positions, self.attention)
        self.scores = prompt_scores(self.model, computed, batch.scores)
        hidden = computed[batch.logits_rows]
        if self.keeps_hidden:
            self.hidden = hidden
        return self.model.logits(hidden)

    def prepare(self, plan: Plan) -> Batch:
        """Put the plan on the device. A phase that pads overrides this: only the runner knows of padding."""
        return lay_out(plan, self.model.device)


def lay_out(plan: Plan, device: torch.device) -> Batch:
    """Lay the plan out as one flat batch: first the decodes, then the spans, each in their order."""
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
        scores=[
            (end - len(span.tokens), span.scores)
            for span, end in zip(spans, ends[len(decodes) :], strict=True)
            if span.scores is not None
        ],
    )


def _token_ids(plan: Plan) -> list[int]:
    return [UNKNOWN] * len(plan.decodes) + [token for span in plan.spans for token in span.tokens]


def _positions(starts: list[int], counts: list[int]) -> list[int]:
    spans = zip(starts, counts, strict=True)
    return [position for start, count in spans for position in range(start, start + count)]


def sampled_rows(batch: Batch, verifies: bool = False) -> Rows:
    """List the slot of each row with logits, the position of the token that follows it, and the drafts before it.

    verifies: also list the tokens of the drafts, if any.
    """
    spans = np.array(batch.row_spans, np.int64)  # in their order: the rows of a span are adjacent
    counts = np.bincount(spans, minlength=len(batch.slots))
    drafts = np.arange(len(spans)) - (counts.cumsum() - counts)[spans]
    positions = np.array(batch.lengths)[spans] - counts[spans] + 1 + drafts
    inputs = batch.token_ids[batch.logits_rows].numpy(force=True) if verifies and drafts.any() else None
    return Rows(np.array(batch.slots)[spans], positions, drafts, inputs)


def kernel_logits(model: Model, hidden: Tensor) -> Tensor:
    """Compute `model.logits`, [R, V], for a kernel that widens each logit as it reads it: this saves a second matrix.

    The logits have the output head's own type, except where a soft cap is applied to them.
    """
    return model.head(hidden) if model.config.final_softcap is None else model.logits(hidden)
