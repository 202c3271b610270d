"""Ctrl-C between the steps of an engine, never within one: an interrupted step would make the loaded model unusable."""

import inspect
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """`with` blocks that Ctrl-C does not interrupt: the program's own SIGINT handler is called at the end of the block.

    A second Ctrl-C does not wait, in case a step hangs. Blocks nest. The outermost replaces the handler and restores
    it, which takes 10 µs; every block calls it at its end if a signal came. A block changes nothing outside the main
    thread, which alone runs handlers, or if the program has no handler in Python.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Callable[[int, FrameType | None], Any] | None = None  # the program's, while ours replaces it
        self._came = False

    def __enter__(self) -> None:
        if not self._depth:
            self._replace()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        handler = self._handler
        if handler is None:
            return
        if not self._depth:
            self._handler = None
            signal.signal(signal.SIGINT, handler)
        if self._came:
            self._came = False
            handler(signal.SIGINT, inspect.currentframe())

    def _replace(self) -> None:
        """Replace the handler. A signal during this call reaches either the program's handler or ours."""
        self._came, self._handler = False, None
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self._came = self._came, not self._came
        if again and self._handler is not None:
            self._handler(number, frame)
