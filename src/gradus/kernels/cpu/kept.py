"""Compiled code, kept on disk, so that a quarter of a minute of compiling is spent once per machine, not at every
start.

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
import os
import stat
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache, NullCache

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
        kernel._cache = Unkept(danger) if danger else cache  # as `cache=True` does
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


def danger_to(kernel: Any) -> str | None:
    """Say why a kernel's code is not kept although it has a folder; None if it is kept or has none."""
    return kernel._cache.danger if isinstance(kernel._cache, Unkept) else None


def danger_of(folder: Path) -> str | None:
    """Say how other users could put code into this folder; None if they cannot.

    They may write to it, to a file in it, or to a folder above it, where they could replace it. Above it, a sticky
    folder such as /tmp is safe: only owners replace its entries.
    """
    if os.name != "posix":
        return None
    trusted = (0, os.geteuid(), os.stat("/").st_uid)  # in a container without a user 0, "/" has another owner
    for path in _involved(folder):
        found = path.stat()
        if found.st_uid not in trusted:
            return f"{path} belongs to another user"
        above = stat.S_ISDIR(found.st_mode) and path not in (folder, folder.resolve())
        if _others_may_write(found) and not (above and found.st_mode & stat.S_ISVTX):
            return f"other users may write to {path}"
    return None


def _involved(folder: Path) -> Iterator[Path]:
    """The folder, its code, and the folders above, also above what symbolic links lead to."""
    for path in dict.fromkeys((folder.absolute(), folder.resolve())):
        yield from (path, *path.parents)
    yield from folder.glob("*.nb[ic]")


def _others_may_write(found: os.stat_result) -> bool:
    private = found.st_mode & stat.S_IWGRP and _is_private(found.st_gid)
    return bool(found.st_mode & (stat.S_IWOTH if private else stat.S_IWOTH | stat.S_IWGRP))


@functools.cache
def _is_private(group: int) -> bool:
    """Whether a group is its user's own, as on systems whose users share files with umask 002."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and group == user.pw_gid and set(found.gr_mem) <= {user.pw_name}


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
    """Compute a checksum of this package's sources."""
    folder = Path(__file__).parent
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py"))))
