"""Attention over pages: a sequence's block table says where its keys and values lie.

A step mixes spans of any kind. Row numbers of the storage are computed once per step: where the new keys and values
go, and which rows each span sees. Prompts and their chunks attend one by one, since there are few in a
step; decodes, one row each, attend all at once.

The plain form is phases/p04_paged_cache/attention.py. This one adds a block table per layer group, tables that stay on
the device and receive only changes, and decodes without a gather on a CPU.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.decodes import Decodes, Visible
from gradus.attention.gathered import GatheredDecodes
from gradus.attention.lent import Lent
from gradus.attention.reference import attend_causal
from gradus.attention.sparse import SparseDecodes
from gradus.attention.storage import PagedStorage
from gradus.cache import TableChange
from gradus.device.transfer import upload
from gradus.device.zeros import zeros
from gradus.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Prompt:
    """A span of more than one row. span: its rows in the batch. start: the position of the first.

    seen: for each layer group the position of the oldest key that it sees, and the rows of the storage from there to
    its end; empty for a span that starts at 0, which sees only its own keys.
    """

    span: slice
    start: int
    seen: tuple[tuple[int, Tensor], ...]


Decode = tuple[int, int, int]
"""A span of one row: its position, its slot, and its row in the batch."""

MOST_PADDED = 1 << 16
"""Positions of a step's decodes, padded to the longest, from which sequences of unlike lengths attend apart."""


