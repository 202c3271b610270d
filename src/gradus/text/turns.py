"""Threads take turns at an engine, which is not thread-safe: two in one step would wait for each other for ever."""

import os
import threading
from weakref import WeakSet

from gradus.assembly.guard import BrokenEngine
from gradus.errors import GradusError
from gradus.text.interrupts import Interrupts

LOOK_S = 0.05  # seconds between checks for a Ctrl-C while a thread waits


class Turns:
    """`with` blocks that one thread at a time runs, in the order in which they came; Ctrl-C does not interrupt them.

    Ctrl-C does interrupt the wait for a turn. A block never contains another one of the same thread.

    Raises BrokenEngine in a child that was forked in the middle of another thread's block, and GradusError for a block
    within a block.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        # The thread that waits for the turn holds `_next`, so a thread that asks for turn after turn queues behind it.
        self._next, self._turn = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        self._lost = False
        ALL.add(self)

    @property
    def mine(self) -> bool:
        """Whether the calling thread is inside a block."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        self._interrupts.__enter__()
        try:
            self._wait()
        except BaseException:
            self._interrupts.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._owner = None
        self._turn.release()
        self._interrupts.__exit__()

    def _wait(self) -> None:
        if self._lost:
            raise BrokenEngine("this process was forked in the middle of another thread's step: load the model again")
        if self.mine:
            raise GradusError("an LLM was called from within one of its own steps: call it after the step")
        self._acquire(self._next)
        try:
            self._acquire(self._turn)
        finally:
            self._next.release()
        self._owner = threading.get_ident()

    def _acquire(self, lock: threading.Lock) -> None:
        while not lock.acquire(timeout=LOOK_S):
            self._interrupts.deliver()

    def _after_fork(self) -> None:
        """Forget the other threads, which the child does not have. A step of theirs will never end."""
        self._next = threading.Lock()
        self._lost = self._lost or (self._turn.locked() and not self.mine)


ALL: WeakSet[Turns] = WeakSet()


def _after_fork() -> None:
    for turns in ALL:
        turns._after_fork()


os.register_at_fork(after_in_child=_after_fork)
