"""Attention over pages: the keys and values of a sequence lie wherever its block table says.

A step mixes spans of any kind. What all of them need is worked out once per step, as row numbers of the storage: where
the new keys and values go, and which rows each span sees. Prompts and their chunks are attended to one by one, since
there are few in a step; the decodes, one row each, all at once.

The plain form is phases/p04_paged_cache/attention.py. This one adds a block table per layer group, tables that stay on
the device and are told only their changes, and decodes without a gather on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.decodes import Decodes, Visible
from gradus.attention.gathered import GatheredDecodes
from gradus.attention.reference import attend_causal
from gradus.attention.sparse import SparseDecodes
from gradus.attention.storage import PagedStorage
from gradus.cache import TableChange
from gradus.device.transfer import Staging, upload
from gradus.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Prompt:
    """A span of more than one row: `span` are its rows in the batch, `start` the position of the first.

    seen: for each layer group the position of the oldest key that it sees, and the rows of the storage from there to
    its end; empty for a span that starts at 0, which holds all that it sees.
    """

    span: slice
    start: int
    seen: tuple[tuple[int, Tensor], ...]


class PagedAttention:
    """Stores and attends by block tables, of which it keeps one for each slot and layer group on the device.

    slots: how many sequences run at once. Tables change seldom (a decode enters a new page every page_size steps), so a
    step sends only those that did.
    """

    def __init__(self, config: ModelConfig, storage: PagedStorage, slots: int) -> None:
        self.config = config
        self.storage = storage
        self.device = storage.keys.device
        longest = -(-config.context_length // storage.page_size)
        self.tables = torch.zeros(len(storage.groups), slots, longest, dtype=torch.int64, device=self.device)
        # places and pages for the changes of a step of decodes: of each, seldom more than one per group
        self._told = torch.zeros(2 * len(storage.groups) * slots, dtype=torch.int64, device=self.device)
        self._staging = Staging(self._told.shape, torch.int64, self.device)
        sparse = SparseDecodes.supports(storage)
        self.decodes: Decodes = SparseDecodes(config, storage) if sparse else GatheredDecodes(config, storage)

    # -- once per step -----------------------------------------------------------------------------------------------

    def prepare(self, batch: Batch) -> None:
        self._begin(batch)
        spans = list(zip(batch.slots, batch.query_start, batch.counts, batch.starts, strict=True))
        self.prompts = [self._prompt(*span) for span in spans if span[2] > 1]
        decodes = [(slot, row, start) for slot, row, count, start in spans if count == 1]
        self.decode_rows = _indices([row for _, row, _ in decodes], self.device)
        self.any_decodes = bool(decodes)
        if decodes:
            self.decodes.prepare(self._visible([slot for slot, _, _ in decodes], [start for _, _, start in decodes]))

    def _begin(self, batch: Batch) -> None:
        """What every step in torch starts with: pages in order, and places for what is new."""
        self.update_pages(batch)
        self._place_new(batch)

    def update_pages(self, batch: Batch) -> None:
        """What every step starts with, in torch and in kernels: pages wiped, tables up to date."""
        self.storage.wipe(batch.wiped)
        self.update_tables(batch.slots, batch.tables)

    def update_tables(self, slots: Sequence[int], changes: Sequence[TableChange | None]) -> None:
        """Take over what has changed in the block tables of these slots.

        Entries beyond the new end of a table stay as they were: no position that is stored or read leads there.
        """
        _, rows, longest = self.tables.shape
        pages: list[int] = []
        places: list[int] = []
        for slot, change in zip(slots, changes, strict=True):
            if change is None:  # as it is with most decodes
                continue
            kept, tables = change
            for group, new in enumerate(tables):
                if kept + len(new) > longest:  # the rest would land in the next slot's table
                    raise ValueError(f"slot {slot} has {kept + len(new)} pages, and its block table room for {longest}")
                first = (group * rows + slot) * longest + kept
                places += range(first, first + len(new))
                pages += new
        if pages:
            where, what = self._upload(places + pages).chunk(2)
            self.tables.view(-1).scatter_(0, where, what)

    def _upload(self, numbers: list[int]) -> Tensor:
        """Numbers on the device: int64 [len(numbers)], until the next call."""
        if len(numbers) > len(self._told):  # prompts begin
            return upload(numbers, torch.int64, self.device)
        told = self._told[: len(numbers)]
        self._staging.fill()[: len(numbers)] = numbers
        self._staging.send(told)
        return told

    def _place_new(self, batch: Batch) -> None:
        """The rows that this step's keys and values are stored in, one for each row of the batch."""
        self.new_rows = [self._rows(group, batch.owners, batch.positions) for group in range(len(self.tables))]

    def _rows(self, group: int, slots: Tensor, positions: Tensor) -> Tensor:
        """Where positions of slots are stored. Both int64, of shapes that broadcast."""
        page_size = self.storage.page_size
        return self.tables[group, slots, positions // page_size] * page_size + positions % page_size

    def _prompt(self, slot: int, row: int, count: int, start: int) -> Prompt:
        span = slice(row, row + count)
        if start == 0:
            return Prompt(span, start, ())
        owner = torch.tensor(slot, device=self.device)
        oldest = [_oldest(start, group.window) for group in self.storage.groups]
        rows = [
            self._rows(group, owner, torch.arange(first, start + count, device=self.device))
            for group, first in enumerate(oldest)
        ]
        return Prompt(span, start, tuple(zip(oldest, rows, strict=True)))

    def _visible(self, slots: list[int], positions: list[int]) -> list[Visible]:
        """What the queries at `positions` of `slots` see, in each layer group."""
        owners = torch.tensor(slots, device=self.device).unsqueeze(1)
        newest = torch.tensor(positions, device=self.device).unsqueeze(1)
        visible = []
        for number, group in enumerate(self.storage.groups):
            oldest = [_oldest(position, group.window) for position in positions]
            width = 1 + max(last - first for first, last in zip(oldest, positions, strict=True))
            seen = torch.tensor(oldest, device=self.device).unsqueeze(1) + torch.arange(width, device=self.device)
            # Read the newest row again beyond a sequence's end: a masked NaN is still a NaN, and page 0, or a stale
            # entry of the table, could lead to another sequence's.
            rows = self._rows(number, owners, torch.minimum(seen, newest))
            visible.append(Visible(rows, seen <= newest))
        return visible

    # -- in each layer -----------------------------------------------------------------------------------------------

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # as they are stored: a prompt's logits may not depend on which of its tokens came in an earlier chunk
        k, v = self.storage.store(layer, self.new_rows[self.storage.place(layer)[0]], k, v)
        out = torch.empty_like(q)
        for prompt in self.prompts:
            out[prompt.span] = self._attend_prompt(layer, prompt, q[prompt.span], k[prompt.span], v[prompt.span])
        if self.any_decodes:
            out[self.decode_rows] = self.decodes.attend(layer, q[self.decode_rows])
        return out

    def _attend_prompt(self, layer: int, prompt: Prompt, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = 0
        if prompt.seen:
            first, rows = prompt.seen[self.storage.place(layer)[0]]
            k, v = self.storage.read(layer, rows)
        return attend_causal(
            q,
            k.transpose(0, 1),
            v.transpose(0, 1),
            start=prompt.start - first,
            scale=self.config.attention_scale,
            window=self.config.windows[layer],
            softcap=self.config.attention_softcap,
        )


def _oldest(position: int, window: int | None) -> int:
    """The oldest position that the query at `position` sees."""
    return 0 if window is None else max(0, position - window + 1)


def _indices(rows: list[int], device: torch.device) -> slice | Tensor:
    """`rows` as an index: rows that follow each other, as decodes mostly do, need not be copied to be picked."""
    if rows and rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.int64, device=device)
