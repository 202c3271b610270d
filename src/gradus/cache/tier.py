"""A second tier of the prefix index: memory behind the pool that keeps what the pool gives up.

The tree decides, and a tier moves bytes. Both kinds name a page by what it depends on (`gradus.cache.disk.names`):

    disk/   files behind a CPU's memory: pages are copied when they are published
    host/   host memory behind a GPU's, and files behind that: pages are copied shortly before the pool evicts them
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Protocol

from gradus.cache.disk.names import Trail
from gradus.cache.usage import DiskUsage, HostUsage


class Load(Protocol):
    """Pages on their way back, for one sequence.

    count: the places of its path that were asked for. loaded: the first of them, which are there.
    """

    @property
    def count(self) -> int: ...

    @property
    def loaded(self) -> int: ...

    @property
    def done(self) -> bool: ...


class Tier(ABC):
    """The calls of a cache manager, all from the engine's thread.

    ahead: how many of the oldest idle pages `keep` is called with before they are evicted. 0 for a tier that copies
    pages when they are published.
    """

    ahead = 0

    @abstractmethod
    def trail(self, salt: Hashable, tables: Sequence[list[int]]) -> Trail:
        """Begin a sequence's path. tables: block tables of the pages that it has from the index."""

    @abstractmethod
    def save(self, trail: Trail, tokens: list[int], tables: Sequence[list[int]], end: int) -> None:
        """Take note of a sequence's pages up to page `end`: they are in the index, and count as used now.

        tables: its block tables; entries of 0 are left out. The pages are full, and nothing writes to them any more.
        """

    @abstractmethod
    def discard(self, trail: Trail, tables: Sequence[list[int]], pages: Sequence[int]) -> None:
        """Forget the pages that a sequence has computed, since their numbers may not be finite, and those of its pages
        that leave the index because of that. tables: its block tables. pages: all that leave the index, which may be
        other sequences' as well."""

    @abstractmethod
    def find(
        self, trail: Trail, tokens: list[int], first: int, end: int, windows: Sequence[int | None]
    ) -> list[list[bool]]:
        """Look up pages [first, end) of a sequence: for each layer group, which of them the tier has, or will have.

        windows: of the groups. The lists may end behind a page that a group without a window lacks.
        """

    @abstractmethod
    def load(self, trail: Trail, tables: Sequence[list[int]], first: int, end: int) -> Load:
        """Begin to fill the pages of places [first, end). tables: block tables; entries of 0 are left out.

        The caller holds the pages until the load is done, or stopped. There is one load at a time.
        """

    @abstractmethod
    def stop(self, load: Load) -> None:
        """End a load now, with the places loaded so far. Nothing is written to its other pages afterwards.

        A step that is launched after this call finds the loaded pages whole.
        """

    @abstractmethod
    def wait(self, load: Load, seconds: float) -> None:
        """Wait until the load is done, for at most `seconds`."""

    def start(self) -> None:  # noqa: B027 nothing to do is a right answer
        """Start threads, if there are any."""

    @abstractmethod
    def close(self) -> None:
        """Finish what can be finished soon, and give memory, threads and files back."""

    @property
    def disk_usage(self) -> DiskUsage | None:
        """The files' usage; None without any."""
        return None

    @property
    def host_usage(self) -> HostUsage | None:
        """The host memory's usage; None without any."""
        return None

    # -- the pool's pages come and go: only a tier that copies while steps run has to know -----------------------------

    def settle(self) -> None:  # noqa: B027
        """Take note of copies that are done. Called before every step."""

    def keep(self, pages: list[int]) -> None:  # noqa: B027
        """Copy pages that will be evicted next, the least recently used first."""

    def use(self, trail: Trail, starts: Sequence[int], end: int) -> None:  # noqa: B027
        """Count pages [start, end) of each layer group as used now. They are loaded next, and the copies that make room
        for that must not take their places."""

    def evicted(self, pages: list[int]) -> None:  # noqa: B027
        """Take note that the index has no use for these pages any more. They still have their contents."""

    def taken(self, pages: list[int], load: bool) -> None:  # noqa: B027
        """Take note that what is launched from now on may write to these pages: steps, or if `load` says so, only the
        load that is begun next."""

    def check(self) -> None:  # noqa: B027
        """Assert the invariants."""
