"""The tier of the prefix index on disk: what a step hands over, and pages on their way back.

    publish ─▶ save: a copy of each new page, in a queue ─▶ the tier's thread writes files
    a sequence is next ─▶ a Load: pages of the pool, held ─▶ the thread reads and checks files, and fills the pages
                                                             ─▶ they enter the index, and the sequence hits them

A step copies the pages that it has just computed, and never waits for a file. The thread fills only pages that the load
holds, so no other sequence reads or writes them. Loads go before writes.

A full disk, or one that is slower than the engine, costs what was not written and nothing else.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gradus.cache.disk.folder import PrefixFolder
from gradus.cache.disk.names import Names, Trail
from gradus.cache.tier import Load, Tier
from gradus.cache.usage import DiskUsage

log = logging.getLogger(__name__)

WORTH_TOKENS = 256  # shorter sequences are not saved: they are computed in about a second
STEP_BYTES = 16 << 20  # copied by one step: some milliseconds
QUEUE_BYTES = 64 << 20  # copied and not yet written
PAUSE_S = 60.0  # without writing, after a write that failed
GRACE_S, TOKEN_S = 0.25, 0.001
"""A load may take the first, and the second for each token that it has loaded: a slower one ends there, and the rest of
the prompt is computed."""
CLOSE_S = 8.0  # to write what is queued at the end


class Store(Protocol):
    """The memory of the pages. page_bytes: of one page, in all layers of its group."""

    @property
    def page_bytes(self) -> int: ...

    def copy_out(self, page: int) -> bytes | bytearray | memoryview:
        """Copy a page's bytes."""

    def copy_in(self, page: int, data: memoryview) -> None:
        """Replace a page's bytes."""


@dataclass(slots=True, eq=False)
class Reading:
    """Pages that are read for a sequence.

    places: for each place of its path that is read, the names of files, and the pages to fill. loaded: places filled.
    """

    places: list[list[tuple[str, int]]]
    loaded: int = 0
    done: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def count(self) -> int:
        return len(self.places)


