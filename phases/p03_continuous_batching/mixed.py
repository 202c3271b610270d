"""Attention for steps in which some sequences read their prompts while others decode.

The flat batch needs no rectangle: the model's rows are exactly the tokens of the plan. Only attention has to know which
rows belong to which sequence. Prompts are attended to one by one, since a step has few of them. The decodes, one row
each, are attended to all at once, as a column of slots with gaps where a slot does not decode.
"""

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.reference import attend_causal, attend_masked
from gradus.models import ModelConfig
from phases.p02_static_batching.padded import visible
from phases.p02_static_batching.slots import SlotTensors


class MixedAttention:
    """Prompts and decodes in one step, over the same slots that static batching used."""

    def __init__(self, config: ModelConfig, storage: SlotTensors) -> None:
        self.config = config
        self.storage = storage

    def prepare(self, batch: Batch) -> None:
        device = batch.token_ids.device
        spans = list(zip(batch.slots, batch.query_start, batch.counts, batch.starts, strict=True))
        self.row_slots = torch.tensor([slot for slot, _, count, _ in spans for _ in range(count)], device=device)
        self.positions = batch.positions
        self.prompts = [span for span in spans if span[2] > 1]
        decodes = [(slot, row, start) for slot, row, count, start in spans if count == 1]
        if not decodes:
            self.column = 0
            return
        slots, rows, starts = (torch.tensor(column, device=device) for column in zip(*decodes, strict=True))
        self.column = max(slot for slot, _, _ in decodes) + 1
        self.length = max(start for _, _, start in decodes) + 1
        self.decode_slots, self.decode_rows = slots, rows
        # a slot in a gap has no query, but must see something: a softmax over no key at all is NaN
        newest = torch.zeros(self.column, dtype=torch.int64, device=device)
        newest[slots] = starts
        keys = torch.arange(self.length, device=device)
        self.masks = {window: visible(newest.view(-1, 1, 1), keys, window) for window in set(self.config.windows)}

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if k is not None and v is not None:
            self.storage.store(layer, self.row_slots, self.positions, k, v)
        out = torch.empty_like(q)
        for slot, row, count, start in self.prompts:
            rows, seen = slice(row, row + count), slice(start + count)
            keys, values = self.storage.keys[layer][slot, :, seen], self.storage.values[layer][slot, :, seen]
            out[rows] = attend_prompt(self.config, layer, q[rows], keys, values, sinks)
        if self.column:
            queries = q.new_zeros(self.column, *q.shape[1:])
            queries[self.decode_slots] = q[self.decode_rows]
            keys, values = self.storage.seen(layer, self.column, self.length)
            mask = self.masks[self.config.windows[layer]]
            decoded = attend_decodes(self.config, queries, keys, values, mask, sinks)
            out[self.decode_rows] = decoded[self.decode_slots]
        return out


def attend_prompt(
    config: ModelConfig, layer: int, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
) -> Tensor:
    """q: [n, Hq, Dh], the newest n of m positions; keys, values: [Hkv, m, Dh]. Returns [n, Hq, Dh]."""
    start, window = keys.shape[1] - q.shape[0], config.windows[layer]
    scale, softcap = config.attention_scale, config.attention_softcap
    return attend_causal(q, keys, values, start=start, scale=scale, window=window, softcap=softcap, sinks=sinks)


def attend_decodes(
    config: ModelConfig, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor | None = None
) -> Tensor:
    """q: [B, Hq, Dh], one query per sequence; keys, values: [B, Hkv, m, Dh]; mask: [B, 1, m]. Returns [B, Hq, Dh]."""
    scale, softcap = config.attention_scale, config.attention_softcap
    return attend_masked(q.unsqueeze(1), keys, values, mask, scale=scale, softcap=softcap, sinks=sinks).squeeze(1)
