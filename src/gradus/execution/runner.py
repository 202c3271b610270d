"""From a plan to tokens: lay the spans out flat, run the model once, sample the rows that were asked for."""

from itertools import accumulate

import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.attention.batch import Batch
from gradus.device.transfer import upload
from gradus.engine.plan import UNKNOWN, Plan
from gradus.engine.sequence import SpanResult
from gradus.models import Model
from gradus.sampling.sampler import Row, Sampled, Sampler


class ModelRunner:
    """One model on one device, run eagerly. Knows no policy: the plan says what to run.

    latest: what every slot sampled last, for plans that are made before anybody has seen it.
    """

    def __init__(
        self, model: Model, attention: AttentionBackend, sampler: Sampler, latest: "LatestTokens | None" = None
    ) -> None:
        self.model = model
        self.attention = attention
        self.sampler = sampler
        self.latest = latest

    @torch.inference_mode()
    def run(self, plan: Plan) -> "StepResult":
        self.sampler.admit(plan.admissions)
        batch = self.prepare(plan)
        if self.latest is not None:
            self.latest.fill_in(batch, plan)
        self.attention.prepare(batch)
        hidden = self.model(batch.token_ids, batch.positions, self.attention)
        logits = self.model.logits(hidden[batch.logits_rows])
        rows = sampled_rows(batch)
        sampled = self.sampler.sample(logits, rows)
        if self.latest is not None and rows:
            self.latest.record([row.slot for row in rows], sampled.tokens)
        return StepResult(batch, sampled)

    def prepare(self, plan: Plan) -> Batch:
        """The plan on the device. A phase that pads overrides this: padding is the runner's affair alone."""
        return lay_out(plan, self.model.device)


class LatestTokens:
    """The newest token of every slot, on the device: where a plan says UNKNOWN, it is here.

    tokens: int64 [slots + 1]; the last one is nobody's, for padding.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.tokens = torch.zeros(slots + 1, dtype=torch.int64, device=device)

    def fill_in(self, batch: Batch, plan: Plan) -> None:
        unknown = [i for i, span in enumerate(plan.spans) if span.tokens[0] == UNKNOWN]
        if unknown:
            places = [batch.query_start[i] for i in unknown] + [batch.slots[i] for i in unknown]
            rows, slots = upload(places, torch.int64, self.tokens.device).chunk(2)
            batch.token_ids[rows] = self.tokens[slots]

    def record(self, slots: list[int], tokens: Tensor) -> None:
        """tokens: int64 [len(slots)], just sampled."""
        self.tokens[upload(slots, torch.int64, self.tokens.device)] = tokens


class StepResult:
    """The tokens of a step, on their way to the host until `get`."""

    def __init__(self, batch: Batch, sampled: Sampled) -> None:
        self.rows = len(batch.token_ids)
        self._span_count, self._row_spans, self._sampled = len(batch.slots), batch.row_spans, sampled

    def get(self) -> list[SpanResult]:
        results = [SpanResult() for _ in range(self._span_count)]
        for span, result in zip(self._row_spans, self._sampled.get(), strict=True):
            results[span] = result
        return results


def lay_out(plan: Plan, device: torch.device) -> Batch:
    """The plan's spans as one flat batch, in their order."""
    spans = plan.spans
    counts = [len(span.tokens) for span in spans]
    ends = list(accumulate(counts))
    # the last `logits` rows of each span
    rows = [(index, row) for index, span in enumerate(spans) for row in range(ends[index] - span.logits, ends[index])]
    token_ids = [token for span in spans for token in span.tokens]
    positions = [
        position
        for span, count in zip(spans, counts, strict=True)
        for position in range(span.start, span.start + count)
    ]
    return Batch(
        token_ids=upload(token_ids, torch.int64, device),
        positions=upload(positions, torch.int64, device),
        slots=[span.slot for span in spans],
        query_start=[end - count for end, count in zip(ends, counts, strict=True)],
        counts=counts,
        starts=[span.start for span in spans],
        lengths=[span.start + count for span, count in zip(spans, counts, strict=True)],
        tables=[span.pages for span in spans],
        logits_rows=upload([row for _, row in rows], torch.int64, device),
        row_spans=[index for index, _ in rows],
        wiped=plan.wiped,
    )


def sampled_rows(batch: Batch) -> list[Row]:
    """For each row with logits: whose it is, and the position of the token that will be sampled from it."""
    return [Row(slot=batch.slots[span], position=batch.lengths[span]) for span in batch.row_spans]
