"""Turns a plan into tokens: lay it out flat, run the model once, and sample the rows that need a token.

Every phase runs its steps this way. A runner has no policy: the plan says what to run.
"""

import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.attention.batch import Batch
from gradus.device.transfer import current
from gradus.engine.plan import Plan, Result
from gradus.execution.layout import lay_out, sampled_rows
from gradus.execution.result import StepResult
from gradus.models import Model
from gradus.sampling.sampler import Sampler


class ModelRunner:
    """Runs one model on one device, one step at a time."""

    def __init__(self, model: Model, attention: AttentionBackend, sampler: Sampler) -> None:
        self.model, self.attention, self.sampler = model, attention, sampler

    @torch.inference_mode()
    def run(self, plan: Plan) -> Result:
        with current(self.model.device):
            return self._run(plan)

    def _run(self, plan: Plan) -> Result:
        batch = self.prepare(plan)
        hidden = self.forward(batch)
        self.sampler.admit(plan.admissions)
        drawn = self.sampler.sample(self.model.logits(hidden[batch.logits_rows]), sampled_rows(batch))
        return StepResult.of(plan, len(batch.token_ids), drawn, self.model.device)

    def prepare(self, plan: Plan) -> Batch:
        """Put the plan on the device. A phase that pads overrides this: only the runner knows of padding."""
        return lay_out(plan, self.model.device)

    def forward(self, batch: Batch) -> Tensor:
        """Compute the hidden states, [rows, D]: the batch's come first."""
        self.attention.prepare(batch)
        return self.model(batch.token_ids, batch.positions, self.attention)
