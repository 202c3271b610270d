"""Progress on stderr: on a terminal a bar for the current cell, elsewhere one line per cell."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Bars:
    """Progress bars, used as a context. The bar vanishes at its end; notes stay."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None
        self._began = time.perf_counter()
        self.loading = _Loading(self)

    def cell(self, title: str, runs: int) -> None:
        """Begin a cell of `runs` runs."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(title, total=runs)
        if not self.console.is_terminal:
            self.note(f"{time.perf_counter() - self._began:6.0f} s  {title}")

    def run_done(self) -> None:
        if self._task is not None:
            self._bars.advance(self._task)

    def note(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "Bars":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


class _Loading:
    """Progress of loading a model: one note at its beginning is enough for seconds of work."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    def begin(self, task: str, total: int | None) -> None:
        self._bars.cell(task, 1)

    def advance(self, amount: int) -> None:
        pass

    def note(self, text: str) -> None:
        self._bars.note(text)
