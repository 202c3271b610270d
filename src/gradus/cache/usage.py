"""The cache's use and waste, for reports and `/stats`."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Pages on disk, and what was done with them since the start.

    files, bytes: of all models that share the directory; most_bytes: its limit. hit_positions: tokens whose pages were
    read back. queued: pages that wait to be written. lost: pages that were not written, for lack of room or because
    writing failed. damaged: files that were dropped because they could not be used.
    """

    files: int
    bytes: int
    most_bytes: int
    hit_positions: int
    written_bytes: int
    queued: int
    lost: int
    damaged: int


@dataclass(frozen=True, slots=True)
class HostUsage:
    """Pages in host memory behind a GPU's, and what was done with them since the start.

    pages, most_pages: there now, and at most; page_bytes: of each. hit_positions: tokens whose pages were copied back,
    from host memory or from files. copied_pages: out of the GPU. evictions: pages that went for newer ones.
    lost: pages that the GPU gave up before they could be copied.
    """

    pages: int
    most_pages: int
    page_bytes: int
    hit_positions: int
    copied_pages: int
    evictions: int
    lost: int


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """The pool at one moment, and its history.

    pages: their number, `page_size` positions each; pages = held + idle + free.
    stored_positions: positions in held pages that store something. A page that several sequences share counts once; a
        position counts once for each layer group.
    longest_free_run: the most free pages with consecutive numbers.
    queried_positions, hit_positions: tokens of the sequences that were admitted and found room, and the number of them
        that the prefix index had.
    evictions: pages that the index removed for room. refusals: how often `reserve` found no room. Caches that do not
        count these four leave them at 0.
    disk, host: None for a cache that keeps no pages on disk, or in host memory behind a GPU's.
    """

    pages: int
    page_size: int
    held: int
    idle: int
    free: int
    stored_positions: int
    longest_free_run: int
    queried_positions: int = 0
    hit_positions: int = 0
    evictions: int = 0
    refusals: int = 0
    disk: DiskUsage | None = None
    host: HostUsage | None = None

    @property
    def utilization(self) -> float:
        """The fraction of all pages that sequences hold."""
        return self.held / self.pages

    @property
    def internal_fragmentation(self) -> float:
        """The fraction of the positions in held pages that store nothing: the unfilled ends of last pages."""
        return 1 - self.stored_positions / (self.held * self.page_size) if self.held else 0.0

    @property
    def external_fragmentation(self) -> float:
        """How scattered the free pages are: 1 - longest run / free. Harmless, since a block table needs no run."""
        return 1 - self.longest_free_run / self.free if self.free else 0.0

    @property
    def hit_rate(self) -> float:
        """The fraction of the admitted tokens that did not have to be computed."""
        return self.hit_positions / self.queried_positions if self.queried_positions else 0.0


AGE_S = 1.0


class Snapshot:
    """A usage that is read after every step but updated once per second, because an update takes time per page."""

    def __init__(self, take: Callable[[], CacheUsage], clock: Callable[[], float]) -> None:
        self._take, self._clock = take, clock
        self._taken, self._at = take(), -math.inf

    def look(self, *, now: bool) -> CacheUsage:
        """Return the usage now, or one up to AGE_S seconds old."""
        time = self._clock()
        if now or time - self._at > AGE_S:
            self._taken, self._at = self._take(), time
        return self._taken
