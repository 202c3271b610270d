"""Ctrl-C between the steps of an engine, never within one: an interrupted step would make the loaded model unusable."""

import inspect
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

PATIENCE = 2  # signals that wait for the end of a block: people press Ctrl-C again when nothing seems to happen


class Interrupts:
    """`with` blocks that Ctrl-C does not interrupt: the program's own SIGINT handler is called at the end of the block.

    Two signals wait, and call the handler once. A third does not wait, in case a step hangs; it costs the model. Blocks
    nest. The outermost replaces the handler and restores it, which takes 10 µs; every block calls it at its end if a
    signal came. A block does nothing outside the main thread, which alone runs handlers, or if the program has no
    handler in Python.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Callable[[int, FrameType | None], Any] | None = None  # the program's, while ours replaces it
        self._came = 0  # signals that have waited since the handler was called last

    def __enter__(self) -> None:
        if not _in_main_thread():
            return
        if not self._depth:
            self._replace()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if not _in_main_thread():
            return
        self._depth -= 1
        handler = self._handler
        if handler is None:
            return
        if not self._depth:
            self._handler = None
            signal.signal(signal.SIGINT, handler)
        self._deliver(handler)

    def deliver(self) -> None:
        """Call the program's handler now if a signal is waiting: for blocks that wait for something themselves."""
        if _in_main_thread() and self._handler is not None:
            self._deliver(self._handler)

    def _deliver(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        if self._came:
            self._came = 0
            handler(signal.SIGINT, inspect.currentframe())

    def _replace(self) -> None:
        """Replace the handler. A signal during this call reaches either the program's handler or ours."""
        self._came, self._handler = 0, None
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came += 1
        if self._came > PATIENCE and self._handler is not None:
            self._came = 0
            self._handler(number, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
