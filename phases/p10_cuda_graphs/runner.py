"""Keep the tokens that the next step starts from on the device, so the host need not wait to see them."""

import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.attention.batch import Batch
from gradus.device.transfer import upload
from gradus.engine.plan import UNKNOWN, Column, Plan
from gradus.execution.layout import sampled_rows
from gradus.execution.result import StepResult
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.runner import ModelRunner


class NewestTokens:
    """The last sampled token of each slot: a plan's UNKNOWN refers to it. tokens: int64 [slots]."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.tokens = torch.zeros(slots, dtype=torch.int64, device=device)

    def record(self, slots: Column, sampled: Tensor) -> None:
        """sampled: int64 [len(slots)], the i-th token being slots[i]'s.

        It is -1 where no logit was finite. That sequence ends, but its next step is in flight and needs some token.
        """
        self.tokens[upload(slots, torch.int64, self.tokens.device)] = sampled.clamp(min=0)

    def fill_in(self, batch: Batch, plan: Plan) -> None:
        """Put the newest token of its slot at the head of each span that has UNKNOWN there."""
        unknown = [i for i, span in enumerate(plan.spans) if span.tokens[0] == UNKNOWN]
        if unknown:
            rows = upload([batch.query_start[i] for i in unknown], torch.int64, self.tokens.device)
            slots = upload([batch.slots[i] for i in unknown], torch.int64, self.tokens.device)
            batch.token_ids[rows] = self.tokens[slots]


class AheadRunner(ModelRunner):
    """Runs plans that were made before the last step's tokens were seen. Nothing here waits for the device.

    slots: how many sequences run at once.
    """

    def __init__(self, model: Model, attention: AttentionBackend, sampler: Sampler, slots: int) -> None:
        super().__init__(model, attention, sampler)
        self.newest = NewestTokens(slots, model.device)

    def _run(self, plan: Plan) -> StepResult:
        self.sampler.admit(plan.admissions)
        batch = self.prepare(plan)
        self.newest.fill_in(batch, plan)
        hidden = self.forward(batch)
        rows = sampled_rows(batch)
        drawn = self.sampler.sample(self.model.logits(hidden[batch.logits_rows]), rows)
        if len(rows):
            self.newest.record(rows.slots, drawn.tokens)
        return StepResult.of(plan, len(hidden), drawn, self.model.device)
