"""How long work is reported: a front end with a screen implements this, loading only calls it."""

from typing import Protocol


class Progress(Protocol):
    """Work that a person waits for, one task at a time."""

    def begin(self, task: str, total: int | None) -> None:
        """A task starts, and the one before it is over. total: its size, in bytes or pieces; None if not known."""

    def advance(self, amount: int) -> None:
        """So much more of the task is done."""

    def note(self, text: str) -> None:
        """One line to keep on the screen: a license, a decision."""


class Silent:
    """Shows nothing."""

    def begin(self, task: str, total: int | None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass
