"""Paged attention whose steps of decodes are set up on the device alone, from slots and lengths.

So all of such a step may be part of a CUDA graph.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.kernels.decode_inputs import places
from gradus.models.config import ModelConfig


class GraphPagedAttention(TritonPagedAttention):
    """slots: one more than run at once. The last belongs to no sequence: its block table is all 0, for padding rows."""

    def __init__(self, config: ModelConfig, storage: PagedStorage, slots: int) -> None:
        super().__init__(config, storage, slots)
        self._counting = torch.arange(slots + 1, dtype=torch.int32, device=self.device)

    def wipe(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros."""
        self.storage.wipe(pages)

    def prepare_decodes(self, slots: Tensor, lengths: Tensor) -> None:
        """One row for each of these slots, int32 [B], whose lengths, int32 [B], count the new token. May be captured.

        A length of 0 is padding: its row attends to nothing, and in the last slot it is stored in page 0.
        """
        rows = len(slots)
        self.plan(slots, self._counting[: rows + 1], lengths, [1] * rows)
        if not self.turns:  # attention that stores for itself finds the place in the block table
            self.new_rows = list(places(slots, lengths, self.tables, self.storage.page_size))
