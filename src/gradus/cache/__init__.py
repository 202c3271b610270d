"""Where keys and values are kept, as numbers: which positions are stored, on which pages. Never a tensor, no torch.

The protocol that every cache manager follows stands below. Then read:

    pool.py         pages, handed out by reference count;  idle.py: those that only the index keeps, in LRU order
    paged.py        the final engine's cache manager
    radix.py        the prefix index: tokens to pages
    groups.py       layers whose pages live and die together;  windows.py: how many pages a window needs
    usage.py        how full a cache is
    inspection.py   what a cache shows of itself to a probe
"""

from collections.abc import Hashable
from typing import NamedTuple, Protocol


class TableChange(NamedTuple):
    """What is new in a sequence's block tables since its last plan. A snapshot: it stays as it is.

    pages: a tuple per layer group, all equally long: what follows the first `kept` entries, which have not changed.
    """

    kept: int
    pages: tuple[tuple[int, ...], ...]


class CacheManager(Protocol):
    """Decides what is stored and where; the attention backend owns the tensors themselves.

    A sequence is known by its id alone. "Stored" counts positions from 0 whose keys and values will be there once
    every step planned so far has run.
    """

    def fits(self, length: int, longest_span: int) -> bool:
        """Whether a sequence of `length` positions, run in spans of at most `longest_span`, could ever be served."""

    def stored(self, id: Hashable) -> int:
        """How many positions of the sequence are stored: the next span starts here. 0 for one never seen."""

    def reserve(self, id: Hashable, end: int) -> bool:
        """Make room so that positions [0, end) are stored after this step: all or nothing, False if there is none."""

    def table_change(self, id: Hashable) -> TableChange | None:
        """What is new in the sequence's block tables since this was last asked; None if nothing is, or no pages are."""

    def release(self, id: Hashable) -> None:
        """Forget the sequence and free its room. A sequence never seen is no mistake."""

    def check(self) -> None:
        """Assert the invariants: tests call it after every step, the server when it is idle."""
