"""Code that is kept on disk: its key, and when it is not trusted.

numba keeps code next to the sources, or else in the user's cache (`NUMBA_CACHE_DIR` names another place). It notices
code for another processor or from another numba, and changes in the function's own file, but not in the other files
that were compiled into it. So the function holds a number computed from all of them.

Nothing depends on kept code. Where no folder is writable, code is compiled at every start; code that cannot be
read, because a disk was full or a file is damaged, is compiled again and replaced.

numba unpickles its files, so each is a program that runs as this user. A folder that other users may
write to is therefore not used. The `__pycache__` next to the sources is as safe as Python's own code in it.
"""

import functools
import logging
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, NullCache

from gradus.kernels.cpu.kept.folder import danger_of
from gradus.kernels.cpu.kept.turn import Turn
from gradus.kernels.cpu.machine import ENTERED

log = logging.getLogger(__name__)


class KeptCode(FunctionCache):
    """numba's cache without its read and write errors, which one process at a time adds to.

    Raises RuntimeError, like numba's, if no folder is writable.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._turn = Turn(Path(self.cache_path), self._impl.filename_base)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Read the code. If there is none, wait for a process that compiles it; None: it is this one's turn."""
        code = self._read(signature, context)
        if code is None:
            self._turn.take()
            code = self._read(signature, context)
        return code

    def taking_turns(self, alone: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap a kernel's `compile`, which begins with `load_overload`: its end is the end of the turn."""

        @functools.wraps(alone)
        def in_turn(signature: Any) -> Any:
            try:
                return alone(signature)
            finally:
                self._turn.end()

        return in_turn

    def _read(self, signature: Any, context: Any) -> Any:
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


class Unkept(NullCache):
    """No cache: its folder is not safe. danger: the reason."""

    def __init__(self, danger: str) -> None:
        self.danger = danger


def kept(function: Callable[..., Any]) -> Any:
    """Compile the function, and keep its code where that is possible and safe."""
    kernel = njit(**ENTERED)(function)
    with suppress(RuntimeError):
        cache = KeptCode(function)
        danger = _noted_danger(Path(cache.cache_path), Path(function.__code__.co_filename))
        if danger:
            kernel._cache = Unkept(danger)
        else:
            kernel._cache = cache  # as `cache=True` does
            kernel.compile = cache.taking_turns(kernel.compile)
    return kernel


def place_of(kernel: Any) -> str | None:
    """The folder that holds a kernel's code; None if it is not kept."""
    return kernel._cache.cache_path or None


def danger_to(kernel: Any) -> str | None:
    """Say why a kernel's code is not kept although it has a folder; None if it is kept or has none."""
    return kernel._cache.danger if isinstance(kernel._cache, Unkept) else None


@functools.cache
def _noted_danger(folder: Path, source: Path) -> str | None:
    danger = None if folder == source.parent / "__pycache__" else danger_of(folder)
    if danger is not None:
        _note(danger)
    return danger


@functools.cache
def _note(danger: str) -> None:
    """Log a danger, once."""
    log.warning("compiled code is not kept, and every start compiles: %s. `gradus doctor` says what to do", danger)


def sources() -> int:
    """Compute a checksum of the kernels' sources."""
    folder = Path(__file__).parent.parent
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py"))))
