"""A plan prepared for the device: flat tensors, and the few host numbers that an attention backend needs."""

from dataclasses import dataclass, field

from torch import Tensor

from gradus.cache import TableChange
from gradus.engine.plan import Scores


@dataclass(slots=True)
class Batch:
    """The flat batch of one step: N rows, divided among S spans and padding. No Sequence, no Span.

    token_ids, positions, owners: [N] int64, on the model's device; the owner of a row is its span's slot.
    slots: the S spans' slots.
    query_start, counts: span i is the counts[i] rows from query_start[i] on. Rows outside of all spans are padding.
    starts, lengths: for each span the position of its first token, and the positions stored after this step.
    tables: for each span the change of its slot's block tables; None if they are unchanged.
    wiped: pages to fill with zeros before anything is stored (see Plan).
    logits_rows: [R] int64, the rows that get logits; row_spans: the span of each.
    scores: (first row, what is asked) of each span whose prompt's log-probabilities are wanted.
    """

    token_ids: Tensor
    positions: Tensor
    owners: Tensor
    slots: list[int]
    query_start: list[int]
    counts: list[int]
    starts: list[int]
    lengths: list[int]
    tables: list[TableChange | None]
    logits_rows: Tensor
    row_spans: list[int]
    wiped: tuple[int, ...] = ()
    scores: list[tuple[int, Scores]] = field(default_factory=list)
