"""Show a person what they wait for: by a bar or a clock on a terminal, by a line every few seconds elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from gradus.loading.progress import FEW, Stage

LINES_S = 4.0
"""Between two lines about the same wait, where there is no terminal."""

SOON_S = 2.0
"""The same while a server starts: several processes follow each other, and each is silent at first."""


class Lines:
    """Prints a line about a wait that lasts, every `every_s` until `end`."""

    def __init__(self, what: Callable[[], str], say: Callable[[str], None], every_s: float) -> None:
        """what: describes the wait, from another thread. say: prints the line."""
        self._what, self._say, self.every_s = what, say, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lines about a wait", daemon=True)
        self._since = time.monotonic()
        self._thread.start()

    def restart(self) -> None:
        """Count the seconds from now on: another wait has begun."""
        self._since = time.monotonic()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self.every_s):
            self._say(f"… {self._what()} ({time.monotonic() - self._since:.0f} s)")


def to_stderr(line: str) -> None:
    """Print a line that a stream which cannot be written may lose."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


@contextmanager
def working(what: str, every_s: float | None = None) -> Iterator[None]:
    """Say on stderr what a person waits for: by a clock on a terminal, which vanishes; by lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = Lines(lambda: what, to_stderr, every_s or LINES_S)
        try:
            yield
        finally:
            lines.end()
        return
    columns = SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as clock:
        clock.add_task(what, total=None)
        yield


class Amount(DownloadColumn):
    """How much of a task is done: 12.5/98.0 MB, or 3/27; nothing where it has no end that is known."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text()
        if task.total < FEW:
            return Text(f"{task.completed:g}/{task.total:g}", style="progress.download")
        return super().render(task)


class Bars:
    """The `Progress` that gradus.loading reports to, on stderr. Use as a context; the bars vanish at its end.

    Where there is no terminal, a line every `every_s` says what is being done (`say`).
    """

    every_s: float | None = None  # LINES_S

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._bars = Progress(
            SpinnerColumn("line"),
            TextColumn("{task.description}"),
            BarColumn(),
            Amount(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None
        self._stage = Stage("")
        self._lines: Lines | None = None

    def begin(self, task: str, total: int | None) -> None:
        self._stage = Stage(task, 0, total)
        if self._lines is not None:
            self._lines.restart()
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(task, total=total)

    def advance(self, amount: int) -> None:
        self._stage = replace(self._stage, done=self._stage.done + amount)
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def note(self, text: str) -> None:
        with suppress(OSError):  # as for any note
            self.console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """Print a line about a wait that lasts."""
        to_stderr(line)

    def __enter__(self) -> "Bars":
        self._bars.start()
        self.begin("starting", None)  # PyTorch is imported before anything can be loaded
        if not self.console.is_terminal:
            self._lines = Lines(lambda: str(self._stage), self.say, self.every_s or LINES_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if self._lines is not None:
            self._lines.end()
