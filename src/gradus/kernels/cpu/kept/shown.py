"""How far a compilation is, for a person who waits."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

FUNCTIONS = 156
"""The functions that a decode step is compiled from, numba's own among them. Another numba may have a few more."""


class Compiling(NamedTuple):
    """A compilation under way. done: functions; seconds: since it began; compiler: the process that compiles the same
    kernels and is waited for, 0 if its number is not known, None if this process compiles."""

    done: int
    seconds: float
    compiler: int | None = None

    @property
    def task(self) -> str:
        if self.compiler is None:
            return "compiling the CPU kernels"
        which = f"the process {self.compiler}" if self.compiler else "the process"
        return f"waiting for {which} that compiles the same kernels"


shown: ContextVar[Callable[[Compiling], None] | None] = ContextVar("shown", default=None)
"""Shows a compilation that this context waits for, where something is there to show it; else the log says it."""
