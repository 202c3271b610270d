"""Show a person what they wait for: by a bar or a clock on a terminal, by notes elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
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

from gradus.loading.progress import FEW


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on stderr what a person waits for, with a clock. It is shown on a terminal alone, and vanishes at the end."""
    console = Console(stderr=True)
    columns = SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn()
    clock = Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)
    with clock:
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
    """The `Progress` that gradus.loading reports to, on stderr. Use as a context; the bars vanish at its end."""

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

    def begin(self, task: str, total: int | None) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(task, total=total)

    def advance(self, amount: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def note(self, text: str) -> None:
        with suppress(OSError):  # as for any note
            self.console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "Bars":
        self._bars.start()
        self.begin("starting", None)  # PyTorch is imported before anything can be loaded
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
