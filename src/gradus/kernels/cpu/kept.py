"""Compiled code, kept on disk: a quarter of a minute of compiling once for a machine and not at every start.

numba keeps code beside the sources, else in the user's cache (`NUMBA_CACHE_DIR` names another place). It notices that
code is of another processor or another numba, and that the function's own file has changed; of the other files that the
code was made of it knows nothing. So the function holds a number for all of them.

What is kept is worth having and never needed. Where no place can be written, code is compiled at every start; what
cannot be read, since a disk was full or a file is damaged, is compiled anew and replaced.
"""

import logging
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache

from gradus.kernels.cpu.machine import ENTERED

log = logging.getLogger(__name__)


class KeptCode(FunctionCache):
    """numba's, without its errors. Raises RuntimeError, as numba's, where it finds no place that can be written."""

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
        """An index may name a file that another version of the function has left: then it must name none."""
        with suppress(Exception):
            self.flush()


def kept(function: Callable[..., Any]) -> Any:
    """The function compiled, and its code kept where that is possible."""
    kernel = njit(**ENTERED)(function)
    with suppress(RuntimeError):
        kernel._cache = KeptCode(function)  # as `cache=True` does
    return kernel


def place_of(kernel: Any) -> str | None:
    """The folder that a kernel's code is kept in, if it is."""
    return kernel._cache.cache_path or None


def sources() -> int:
    """A number for this package's sources."""
    folder = Path(__file__).parent
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))))
