"""The bookkeeping of keys and values: which positions are stored, on which pages. No tensors, no torch.

The protocol of every cache manager is below. Then read:

    pool.py         pages, handed out by reference count;  idle.py: pages that only the index keeps, in LRU order
    paged.py        the final engine's cache manager
    radix.py        the prefix index: tokens to pages
    groups.py       layers that share block tables;  windows.py: the number of pages that a window needs
    tier.py         what the pool gives up;  disk/: files behind a CPU's memory;  host/: memory behind a GPU's
    usage.py        how full a cache is;  capacity.py: sequences of each length that it holds
    inspection.py   a cache's state for a probe
"""

from collections.abc import Hashable
from typing import NamedTuple, Protocol


class TableChange(NamedTuple):
    """The change of a sequence's block tables since its last plan: a snapshot, which never changes.

    pages: one tuple per layer group, all equally long: the entries after the first `kept`, which are unchanged.
    """

    kept: int
    pages: tuple[tuple[int, ...], ...]


class CacheManager(Protocol):
    """Decides what is stored and where; the attention backend owns the tensors themselves.

    A sequence is known only by its id. "Stored" counts positions from 0 whose keys and values will exist once
    every step planned so far has run.
    """

    def fits(self, length: int, longest_span: int) -> bool:
        """Whether a sequence of `length` positions, run in spans of at most `longest_span`, could ever be served."""

    def stored(self, id: Hashable) -> int:
        """The number of the sequence's stored positions, where its next span starts. 0 for a sequence never seen."""

    def reserve(self, id: Hashable, end: int) -> bool:
        """Make room so that positions [0, end) are stored after this step: all or nothing. False if there is no
        room."""

    def table_change(self, id: Hashable) -> TableChange | None:
        """The change of the sequence's block tables since the last call; None if there is none, or no pages."""

    def release(self, id: Hashable) -> None:
        """Forget the sequence and free its room. A sequence never seen is allowed."""

    def check(self) -> None:
        """Assert the invariants. Tests call it after every step, the server when it is idle."""
