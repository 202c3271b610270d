"""The backend around the kernel: new keys and values go to their pages, then one launch attends for all spans."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.device.transfer import upload
from gradus.models import ModelConfig
from phases.p04_paged_cache.attention import PageTensors, rows_of
from phases.p09_triton_attention.paged_attention import paged_attention


class TritonAttention:
    """p04's pages and block tables without its gather, and without its two ways: any step is one launch per layer.

    kernel: the function that attends over the pages; without a GPU, `paged_attention_reference` replaces it.
    """

    def __init__(
        self, config: ModelConfig, storage: PageTensors, kernel: Callable[..., Tensor] = paged_attention
    ) -> None:
        self.config = config
        self.storage = storage
        self.kernel = kernel

    def prepare(self, batch: Batch) -> None:
        """Once per step. Everything goes through `upload`, so the host does not wait for the step before (p10)."""
        device, tokens = batch.positions.device, len(batch.positions)
        counts, lengths = (upload(numbers, torch.int64, device) for numbers in (batch.counts, batch.lengths))
        query_start = upload([*batch.query_start, tokens], torch.int64, device)
        tables = uploaded_tables(batch)
        owners = tables.repeat_interleave(counts, dim=0, output_size=tokens)  # each token's block table
        self.set_up(owners, batch.positions, tables, query_start, lengths, longest=max(batch.counts))

    def set_up(
        self, owners: Tensor, positions: Tensor, tables: Tensor, query_start: Tensor, lengths: Tensor, longest: int
    ) -> None:
        """Set, for all layers, where new keys and values go, and the keys that the spans see.

        owners: [N, W], the block table of each token; positions: [N]. The others: see `paged_attention`.
        """
        self.new_rows = rows_of(owners, positions.unsqueeze(1), self.storage.page_size).squeeze(1)
        self.spans = tables, query_start, lengths
        self.longest = longest

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if k is not None and v is not None:
            self.storage.store(layer, self.new_rows, k, v)
        return self.kernel(
            q,
            self.storage.keys[layer],
            self.storage.values[layer],
            *self.spans,
            longest=self.longest,
            scale=self.config.attention_scale,
            window=self.config.windows[layer],
            softcap=self.config.attention_softcap,
            sinks=sinks,
        )


def uploaded_tables(batch: Batch) -> Tensor:
    """The spans' block tables on the device, [S, W], the shorter ones filled up with page 0."""
    tables = [change.pages[0] for change in batch.tables if change is not None]
    entries = max(map(len, tables))
    pages = [page for table in tables for page in (*table, *[0] * (entries - len(table)))]
    return upload(pages, torch.int64, batch.positions.device).view(-1, entries)
