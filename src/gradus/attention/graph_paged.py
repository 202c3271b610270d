"""Paged attention whose steps may be part of a CUDA graph.

A step of decodes is set up entirely on the device, from slots and lengths, so all of it may be captured. A step with
prompts is set up by the host, since its launches depend on the prompts' lengths. If it is padded to one of a few
numbers of rows, its launches depend on nothing else: the layers may then be captured, and the set-up fills in their
inputs.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import triton
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.device.transfer import Staging, current, upload, upload_parts
from gradus.kernels.step.places import places
from gradus.kernels.step.rows import StepRows, VerifyRows
from gradus.kernels.step.table_entries import set_entries
from gradus.models.config import ModelConfig

MOST_PADDED = 8192
"""Most rows of a captured step with prompts."""


class GraphPagedAttention(TritonPagedAttention):
    """slots: one more than run at once. The last belongs to no sequence: its block table is all 0, for padding rows.

    sizes: rows of the captured steps with prompts, smallest first. padded: the size that `prepare` or `prepare_beside`
    has padded the current step to; 0 if it has more rows than any size.
    """

    sizes: Sequence[int] = ()
    padded: int = 0

    def __init__(self, config: ModelConfig, storage: PagedStorage, slots: int, tables: Tensor | None = None) -> None:
        super().__init__(config, storage, slots, tables)
        self.padding = slots - 1
        # of the entries that decodes change in a step: seldom more than one per slot and group
        self._entries = Staging((1 + 2 * len(storage.groups) * slots,), torch.int64, self.device)
        self._replays: list[Callable[[], object]] = []  # by buffer: the launch that reads it
        self._counting = torch.arange(slots + 1, dtype=torch.int32, device=self.device)
        self._places = torch.zeros(len(storage.groups), MOST_PADDED, dtype=torch.int64, device=self.device)
        self._nowhere = torch.zeros(MOST_PADDED, dtype=torch.int64, device=self.device)  # places of padding, in page 0

    def write_entries(self, numbers: list[int]) -> None:
        numbers = [len(numbers) // 2, *numbers]
        if len(numbers) > len(self._entries.buffers[0]):  # in a step with new prompts
            with current(self.device):
                set_entries(self.tables, upload(numbers, torch.int64, self.device))
            return
        self._entries.fill()[: len(numbers)] = numbers
        with self._entries.lent() as turn:
            if self._replays:
                self._replays[turn]()
            else:
                set_entries(self.tables, self._entries.buffers[turn])

    def capture_entries(self, record: Callable[[Callable[[], None]], Callable[[], object]]) -> None:
        """Record the launches that write entries: a replay takes the host less time. record: returns a launch's
        replay."""
        self._replays = [record(partial(set_entries, self.tables, buffer)) for buffer in self._entries.buffers]

    def drop_captured(self) -> None:
        """Delete the graphs that write entries."""
        self._replays = []

    def wipe(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros."""
        self.storage.wipe(pages)

    def prepare_decodes(self, slots: Tensor, lengths: Tensor, stored: Tensor | None = None) -> None:
        """Set up one row for each of these slots, int32 [B]. lengths: int32 [B], including the new token. May be
        captured.

        A length of 0 is padding: its row attends to nothing, and in the last slot it is stored in page 0. stored:
        int64 [G, B], where the rows' keys and values go, if that is known.
        """
        rows = len(slots)
        self.plan(slots, self._counting[: rows + 1], lengths, [1] * rows)
        if not self.fuses_rope:  # attention that stores for itself finds the place in the block table
            found = places(slots, lengths, self.tables, self.storage.page_size) if stored is None else stored
            self.new_rows = list(found)

    def prepare_drafts(self, slots: Tensor, rows: VerifyRows, most: int) -> None:
        """Set up a span of up to `most` rows for each of these slots, int32 [B]. rows: their number. May be
        captured."""
        self.fuses_rope = self.may_fuse_rope and all(tiles.takes_in(most) for tiles in self.tiles)
        self.works = self._no_works()
        for tiles in self.tiles:
            number = tiles.holding(most)
            count = len(slots) * triton.cdiv(most, tiles.tokens[number])
            self._plan_spans(tiles, tiles.launches[number], slots, rows.query_start, rows.lengths, 1, most, count)
        if not self.fuses_rope:
            self.new_rows = list(rows.places)

    # -- steps with prompts --------------------------------------------------------------------------------------------

    def prepare(self, batch: Batch) -> None:
        self._begin(batch)
        self._set_up(batch)

    def prepare_beside(self, rows: StepRows, prompts: Batch) -> None:
        """Set up decodes, one row each, followed by prompts. The tables and wiped pages are up to date."""
        self._place_new(prompts)
        self.new_rows = [torch.cat(each) for each in zip(rows.places, self.new_rows, strict=True)]
        self._set_up(prompts, rows)

    def _set_up(self, prompts: Batch, decodes: StepRows | None = None) -> None:
        """Divide the attention work of rows that have their places already: decodes, then prompts."""
        count = 0 if decodes is None else len(decodes.slots)
        starts = [count + start for start in prompts.query_start]
        rows = starts[-1] + prompts.counts[-1]
        owners, ends, query_start = prompts.slots, prompts.lengths, [*range(count), *starts, rows]
        self.padded = next((size for size in self.sizes if size >= rows), 0)
        if self.padded:  # one more span, which sees nothing
            owners, ends, query_start = [*owners, self.padding], [*ends, 0], [*query_start, self.padded]
            self.new_rows = self._padded_places(self.new_rows)
        slots, lengths, begins = upload_parts([owners, ends, query_start], torch.int32, self.device)
        if decodes is not None:
            slots, lengths = torch.cat([decodes.slots, slots]), torch.cat([decodes.ends, lengths])
        if self.padded:
            self._plan_padded(slots, begins, lengths)
        else:
            self.plan(slots, begins, lengths, [1] * count + prompts.counts)

    def _padded_places(self, new_rows: list[Tensor]) -> list[Tensor]:
        """Copy the places to where captured steps read them, and add places in page 0 for padding."""
        for place, rows in zip(self._places, new_rows, strict=True):
            torch.cat([rows, self._nowhere[: self.padded - len(rows)]], out=place[: self.padded])
        return [place[: self.padded] for place in self._places]

    def _plan_padded(self, slots: Tensor, query_start: Tensor, lengths: Tensor) -> None:
        """Divide the work like `plan`, with launches that depend only on the padded number of rows.

        Short spans, such as decodes, have the smallest tiles. Longer ones have tiles that hold the whole step, or
        else the tallest. The number of rows bounds the tiles of each launch.
        """
        self.fuses_rope = False
        size, spans = self.padded, (slots, query_start, lengths)
        self.works = self._no_works()
        for tiles in self.tiles:
            number = tiles.holding(size)
            short = tiles.tokens[0] if number else size
            # a slot has one span, and a short one fits one tile
            crowd = min(size, self.padding + 1) if number else size
            self._plan_spans(tiles, tiles.launches[0], *spans, 1, short, crowd)
            if number:
                count = size // (short + 1) + size // tiles.tokens[number]  # a span's last tile is not full
                self._plan_spans(tiles, tiles.launches[number], *spans, short + 1, size, count)
