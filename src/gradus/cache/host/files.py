"""Threads between places of host memory and files: one that writes, several that read.

A file is read to where its page belongs. Reading and checking run at the speed of one core's memory accesses, so
several threads read a prefix: it must be there before the GPU would have computed it.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from gradus.cache.disk.folder import PrefixFolder
from gradus.cache.disk.tier import CLOSE_S, PAUSE_S
from gradus.cache.usage import DiskUsage

log = logging.getLogger(__name__)

READERS = 8


class Files:
    """The files of the pages in some places. The engine's thread makes all calls.

    view: the bytes of a place. hit_positions: counted by the tier.
    """

    def __init__(self, folder: PrefixFolder, view: Callable[[int], memoryview]) -> None:
        self._folder, self._view = folder, view
        self._writer = ThreadPoolExecutor(1, "prefixes to disk")
        self._readers = ThreadPoolExecutor(READERS, "prefixes from disk")
        self._writing: deque[tuple[Future[bool], int]] = deque()
        self._queued: set[str] = set()
        self._resumes = 0.0
        self._warned = False
        self.hit_positions = self.lost = 0

    def __contains__(self, name: str) -> bool:
        return name in self._folder

    @property
    def queued(self) -> int:
        """The number of pages that wait to be written."""
        return len(self._writing)

    def wants(self, name: str) -> bool:
        """Whether a page should be written: it is not there, and writing works."""
        return name not in self._folder and name not in self._queued and time.monotonic() >= self._resumes

    def write(self, name: str, place: int, order: int) -> None:
        """Queue a page to be written. `written` names its place afterwards."""
        self._queued.add(name)
        self._writing.append((self._writer.submit(self._write, name, place, order), place))

    def _write(self, name: str, place: int, order: int) -> bool:
        try:
            if name not in self._queued or time.monotonic() < self._resumes:
                return False
            return self._folder.write(name, self._view(place), order)
        except OSError as error:
            self._pause(error)
            return False
        finally:
            self._queued.discard(name)

    def _pause(self, error: OSError) -> None:
        """Write nothing for a while: what is queued is lost."""
        self._resumes = time.monotonic() + PAUSE_S
        if not self._warned:
            self._warned = True
            log.warning(
                "prefixes are not saved in %s: %s; tried again from time to time, without another warning",
                self._folder.path, error.strerror or error,
            )  # fmt: skip

    def written(self) -> list[int]:
        """Take the places that the writing thread is through with since the last call."""
        places = []
        while self._writing and self._writing[0][0].done():
            written, place = self._writing.popleft()
            self.lost += not (written.cancelled() or written.result())
            places.append(place)
        return places

    def touch(self, used: list[tuple[str, int]]) -> None:
        """Note the use of pages, given with their orders."""
        if used:
            self._writer.submit(self._touch, used)

    def _touch(self, used: list[tuple[str, int]]) -> None:
        for name, order in used:
            self._folder.touch(name, order)

    def remove(self, name: str) -> None:
        """Remove a page, also one that waits to be written."""
        if name in self._queued or name in self._folder:
            self._queued.discard(name)
            self._writer.submit(self._folder.remove, name)

    def read(self, name: str, place: int) -> "Future[bool]":
        """Begin to read a page into a place. The result is False if it is not there, or not whole."""
        return self._readers.submit(self._folder.read_into, name, self._view(place))

    def close(self) -> None:
        """Write what is queued, for at most CLOSE_S, and let another engine use the directory."""
        ends = time.monotonic() + CLOSE_S
        self._readers.shutdown(cancel_futures=True)
        while self._writing and time.monotonic() < ends:
            self.written()
            time.sleep(0.01)
        self._writer.shutdown(cancel_futures=True)
        self._folder.close()

    @property
    def usage(self) -> DiskUsage:
        folder = self._folder
        return DiskUsage(
            files=len(folder),
            bytes=folder.bytes,
            most_bytes=folder.most_bytes,
            hit_positions=self.hit_positions,
            written_bytes=folder.written_bytes,
            queued=self.queued,
            lost=self.lost,
            damaged=folder.damaged,
        )
