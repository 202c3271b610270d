"""Paged attention whose steps of decodes are set up on the device alone, from who decodes and how far.

So all of such a step may be a part of a CUDA graph.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradus.attention.triton_paged import TritonPagedAttention


class GraphPagedAttention(TritonPagedAttention):
    """slots: one more than run at once. The last one is nobody's: its block table is all 0, and padding goes there."""

    def wipe(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros."""
        self.storage.wipe(pages)

    def prepare_decodes(self, slots: Tensor, lengths: Tensor) -> None:
        """One row each of these slots, int32 [B], whose lengths, int32 [B], count the new token. Captured as it is.

        A length of 0 is padding: its row is stored in page 0, if the slot is nobody's, and attends to nothing.
        """
        rows = len(slots)
        owners, positions = slots.long(), (lengths.long() - 1).clamp_(min=0)
        self.new_rows = [self._rows(group, owners, positions) for group in range(len(self.tables))]
        query_start = torch.arange(rows + 1, dtype=torch.int32, device=self.device)
        self.plan(slots, query_start, lengths, [1] * rows)
