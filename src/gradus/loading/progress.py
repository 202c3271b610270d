"""Progress of long tasks: a front end with a screen, or a server with clients, implements this; loading calls it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

FEW = 10_000
"""Fewer bytes than any file of a model: a smaller total counts things such as CUDA graphs."""


class Progress(Protocol):
    """Reports long work, one task at a time."""

    def begin(self, task: str, total: int | None) -> None:
        """Start a task, and end the one before it. total: its size, in bytes or pieces; None if not known."""

    def advance(self, amount: int) -> None:
        """Count `amount` more of the task as done."""

    def note(self, text: str) -> None:
        """Show one line that stays on the screen: a license, a decision."""


class Silent:
    """Shows nothing."""

    def begin(self, task: str, total: int | None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Stage:
    """A task, and how far it is. done, total: bytes or pieces; total: None if not known."""

    task: str
    done: int = 0
    total: int | None = None

    def __str__(self) -> str:
        """Say it in one line: "loading smollm2-135m, 40 of 98 MB"."""
        if self.total is None:
            return self.task
        if self.total < FEW:
            return f"{self.task}, {self.done} of {self.total}"
        return f"{self.task}, {self.done / 1e6:.0f} of {self.total / 1e6:.0f} MB"


class Both:
    """Reports to two at once: a screen, and a server's clients."""

    def __init__(self, first: Progress, second: Progress) -> None:
        self._both = first, second

    def begin(self, task: str, total: int | None) -> None:
        for each in self._both:
            each.begin(task, total)

    def advance(self, amount: int) -> None:
        for each in self._both:
            each.advance(amount)

    def note(self, text: str) -> None:
        for each in self._both:
            each.note(text)


class Stages:
    """Hands on each stage of a load: at most one per `INTERVAL_S` within a task, and always its first and its last."""

    INTERVAL_S = 0.1

    def __init__(self, tell: Callable[[Stage], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._next = 0.0
        self._now = Stage("")

    def begin(self, task: str, total: int | None) -> None:
        self._say(Stage(task, 0, total), self._clock())

    def advance(self, amount: int) -> None:
        self._now = replace(self._now, done=self._now.done + amount)
        now = self._clock()
        if now >= self._next or self._now.done == self._now.total:
            self._say(self._now, now)

    def note(self, text: str) -> None:
        pass

    def _say(self, stage: Stage, now: float) -> None:
        self._now, self._next = stage, now + self.INTERVAL_S
        self._tell(stage)
