"""Progress of long tasks: a front end with a screen implements this, and loading calls it."""

from typing import Protocol


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
