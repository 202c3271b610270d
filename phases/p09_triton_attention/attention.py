"""The backend around the kernel: new keys and values go to their pages, then one launch attends for all spans."""

from collections.abc import Callable

from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.device.transfer import upload
from gradus.models.config import ModelConfig
from phases.p09_triton_attention.paged_attention import paged_attention


class TritonAttention(PagedAttention):
    """p04's block tables by slot, without its gather.

    kernel: what attends over the pages; `paged_attention_reference` takes its place where there is no GPU to run on.
    """

    def __init__(
        self, config: ModelConfig, storage: PagedStorage, slots: int, kernel: Callable[..., Tensor] = paged_attention
    ) -> None:
        super().__init__(config, storage, slots)
        self.kernel = kernel

    def prepare(self, batch: Batch) -> None:
        """Once a step: block tables up to date, places for what is new, and the spans' numbers on the device."""
        self.storage.wipe(batch.wiped)
        self.update_tables(batch.slots, batch.tables)
        numbers = [*batch.slots, *batch.counts, *batch.lengths, *batch.query_start, len(batch.positions)]
        spans = len(batch.slots)
        slots, counts, lengths, query_start = upload(numbers, batch.positions.dtype, self.device).split(
            (spans, spans, spans, spans + 1)
        )
        owners = slots.repeat_interleave(counts, output_size=len(batch.positions))
        self.place(owners, batch.positions)
        self.span(slots, query_start, lengths, longest=max(batch.counts))

    def place(self, owners: Tensor, positions: Tensor) -> None:
        """Where the new keys and values go: rows of the storage, for the slot and the position of each token [N]."""
        page = self.storage.page_size
        self.rows = [table[owners, positions // page] * page + positions % page for table in self.tables]

    def span(self, slots: Tensor, query_start: Tensor, lengths: Tensor, longest: int) -> None:
        """Who attends: see `paged_attention`."""
        self.slots, self.query_start, self.lengths, self.longest = slots, query_start, lengths, longest

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group, index = self.storage.place(layer)
        self.storage.store(layer, self.rows[group], k, v)
        return self.kernel(
            q, self.storage.keys[index], self.storage.values[index], self.tables[group][self.slots], self.query_start, self.lengths, longest=self.longest, scale=self.config.attention_scale,
            window=self.config.windows[layer], softcap=self.config.attention_softcap,
        )  # fmt: skip
