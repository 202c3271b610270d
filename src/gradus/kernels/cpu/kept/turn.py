"""One process compiles a kernel, and the others wait for its code: two that share the cores would take twice as long.

A lock on a file next to the code says whose turn it is. The system releases it when its process ends, however it
ends; the next in line then looks for the code, and compiles if there is none. The process that compiles also keeps
writing to a note: its number, for messages, and a sign of life. A process that is stopped, or is on another machine
that is gone, gives no sign, and after `SILENT_S` it is waited for no longer. Compiling twice is slow and never wrong.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import filelock
from numba.core import event

WAIT = "gradus:wait"
"""The kind of event that begins and ends a wait. Its data: the number of the process that compiles, or None."""

LOOK_S = 0.2
BEAT_S = 1.0
SILENT_S = 30.0


class Turn:
    """A kernel's turn, taken by the thread that compiles it. folder: of the code; name: of the code's files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._lock = filelock.FileLock(folder / f"{name}.lock")
        self._note = folder / f"{name}.pid"
        self._ended: threading.Event | None = None

    def take(self) -> None:
        """Wait until no other process compiles the kernel. Its code may be there now, though it was not before."""
        with suppress(OSError, NotImplementedError):  # a file system without locks
            locked = self._locked(0)
            if not locked:
                compiler = self._beat()
                with event.trigger_event(WAIT, data=compiler and compiler[0]):
                    locked = self._waited()
            if locked:
                self._live()

    def end(self) -> None:
        """Give the turn back, if it was taken."""
        if self._ended is not None:
            self._ended.set()
            self._ended = None
        with suppress(OSError):
            self._lock.release()

    def _locked(self, seconds: float) -> bool:
        try:
            self._lock.acquire(timeout=seconds, poll_interval=LOOK_S / 4)
        except filelock.Timeout:
            return False
        return True

    def _waited(self) -> bool:
        """Wait for the lock while its owner lives. Returns whether we have it."""
        seen, since = self._beat(), time.monotonic()
        while not self._locked(LOOK_S):
            beat = self._beat()
            if beat != seen:
                seen, since = beat, time.monotonic()
            elif time.monotonic() - since > SILENT_S:
                return False
        return True

    def _beat(self) -> tuple[int, int] | None:
        """The number of the process that compiles, and the time of its last sign of life; None before the first."""
        with suppress(OSError, ValueError):
            return int(self._note.read_text()), self._note.stat().st_mtime_ns
        return None

    def _live(self) -> None:
        """Give signs of life, from another thread, until the turn ends."""
        with suppress(OSError):
            self._note.write_text(str(os.getpid()))
        self._ended = threading.Event()
        threading.Thread(target=self._signal, args=(self._ended,), name="compiling", daemon=True).start()

    def _signal(self, ended: threading.Event) -> None:
        with suppress(OSError):
            while not ended.wait(BEAT_S):
                os.utime(self._note)
