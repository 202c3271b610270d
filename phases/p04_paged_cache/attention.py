"""Attention over pages: find rows through the block tables, gather them side by side, then attend as before.

Position p of a sequence is row `table[p // page_size] * page_size + p % page_size` of every layer. Attention in plain
torch wants a sequence's keys in one piece, so each layer copies the rows that it needs: **the gather**. It reads the
cache, writes it out again, and reads that copy. (A kernel that follows the block table itself needs no copy: p09.)
"""

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.models import ModelConfig
from phases.p01_kv_cache.contiguous import layered
from phases.p02_static_batching.padded import visible
from phases.p03_continuous_batching.mixed import attend_decodes, attend_prompt


class PageTensors:
    """Keys and values of all pages: [pages + 1, page_size, Hkv, Dh] per layer. Page 0 belongs to none, and stays 0.

    Allocated once: a page changes owner by being overwritten.
    """

    def __init__(
        self, config: ModelConfig, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def room(heads: int, width: int) -> Tensor:
            return torch.zeros(pages + 1, page_size, heads, width, dtype=dtype, device=device)

        self.page_size = page_size
        self.keys, self.values = layered(config, room), layered(config, room)

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values by row: views [(pages + 1) * page_size, Hkv, Dh]."""
        return self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)

    def store(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """rows: [N]; k, v: [N, Hkv, Dh]: token i goes to row rows[i]."""
        keys, values = self.rows(layer)
        keys[rows], values[rows] = k, v


class GatherAttention:
    """Attends to prompts one by one, since a step has few, and to decodes, one row each, all at once (as in p03)."""

    def __init__(self, config: ModelConfig, storage: PageTensors) -> None:
        self.config = config
        self.storage = storage

    def prepare(self, batch: Batch) -> None:
        """Compute once, for all layers, where new keys and values go, and which rows each span sees."""
        device = batch.positions.device
        counts, lengths = (torch.tensor(numbers, device=device) for numbers in (batch.counts, batch.lengths))
        tables = block_tables(batch)
        owners = tables.repeat_interleave(counts, dim=0)  # each token's block table
        self.new_rows = rows_of(owners, batch.positions.unsqueeze(1), self.storage.page_size).squeeze(1)

        keys = torch.arange(max(batch.lengths), device=device)
        seen = rows_of(tables, keys.expand(len(tables), -1), self.storage.page_size)
        # The unfilled end of a last page holds its former owner's leftovers, perhaps NaN: 0 times NaN is NaN, so a mask
        # would not suffice. Row 0 belongs to no sequence.
        seen = seen * (keys < lengths.unsqueeze(1))
        spans = zip(batch.query_start, batch.counts, batch.lengths, seen, strict=True)
        self.prompts = [(slice(first, first + n), rows[:length]) for first, n, length, rows in spans if n > 1]
        self.prepare_decodes([i for i, count in enumerate(batch.counts) if count == 1], batch, seen)

    def prepare_decodes(self, decodes: list[int], batch: Batch, seen: Tensor) -> None:
        self.decode_rows = torch.tensor([batch.query_start[i] for i in decodes], dtype=torch.int64, device=seen.device)
        if decodes:
            longest = max(batch.lengths[i] for i in decodes)
            self.decode_seen = seen[torch.tensor(decodes, device=seen.device), :longest]
            queries = batch.positions[self.decode_rows].view(-1, 1, 1)
            keys = torch.arange(longest, device=seen.device)
            self.masks = {window: visible(queries, keys, window) for window in set(self.config.windows)}

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if k is not None and v is not None:
            self.storage.store(layer, self.new_rows, k, v)
        keys, values = self.storage.rows(layer)
        out = torch.empty_like(q)
        for span, rows in self.prompts:
            out[span] = self.attend_prompt(layer, q[span], keys[rows], values[rows], sinks)
        if len(self.decode_rows):
            rows = self.decode_seen
            out[self.decode_rows] = self.attend_decodes(layer, q[self.decode_rows], keys[rows], values[rows], sinks)
        return out

    def attend_prompt(self, layer: int, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """q: [n, Hq, Dh], the newest n of m positions; keys, values: [m, Hkv, Dh]. Returns [n, Hq, Dh]."""
        return attend_prompt(self.config, layer, q, keys.transpose(0, 1), values.transpose(0, 1), sinks)

    def attend_decodes(
        self, layer: int, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """q: [B, Hq, Dh], one query per sequence; keys, values: [B, m, Hkv, Dh]. Returns [B, Hq, Dh]."""
        mask = self.masks[self.config.windows[layer]]
        return attend_decodes(self.config, q, keys.transpose(1, 2), values.transpose(1, 2), mask, sinks)


def block_tables(batch: Batch) -> Tensor:
    """The spans' block tables as one tensor, [S, entries], the shorter ones filled up with page 0."""
    tables = [change.pages[0] for change in batch.tables if change is not None]
    entries = max(map(len, tables))
    filled = [[*table, *[0] * (entries - len(table))] for table in tables]
    return torch.tensor(filled, device=batch.positions.device)


def rows_of(tables: Tensor, positions: Tensor, page_size: int) -> Tensor:
    """Find the rows of positions. tables: [S, entries]; positions: [S, n], n of each sequence. Returns [S, n]."""
    return tables.gather(1, positions // page_size) * page_size + positions % page_size
