"""Counts what a compilation has done, by numba's events."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from gradus.kernels.cpu.kept.shown import Compiling
from gradus.kernels.cpu.kept.turn import WAIT

COMPILE = "numba:compile"


@contextmanager
def watched(first_s: float, say: Callable[[Compiling], None], every_s: float = 1.0) -> Iterator[None]:
    """Call `say` from another thread while the block compiles or waits for another process that does: first after
    `first_s` seconds, then every `every_s`.

    Time that passes while kept code is read does not count, however long a busy machine takes for it.
    """
    watch = _Watch(first_s, every_s, say)
    with event.install_listener(COMPILE, watch), event.install_listener(WAIT, watch):
        yield


class _Watch(event.Listener):
    """Starts a clock when a function begins to compile, or a wait begins, and stops it at its end. numba compiles one
    function at a time; the functions that it calls begin and end in between."""

    def __init__(self, first_s: float, every_s: float, say: Callable[[Compiling], None]) -> None:
        self._first_s, self._every_s, self._say = first_s, every_s, say
        self._depth, self._done = 0, 0
        self._compiler: int | None = None
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def on_start(self, began: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._done, self._compiler = 0, None if began.kind == COMPILE else began.data or 0
            self._ended = threading.Event()
            self._thread = threading.Thread(target=self._tell, args=(self._ended, time.monotonic()), daemon=True)
            self._thread.start()

    def on_end(self, ended: Any) -> None:
        self._depth -= 1
        self._done += 1
        if self._depth == 0 and self._ended is not None and self._thread is not None:
            self._ended.set()
            self._thread.join()  # else it may outlive an engine that is closed at once

    def _tell(self, ended: threading.Event, since: float) -> None:
        pause = self._first_s
        while not ended.wait(pause):
            self._say(Compiling(self._done, time.monotonic() - since, self._compiler))
            pause = self._every_s