class DiskTier(Tier):
    """Saves and loads pages of one engine. The engine's thread makes all calls but `work`.

    Raises ConfigError if the directory's size is less than a page.
    """

    def __init__(self, folder: PrefixFolder, names: Names, store: Store, page_size: int) -> None:
        folder.check_room(store.page_bytes)
        self._folder, self._names, self._store, self._page_size = folder, names, store, page_size
        self._changed = threading.Condition()  # guards all below; `wait` waits for a load's end
        self._queue: dict[str, tuple[bytes | bytearray | memoryview, int]] = {}  # by name: its bytes, and its order
        self._writing: str | None = None  # of the queue
        self._used: deque[tuple[str, int]] = deque()  # names and orders
        self._unwanted: deque[str] = deque()
        self._load: Reading | None = None
        self._period = 0  # begins anew when queued pages are lost
        self._resumes = 0.0
        self._closing = False
        self._thread: threading.Thread | None = None
        self.hit_positions = self.lost = 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="prefixes on disk", daemon=True)
        self._thread.start()

    def close(self, patience: float = CLOSE_S) -> None:
        """Write what is queued, for at most `patience` seconds, and let another engine use the directory."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(patience)
        self._folder.close()

    # -- saving --------------------------------------------------------------------------------------------------------

    def trail(self, salt: Hashable, tables: Sequence[list[int]]) -> Trail:
        return self._names.trail(salt, time.time_ns())

    def save(self, trail: Trail, tokens: list[int], tables: Sequence[list[int]], end: int) -> None:
        """Hand over the pages that are not on disk, or as many as one step may copy."""
        if len(tokens) < WORTH_TOKENS or time.monotonic() < self._resumes or self._closing:
            return
        if trail.writes != self._period:
            trail.writes, trail.saved = self._period, 0
        self._names.extend(trail, tokens, end)
        with self._changed:
            self._save(trail, tables, end)
            self._changed.notify_all()

    def _save(self, trail: Trail, tables: Sequence[list[int]], end: int) -> None:
        size = self._store.page_bytes
        left = max(min(STEP_BYTES, QUEUE_BYTES - len(self._queue) * size) // size, not self._queue)
        while trail.saved < end:
            order = trail.order(trail.saved)
            for group, table in enumerate(tables):
                name = self._names.name(trail, trail.saved, group)
                if name in self._folder:
                    self._used.append((name, order))
                elif table[trail.saved] and name not in self._queue:
                    if left <= 0:
                        return  # the next call goes on here
                    self._queue[name] = self._store.copy_out(table[trail.saved]), order
                    left -= 1
            trail.saved += 1

    def discard(self, trail: Trail, tables: Sequence[list[int]], pages: Sequence[int]) -> None:
        left = set(pages)
        with self._changed:
            for place in range(trail.end):
                for group, table in enumerate(tables):
                    if place < trail.found and table[place] not in left:
                        continue  # the sequence has not computed it, and others hold it
                    name = self._names.name(trail, place, group)
                    self._queue.pop(name, None)
                    if name == self._writing or name in self._folder:
                        self._unwanted.append(name)
            self._changed.notify_all()

    # -- loading -------------------------------------------------------------------------------------------------------

    def find(
        self, trail: Trail, tokens: list[int], first: int, end: int, windows: Sequence[int | None]
    ) -> list[list[bool]]:
        groups = len(windows)
        self._names.extend(trail, tokens, end)
        with self._changed:
            if self._closing:
                return [[False] * (end - first)] * groups
            unwanted = set(self._unwanted)
            names = [[self._names.name(trail, place, group) for place in range(first, end)] for group in range(groups)]
            return [
                [(name in self._queue or name in self._folder) and name not in unwanted for name in group]
                for group in names
            ]

    def load(self, trail: Trail, tables: Sequence[list[int]], first: int, end: int) -> Reading:
        places = [
            [
                (self._names.name(trail, place, group), table[place])
                for group, table in enumerate(tables)
                if table[place]
            ]
            for place in range(first, end)
        ]
        with self._changed:
            assert self._load is None, "one load at a time"
            load = self._load = Reading(places)
            self._used.extend((name, trail.order(first + at)) for at, place in enumerate(places) for name, _ in place)
            self._changed.notify_all()
        return load

    def stop(self, load: Load) -> None:
        assert isinstance(load, Reading)
        with self._changed:
            self._end(load)

    def wait(self, load: Load, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: load.done, seconds)

    def _end(self, load: Reading) -> None:
        load.done, self._load = True, None
        self._changed.notify_all()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work or self._closing)
                if not self._has_work:
                    return
            try:
                self.work()
            except Exception:  # a bug of ours: the engine goes on, and no sequence may wait for this thread
                log.exception("prefixes are neither saved nor loaded any more")
                self._give_up()
                return

    def _give_up(self) -> None:
        with self._changed:
            self._closing = True
            self._queue.clear()
            if self._load is not None:
                self._end(self._load)

    @property
    def _has_work(self) -> bool:
        return bool(self._load or self._queue or self._used or self._unwanted)

    def work(self) -> bool:
        """Do one thing: read the pages of a place, or else remove, touch or write a file. False: nothing to do."""
        with self._changed:
            load = self._load
        if load is not None:
            self._fill(load)
        elif self._unwanted:
            self._folder.remove(self._unwanted[0])
            self._unwanted.popleft()  # now that `find` cannot see it
        elif self._used:
            self._folder.touch(*self._used.popleft())
        elif self._queue:
            self._write()
        else:
            return False
        return True

    def _fill(self, load: Reading) -> None:
        """Read and check a place's files, then fill its pages."""
        place = load.places[load.loaded]
        found = [(page, self._bytes_of(name)) for name, page in place]
        with self._changed:
            if load.done:  # stopped meanwhile
                return
            whole = [(page, data) for page, data in found if data is not None]
            if len(whole) < len(found):
                self._end(load)
                return
            for page, data in whole:
                self._store.copy_in(page, data)
            load.loaded += 1
            self.hit_positions += self._page_size
            allowed = GRACE_S + TOKEN_S * load.loaded * self._page_size
            if load.loaded == len(load.places) or time.monotonic() - load.began > allowed:
                self._end(load)

    def _bytes_of(self, name: str) -> memoryview | None:
        with self._changed:
            queued = self._queue.get(name)
        return self._folder.read(name, self._store.page_bytes) if queued is None else memoryview(queued[0])

    def _write(self) -> None:
        with self._changed:
            if not self._queue:
                return
            self._writing = name = next(iter(self._queue))
            page, order = self._queue[name]
        try:
            written = self._folder.write(name, page, order)
        except OSError as error:
            self._pause(error)
            return
        with self._changed:
            self._queue.pop(name, None)
            self._writing = None
            self.lost += not written

    def _pause(self, error: OSError) -> None:
        """Lose what is queued, and write nothing for a while."""
        with self._changed:
            self._writing = None
            self.lost += len(self._queue)
            self._queue.clear()
            self._period += 1
            self._resumes = time.monotonic() + PAUSE_S
        self._folder.warn_unsaved(error)

    @property
    def disk_usage(self) -> DiskUsage:
        return self._folder.usage(self.hit_positions, len(self._queue), self.lost)
