"""Compiled code, kept on disk, so that a quarter of a minute of compiling is spent once per machine, not at every
start.

numba keeps code next to the sources, or else in the user's cache (`NUMBA_CACHE_DIR` names another place). It notices
code for another processor or from another numba, and changes in the function's own file, but not in the other files
that were compiled into it. So the function holds a number computed from all of them.

Nothing depends on kept code. Where no folder is writable, code is compiled at every start; code that cannot be
read, because a disk was full or a file is damaged, is compiled again and replaced.
"""

import logging
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache

from gradus.kernels.cpu.machine import ENTERED

log = logging.getLogger(__name__)


class KeptCode(FunctionCache):
    """numba's cache without its read and write errors. Raises RuntimeError, like numba's, if no folder is writable."""

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)
        except Exception as error:  # whatever reading a damaged file may raise
            log.info("compiled code in %s cannot be read, and is made anew: %r", self.cache_path, error)
            self._forget()
            return None

    def save_overload(self, signature: Any, code: Any) -> None:
        try:
            super().save_overload(signature, code)
        except Exception as error:
            log.info("compiled code cannot be kept in %s: %r", self.cache_path, error)
            self._forget()

    def _forget(self) -> None:
        """Clear the index, because it may name a file that another version of the function has left."""
        with suppress(Exception):
            self.flush()


def kept(function: Callable[..., Any]) -> Any:
    """Compile the function, and keep its code where possible."""
    kernel = njit(**ENTERED)(function)
    with suppress(RuntimeError):
        kernel._cache = KeptCode(function)  # as `cache=True` does
    return kernel


def place_of(kernel: Any) -> str | None:
    """The folder that holds a kernel's code; None if it is not kept."""
    return kernel._cache.cache_path or None


@contextmanager
def watched(seconds: float, say: Callable[[], None]) -> Iterator[None]:
    """Call `say` once, from another thread, when the block has been compiling a function for that many seconds.

    Time that passes while kept code is read does not count, however long a busy machine takes for it.
    """
    with event.install_listener("numba:compile", _Watch(seconds, say)):
        yield


class _Watch(event.Listener):
    """Starts a timer when a function begins to compile, and stops it when that ends. numba compiles one at a time; the
    functions that it calls begin and end in between."""

    def __init__(self, seconds: float, say: Callable[[], None]) -> None:
        self._seconds, self._say = seconds, say
        self._depth, self._said = 0, False
        self._timer: threading.Timer | None = None

    def on_start(self, _: Any) -> None:
        self._depth += 1
        if self._depth == 1 and not self._said:
            self._timer = threading.Timer(self._seconds, self._noticeable)
            self._timer.start()

    def on_end(self, _: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # else its thread may outlive an engine that is closed at once
            self._timer = None

    def _noticeable(self) -> None:
        self._said = True
        self._say()


def sources() -> int:
    """Compute a checksum of this package's sources."""
    folder = Path(__file__).parent
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py"))))