def block_table_bytes(groups: int, slots: int, context: int, page_size: int) -> int:
    """Bytes of `block_tables`."""
    return groups * slots * -(-context // page_size) * torch.int64.itemsize


def block_tables(storage: PagedStorage, slots: int, context: int) -> Tensor:
    """Make block tables for `slots` sequences of up to `context` positions: int64 [groups, slots, pages of a context].

    A row takes memory on a CPU only once a sequence is long enough to write there.
    """
    return zeros((len(storage.groups), slots, -(-context // storage.page_size)), torch.int64, storage.keys.device)


class PagedAttention:
    """Stores and attends by block tables, and keeps one on the device for each slot and layer group.

    slots: the number of sequences that run at once. tables: `block_tables`, or another model's whose pages have the
    same numbers; by default new ones for the model's whole context. They change seldom (a decode enters a new page
    every page_size steps), so a step sends only changes.
    """

    def __init__(self, config: ModelConfig, storage: PagedStorage, slots: int, tables: Tensor | None = None) -> None:
        self.config = config
        self.storage = storage
        self.device = storage.keys.device
        self.tables = block_tables(storage, slots, config.context_length) if tables is None else tables
        self.lent = Lent(config)
        sparse = SparseDecodes.supports(storage)
        self.decodes: Decodes = SparseDecodes(config, storage) if sparse else GatheredDecodes(config, storage)

    # -- once per step -----------------------------------------------------------------------------------------------

    def prepare(self, batch: Batch) -> None:
        self._begin(batch)
        spans = list(zip(batch.slots, batch.query_start, batch.counts, batch.starts, strict=True))
        self.prompts = [self._prompt(*span) for span in spans if span[2] > 1]
        crowds = alike([(start, slot, row) for slot, row, count, start in spans if count == 1])
        self.crowds = [self._crowd(crowd) for crowd in crowds]

    def _begin(self, batch: Batch) -> None:
        """Begin a step in torch: update pages, and find the places of new keys and values."""
        self.update_pages(batch)
        self._place_new(batch)

    def update_pages(self, batch: Batch) -> None:
        """Begin any step, in torch or in kernels: wipe pages, and update the tables."""
        self.storage.wipe(batch.wiped)
        changes = zip(batch.slots, batch.tables, strict=True)
        self.update_tables([(slot, change) for slot, change in changes if change is not None])

    def update_tables(self, changes: Sequence[tuple[int, TableChange]]) -> None:
        """Apply the changes of slots' block tables.

        Entries past a table's new end remain, because no stored or read position uses them.
        """
        groups, rows, longest = self.tables.shape
        pages, places, table = list[int](), list[int](), rows * longest
        for slot, (kept, taken) in changes:
            tables = self.storage.numbered(taken)
            new = len(tables[0])
            if kept + new > longest:  # the rest would overwrite the next slot's table
                raise ValueError(f"slot {slot} has {kept + new} pages, and its block table room for {longest}")
            first = slot * longest + kept
            if new == groups == 1:  # as nearly always: a decode has entered a page
                places.append(first)
                pages.append(tables[0][0])
                continue
            for group, entries in enumerate(tables):
                places += range(first + group * table, first + group * table + new)
                pages += entries
        if pages:
            self.write_entries(places + pages)

    def write_entries(self, numbers: list[int]) -> None:
        """Write entries of the block tables: their places in the flat tables, then their pages."""
        where, what = upload(numbers, torch.int64, self.device).chunk(2)
        self.tables.view(-1).scatter_(0, where, what)

    def _place_new(self, batch: Batch) -> None:
        """Find the storage rows of this step's keys and values, one for each row of the batch."""
        self.new_rows = [self._rows(group, batch.owners, batch.positions) for group in range(len(self.tables))]

    def _rows(self, group: int, slots: Tensor, positions: Tensor) -> Tensor:
        """The storage rows of slots' positions. Both are int64, with shapes that broadcast."""
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

    def _crowd(self, crowd: Sequence[Decode]) -> tuple[slice | Tensor, Decodes]:
        """Set up decodes that attend side by side. Returns their rows in the batch, and what attends."""
        starts, slots, rows = (list(column) for column in zip(*crowd, strict=True))
        decodes = copy(self.decodes)  # what was made once for all steps is shared
        decodes.prepare(self._visible(slots, starts))
        return _indices(rows, self.device), decodes

    def _visible(self, slots: list[int], positions: list[int]) -> list[Visible]:
        """List the rows that the queries at `positions` of `slots` see, in each layer group."""
        owners = torch.tensor(slots, device=self.device).unsqueeze(1)
        newest = torch.tensor(positions, device=self.device).unsqueeze(1)
        visible = []
        for number, group in enumerate(self.storage.groups):
            oldest = [_oldest(position, group.window) for position in positions]
            width = 1 + max(last - first for first, last in zip(oldest, positions, strict=True))
            seen = torch.tensor(oldest, device=self.device).unsqueeze(1) + torch.arange(width, device=self.device)
            # Past a sequence's end, read its newest row again: a masked NaN is still a NaN, and page 0, or a stale
            # entry of the table, could lead to another sequence's NaN.
            rows = self._rows(number, owners, torch.minimum(seen, newest))
            visible.append(Visible(rows, seen <= newest))
        return visible

    # -- in each layer -----------------------------------------------------------------------------------------------

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if k is not None and v is not None:
            # use the stored values: a prompt's logits must not depend on how it was divided into chunks
            k, v = self.storage.store(layer, self.new_rows[self.storage.place(layer)[0]], k, v)
        k, v = self.lent.through(layer, k, v)
        out = torch.empty_like(q)
        for prompt in self.prompts:
            span = prompt.span
            out[span] = self._attend_prompt(layer, prompt, q[span], k[span], v[span], sinks)
        for rows, decodes in self.crowds:
            out[rows] = decodes.attend(layer, q[rows], sinks)
        return out

    def _attend_prompt(
        self, layer: int, prompt: Prompt, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> Tensor:
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
            sinks=sinks,
        )


def alike(decodes: Sequence[Decode]) -> list[Sequence[Decode]]:
    """Divide decodes into crowds that attend side by side, each padded to its longest.

    One long sequence among many short ones would make padding of as many long ones. So where padding is much, a crowd
    has only sequences of more than half of its longest's positions.
    """
    if len(decodes) * max((start for start, *_ in decodes), default=0) <= MOST_PADDED:
        return [decodes] if decodes else []
    crowds: list[list[Decode]] = []
    for decode in sorted(decodes, reverse=True):
        if not crowds or 2 * decode[0] <= crowds[-1][0][0]:
            crowds.append([])
        crowds[-1].append(decode)
    return [*crowds]


def _oldest(position: int, window: int | None) -> int:
    """The oldest position that the query at `position` sees."""
    return 0 if window is None else max(0, position - window + 1)


def _indices(rows: list[int], device: torch.device) -> slice | Tensor:
    """Make an index of `rows`. Consecutive rows, as decodes mostly are, become a slice, which copies nothing."""
    if rows and rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.int64, device=device)
