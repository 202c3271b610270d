"""Threads between places of host memory and files: one that writes, several that read.

A file is read to where its page belongs. Reading and checking run at the speed of one core's memory accesses, so
several threads read a prefix: it must be there before the GPU would have computed it. They let go of Python's lock only
in system calls and sums, so each takes the next page by itself: a task per page would cost the lock more than the read.
"""

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

from gradus.cache.disk.folder import PrefixFolder
from gradus.cache.disk.names import Names
from gradus.cache.disk.tier import CLOSE_S, PAUSE_S
from gradus.cache.usage import DiskUsage

log = logging.getLogger(__name__)

READERS = 8  # at most: they share Python's lock, and leave cores to the engine
TOUCH_S = 10.0  # between two updates of files' times, which take a call per file and Python's lock
PENDING, WHOLE, MISSING = range(3)


class Reading:
    """Pages that threads read into their places, in this order.

    states: by page, PENDING, WHOLE, or MISSING if it is not there, not whole, or was not read before `stopped`.
    """

    def __init__(self, keys: Sequence[bytes], places: Sequence[int]) -> None:
        self.states, self.stopped = bytearray(len(keys)), False
        self._pages = list(zip(keys, places, strict=True))
        self._turns = itertools.count()

    def run(self, read: Callable[[bytes, int], bool]) -> None:
        """Read page after page, as other threads do."""
        for at in self._turns:  # one step of the interpreter, so no two threads get the same page
            if at >= len(self._pages):
                return
            try:
                whole = not self.stopped and read(*self._pages[at])
            except Exception:  # a bug of ours: the page is computed
                log.exception("a page could not be read")
                whole = False
            self.states[at] = WHOLE if whole else MISSING


class Writing:
    """A page that the writing thread writes. state: PENDING, WHOLE, or MISSING if it was not written."""

    def __init__(self, key: bytes, place: int, order: int) -> None:
        self.key, self.place, self.order, self.state = key, place, order, PENDING


class Files:
    """The files of the pages in some places. The engine's thread makes all calls.

    view: the bytes of a place. readers: the number of threads that read. hit_positions: counted by the tier.
    """

    def __init__(
        self, folder: PrefixFolder, names: Names, view: Callable[[int], memoryview], readers: int = READERS
    ) -> None:
        self._folder, self._name, self._view = folder, names.file, view
        self._tasks = SimpleQueue[Callable[[], None] | None]()  # of the writing thread; None: it ends
        self._writer: threading.Thread | None = None
        self._count, self._readers = readers, ThreadPoolExecutor(readers, "prefixes from disk")
        self._reading: Reading | None = None
        self._writing: deque[Writing] = deque()
        self._queued: dict[bytes, Writing] = {}  # by key, unless the page was removed
        self._used: dict[bytes, int] = {}  # by key: the order of its last use
        self._touches = 0.0  # when these are noted
        self._resumes = 0.0
        self.hit_positions = self.lost = 0

    def start(self) -> None:
        """Start the writing thread. It does not keep a process from ending: only `close` waits for it."""
        self._writer = threading.Thread(target=self._run, name="prefixes to disk", daemon=True)
        self._writer.start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def __contains__(self, key: bytes) -> bool:
        return self._name(key) in self._folder

    @property
    def queued(self) -> int:
        """The number of pages that wait to be written."""
        return len(self._writing)

    def wants(self, key: bytes) -> bool:
        """Whether a page should be written: it is not there, and writing works."""
        return key not in self and key not in self._queued and time.monotonic() >= self._resumes

    def write(self, key: bytes, place: int, order: int) -> None:
        """Queue a page to be written. `written` names its place afterwards."""
        writing = self._queued[key] = Writing(key, place, order)
        self._writing.append(writing)
        self._tasks.put(partial(self._write, writing))

    def _write(self, writing: Writing) -> None:
        writing.state = WHOLE if self._is_written(writing) else MISSING

    def _is_written(self, writing: Writing) -> bool:
        key, name = writing.key, self._name(writing.key)
        if self._queued.get(key) is not writing or time.monotonic() < self._resumes:
            return False
        try:
            written = self._folder.write(name, self._view(writing.place), writing.order)
        except OSError as error:
            self._pause(error)
            return False
        except Exception:  # a bug of ours: the page is computed when it is needed
            log.exception("a page could not be written")
            return False
        if self._queued.get(key) is not writing:  # removed meanwhile
            self._folder.remove(name)
        return written

    def _pause(self, error: OSError) -> None:
        """Write nothing for a while: what is queued is lost."""
        self._resumes = time.monotonic() + PAUSE_S
        self._folder.warn_unsaved(error)

    def written(self) -> list[int]:
        """Take the places that the writing thread is through with since the last call. Called before every step."""
        if self._used and time.monotonic() >= self._touches:
            self._tasks.put(partial(self._touch, self._used))
            self._used, self._touches = {}, time.monotonic() + TOUCH_S
        places = []
        while self._writing and self._writing[0].state != PENDING:
            writing = self._writing.popleft()
            if self._queued.get(writing.key) is writing:  # else it was removed
                del self._queued[writing.key]
                self.lost += writing.state == MISSING
            places.append(writing.place)
        return places

    def touch(self, used: list[tuple[bytes, int]]) -> None:
        """Note the use of pages, given with their orders, some time soon."""
        self._used.update(used)

    def _touch(self, used: dict[bytes, int]) -> None:
        for key, order in used.items():
            self._folder.touch(self._name(key), order)

    def remove(self, key: bytes) -> None:
        """Remove a page now, and see that one that is being written does not stay."""
        self._queued.pop(key, None)
        if key in self:
            self._folder.remove(self._name(key))

    def read(self, keys: Sequence[bytes], places: Sequence[int]) -> Reading:
        """Begin to read pages into places."""
        reading = self._reading = Reading(keys, places)
        for _ in range(min(self._count, len(keys))):
            self._readers.submit(reading.run, self._read)
        return reading

    def _read(self, key: bytes, place: int) -> bool:
        return self._folder.read_into(self._name(key), self._view(place))

    def close(self) -> None:
        """Write what is queued, for at most CLOSE_S, and let another engine use the directory."""
        if self._reading is not None:
            self._reading.stopped = True
        self._readers.shutdown(cancel_futures=True)
        if self._writer is not None:
            self._tasks.put(None)
            self._writer.join(CLOSE_S)
            self._resumes = math.inf  # it skips the rest
            self._writer.join()
        self._touch(self._used)
        self._folder.close()

    @property
    def usage(self) -> DiskUsage:
        return self._folder.usage(self.hit_positions, self.queued, self.lost)
