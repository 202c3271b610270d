"""Looks at a watched engine: its pages, its batch, its queue, its prefix tree and its newest steps.

The loop asks between two steps, at most ten times per second, and only while somebody watches. Looking takes time that
the engine would spend on steps, so the next look waits until it is at most SHARE of the time: a large batch on a large
pool is shown less often. Whatever grows with clients is bounded: the queue by MOST_QUEUED, the tree by MOST_NODES.

Engines differ. A phase without pages has a batch, a queue and steps; a cache with pages has a `pool`; one
with a prefix index also has `tree` or, read faster, `largest_nodes`. The final engine's scheduler knows `progress`.
"""

from array import array
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from gradus.cache.inspection import States, page_changes, sizes_of
from gradus.engine.core import Core, Watchable
from gradus.engine.sequence import Sequence
from gradus.server.engine.messages import ROW, Watched
from gradus.server.engine.steps import HandleOf, StepRecorder, microseconds, packed_rows

INTERVAL_S = 0.1
TREE_INTERVAL_S = 1.0
SHARE = 1 / 200  # the most that looking takes of the engine's time
MOST_QUEUED = 100
MOST_NODES = 300
RUN_BYTES = 12  # of a run of changed pages


class Watching:
    """The state of one engine, look by look. handle_of: names its samples. next_look: when the next one may be, by
    `time.monotonic`; clients that come and go again and again get no more looks than one that stays."""

    def __init__(self, core: Core, handle_of: HandleOf, next_look: float = 0.0) -> None:
        self._core = core
        self._handle_of = handle_of
        parts = core.parts if isinstance(core, Watchable) else None
        self._steps = None if parts is None else StepRecorder(parts, handle_of)
        self._scheduler: Any = None if parts is None else parts.scheduler
        self._cache: Any = getattr(self._scheduler, "cache", None)
        self._pool: Any = getattr(self._cache, "pool", None)
        self._pages: States | None = None  # as the newest look found them
        self.next_look = next_look
        self._next_tree = 0.0

    def stop(self) -> None:
        if self._steps is not None:
            self._steps.stop()

    def wait(self, now: float) -> float:
        """Return the seconds until the next look; 0 if it is due. now: as `time.monotonic`."""
        return max(0.0, self.next_look - now)

    def look(self, now: float) -> Watched:
        """Look at the engine now. now: as `time.monotonic`."""
        found = Watched(microseconds(), waiting=self._core.waiting_count)
        if self._steps is not None:
            found.steps, found.events = self._steps.take()
            self._add_rows(found)
            found.queue = packed_rows(self._queued())
        if self._pool is not None:
            self._add_pages(found)
        if now >= self._next_tree:
            self._add_tree(found)
            self._next_tree = now + TREE_INTERVAL_S
        return found

    def shown(self, now: float, seconds: float) -> None:
        """Wait with the next look until those that took `seconds`, with posting, are at most SHARE of the time."""
        self.next_look = now + max(INTERVAL_S, seconds / SHARE)

    # -- the batch and the queue ---------------------------------------------------------------------------------------

    def _add_rows(self, found: Watched) -> None:
        handles, rows = array("q"), array("i")
        for sequence in self._scheduler.running:
            handle = self._handle_of(sequence.request_id, sequence.index)
            if handle is None:
                continue
            stored, decodes = self._progress(sequence)
            accepted = 0 if self._steps is None else self._steps.accepted.get(sequence.slot, 0)
            handles.append(handle)
            pages, prompt = self._page_count(sequence), len(sequence.request.prompt)
            rows.extend((sequence.slot, stored, prompt, decodes, pages, accepted))
        found.handles, found.rows = handles.tobytes(), rows.tobytes()

    def _progress(self, sequence: Sequence) -> tuple[int, bool]:
        if hasattr(self._scheduler, "progress"):
            progress: tuple[int, bool] = self._scheduler.progress(sequence)
            return progress
        stored: int = self._cache.stored(sequence.id)
        return stored, stored >= len(sequence.request.prompt)

    def _page_count(self, sequence: Sequence) -> int:
        if hasattr(self._cache, "page_count"):
            count: int = self._cache.page_count(sequence.id)
            return count
        tables = self._cache.tables(sequence.id) if hasattr(self._cache, "tables") else ()
        return sum(page > 0 for table in tables for page in table)

    def _queued(self) -> list[tuple[int, int, int]]:
        """List the first samples of the queue: see QUEUED. Those that would start early come first, mostly."""
        waiting: Any = getattr(self._scheduler, "waiting", ())
        some: Iterable[Sequence] = (
            waiting.some(MOST_QUEUED) if hasattr(waiting, "some") else islice(waiting, MOST_QUEUED)
        )
        found = []
        for sequence in some:
            handle = self._handle_of(sequence.request_id, sequence.index)
            if handle is not None:
                waited = int(1e6 * (sequence.clock() - sequence.arrived))
                found.append((handle, waited, sequence.request.scheduling.priority))
        return found

    # -- the cache -----------------------------------------------------------------------------------------------------

    def _add_pages(self, found: Watched) -> None:
        """Add the state of every page to the first look, and the changes to later ones, if those are shorter."""
        before, pages = self._pages, self._pool.states()
        self._pages = pages
        found.page_count, found.page_size = len(pages), self._cache.page_size
        if before is not None:
            runs = page_changes(before, pages)
            if len(runs) * RUN_BYTES < len(pages):
                found.pages = np.ascontiguousarray(runs).tobytes()
                return
        found.whole, found.pages = True, pages.tobytes()

    def _add_tree(self, found: Watched) -> None:
        if hasattr(self._cache, "largest_nodes"):
            nodes = self._cache.largest_nodes(MOST_NODES)
        elif self._pool is not None and hasattr(self._cache, "tree"):
            nodes = sizes_of(self._cache.tree(), self._pool.references, MOST_NODES)
        else:
            nodes = None
        if nodes is not None:
            found.tree = array("i", [value for node in nodes for value in node]).tobytes()


assert len(ROW) == 6
