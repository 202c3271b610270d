"""Paged attention whose steps of decodes are set up on the device alone, from slots and lengths.

So all of such a step may be part of a CUDA graph.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.device.transfer import upload_parts
from gradus.kernels.decode_inputs import places
from gradus.kernels.draft_rows import DraftRows
from gradus.kernels.new_token import MOST_NEW
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

    def prepare_drafts(self, slots: Tensor, rows: DraftRows, most: int) -> None:
        """Spans of up to `most` rows for each of these slots, int32 [B]; how many each has, `rows` says. May be
        captured."""
        tokens = [launch.rows // self.group for launch in self.launches]
        # in 8 bits a tall tile has no registers left to take new keys in
        tallest = tokens[0] if self.storage.scales(0) is not None else tokens[-1]
        self.turns = self.may_turn and most <= min(MOST_NEW, tallest)
        number = next((number for number, each in enumerate(tokens) if each >= most), len(tokens) - 1)
        tiles = len(slots) * triton.cdiv(most, tokens[number])
        self.works = {}
        for window in {group.window for group in self.storage.groups}:
            work = self._work(self.launches[number], window, triton.next_power_of_2(tiles))
            work.lay_out(slots, rows.query_start, rows.lengths, most=most)
            self.works[window] = [work]
        if not self.turns:
            self.new_rows = list(rows.places)

    def prepare_beside(self, rows: DraftRows, prompts: Batch) -> None:
        """The rows of decodes, one each, and after them those of prompts, whose pages are up to date."""
        count = len(rows.slots)
        self._place_new(prompts)
        self.new_rows = [torch.cat(each) for each in zip(rows.places, self.new_rows, strict=True)]
        starts = [count + start for start in prompts.query_start]
        parts = prompts.slots, prompts.lengths, [*range(count), *starts, starts[-1] + prompts.counts[-1]]
        slots, lengths, query_start = upload_parts(parts, torch.int32, self.device)
        slots, lengths = torch.cat([rows.slots, slots]), torch.cat([rows.ends, lengths])
        self.plan(slots, query_start, lengths, [1] * count + prompts.counts)
