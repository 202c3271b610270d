"""Lays a plan's spans out as one flat batch, and lists the rows that get a token."""

from itertools import accumulate

import numpy as np
import torch

from gradus.attention.batch import Batch
from gradus.device.transfer import upload_parts
from gradus.engine.plan import Plan
from gradus.sampling.sampler import Rows


def lay_out(plan: Plan, device: torch.device) -> Batch:
    """Lay the plan's spans out as one flat batch, in their order. Decodes in columns are left out."""
    spans = plan.spans
    slots, starts = [span.slot for span in spans], [span.start for span in spans]
    counts = [len(span.tokens) for span in spans]
    ends = list(accumulate(counts))
    # the last `logits` rows of each span
    rows = [
        (number, row) for number, span in enumerate(spans) for row in range(ends[number] - span.logits, ends[number])
    ]
    tokens = [token for span in spans for token in span.tokens]
    positions = [span.start + place for span in spans for place in range(len(span.tokens))]
    parts = tokens, positions, np.repeat(slots, counts), [row for _, row in rows]
    token_ids, places, owners, logits_rows = upload_parts(parts, torch.int64, device)
    return Batch(
        token_ids=token_ids,
        positions=places,
        owners=owners,
        slots=slots,
        query_start=[end - count for end, count in zip(ends, counts, strict=True)],
        counts=counts,
        starts=starts,
        lengths=[start + count for start, count in zip(starts, counts, strict=True)],
        tables=[span.pages for span in spans],
        logits_rows=logits_rows,
        row_spans=[number for number, _ in rows],
        wiped=plan.wiped,
        scores=[
            (end - len(span.tokens), span.scores)
            for span, end in zip(spans, ends, strict=True)
            if span.scores is not None
        ],
    )


def sampled_rows(batch: Batch) -> Rows:
    """List the slot of each row with logits, and the position of the token that follows it.

    Also count the drafts before each row, in a span of a verification.
    """
    spans = np.array(batch.row_spans, np.int64)  # in their order: the rows of a span are adjacent
    counts = np.bincount(spans, minlength=len(batch.slots))
    drafts = np.arange(len(spans)) - (counts.cumsum() - counts)[spans]
    positions = np.array(batch.lengths)[spans] - counts[spans] + 1 + drafts
    return Rows(np.array(batch.slots)[spans], positions, drafts)
