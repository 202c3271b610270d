"""One rectangle of tokens per step: S sequences, each padded to the width W of the widest.

The rows that fill it up cost what real ones cost: the shorter prompts' padding at first, and later the rows of
sequences that ended before the last of their batch.
"""

from dataclasses import replace

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.reference import attend_masked
from gradus.engine.plan import Plan
from gradus.execution.layout import lay_out
from gradus.models import ModelConfig
from phases.p00_baseline.runner import ModelRunner
from phases.p02_static_batching.slots import SlotTensors


class PaddedRunner(ModelRunner):
    """Lays each span out at slot * width, and pad tokens over the rest of its row, as long as its batch runs."""

    batch_size = 0  # sequences that started together: their rows are computed until the last of them has ended

    def prepare(self, plan: Plan) -> Batch:
        if plan.admissions:
            self.batch_size = len(plan.admissions)
        return pad(lay_out(plan, self.model.device), self.batch_size)


def pad(batch: Batch, batch_size: int) -> Batch:
    """Spread a flat batch over a rectangle of batch_size rows. A pad token is token 0 at position 0, and belongs to no
    span: it is stored nowhere, and its output is ignored."""
    width, device = max(batch.counts), batch.token_ids.device
    spans = zip(batch.slots, batch.counts, strict=True)
    where = torch.tensor([slot * width + i for slot, count in spans for i in range(count)], device=device)
    token_ids = torch.zeros(batch_size * width, dtype=torch.int64, device=device)
    positions = torch.zeros_like(token_ids)
    token_ids[where], positions[where] = batch.token_ids, batch.positions
    firsts = [slot * width for slot in batch.slots]
    rows = where[batch.logits_rows]
    return replace(batch, token_ids=token_ids, positions=positions, query_start=firsts, logits_rows=rows)


class PaddedAttention:
    """Attends over the whole rectangle at once: [S, W] queries, each slot's keys, and one mask for all layers."""

    def __init__(self, config: ModelConfig, storage: SlotTensors) -> None:
        self.config = config
        self.storage = storage

    def prepare(self, batch: Batch) -> None:
        self.width = max(batch.counts)
        self.size = len(batch.token_ids) // self.width
        self.length = max(batch.lengths)
        device = batch.token_ids.device
        spans = zip(batch.query_start, batch.counts, strict=True)
        self.real = torch.tensor([first + i for first, count in spans for i in range(count)], device=device)
        self.slots = self.real // self.width
        self.positions = batch.positions[self.real]
        queries = batch.positions.view(self.size, self.width, 1)
        keys = torch.arange(self.length, device=device)
        # a query sees its own slot up to its own position: never padding, nor a predecessor's leftovers
        self.masks = {window: visible(queries, keys, window) for window in set(self.config.windows)}

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if k is not None and v is not None:
            self.storage.store(layer, self.slots, self.positions, k[self.real], v[self.real])
        out = attend_masked(
            q.view(self.size, self.width, *q.shape[1:]),
            *self.storage.seen(layer, self.size, self.length),
            self.masks[self.config.windows[layer]],
            scale=self.config.attention_scale,
            softcap=self.config.attention_softcap,
            sinks=sinks,
        )
        return out.flatten(0, 1)


def visible(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Mark the keys that each query may see: positions queries [..., 1] and keys [m] → bool [..., m]."""
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)
