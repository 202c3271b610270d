"""The work of the commands, for both front ends: `gradus …`, and `python -m gradus.bench …` without typer."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from gradus import phases
from gradus.config import settings as engine_settings
from gradus.config.options import FINAL
from gradus.errors import ConfigError

DEFAULT = engine_settings.Settings()
OWN_REPORTS = "my-reports"
"""Default output folder of `gradus bench`, apart from the repository's own reports."""
OBSERVED_SECONDS = 3.0
"""Seconds for which `gradus profile` keeps a GPU decoding while NVML samples its load."""


def bench(
    target: str,
    *,
    model: str = DEFAULT.model,
    device: str = DEFAULT.device,
    dtype: str = DEFAULT.dtype,
    out: Path | None = None,
    quick: bool = False,
    peers: bool = True,
    repeats: int | None = None,
    resume: bool = False,
    tables: tuple[str, ...] = (),
    contenders: tuple[str, ...] = (),
    text: Path | None = None,
    commit: str | None = None,
    quantize: str | None = None,
    impl: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Measure `target` ("p01", "sampling", "all"), then write the reports and figures. Returns the results files.

    Raises ConfigError or CheckpointError in one line. text: the text for quality; None is the repository's own.
    impl: a student's folder or file; its phases get rows of their own, and sentences about them are printed first.
    commit: the commit to record, if git does not know it. Without matplotlib, a later `gradus report` draws the
    figures.
    """
    from gradus.bench.contenders.workbench import Workbench
    from gradus.bench.measure.settings import Settings
    from gradus.bench.run.suite import measure
    from gradus.bench.studies import quality, quality_report, quality_text, sampling_cost, sampling_report

    out = out or Path(OWN_REPORTS)
    settings = Settings(model, device, dtype, repeats, quick, peers, resume, commit, tables, contenders, quantize, impl)
    if text is not None and target != quality_report.NAME:
        raise ConfigError(f"--text is for `gradus bench {quality_report.NAME}`, not for {target}")
    if impl is not None and target in (quality_report.NAME, sampling_report.NAME):
        raise ConfigError(f"--impl is for a phase (p01) or the ladder, not for {target}")
    files: Sequence[Path]
    with watcher() as watching:
        if target == sampling_report.NAME:
            files = [sampling_cost.measure(settings, out, watching, watching.loading)]
        elif target == quality_report.NAME:
            read = quality_text.own(repository()) if text is None else quality_text.read(text)
            files = [quality.measure(settings, read, out, watching, watching.loading)]
        else:
            load = partial(Workbench.open, model, device, dtype, watching.loading, quantize)
            files = measure(target, settings, out, watching, load)
    report(out, say=lambda _: None)
    for file in files:
        if quick and target not in (quality_report.NAME, sampling_report.NAME):
            _say_tables(file, say)
        if impl is not None:
            _say_yours(file, say)
        say(str(file.with_name("report.md")))
    return list(files)


def _say_tables(file: Path, say: Callable[[str], None]) -> None:
    """Print a quick look's tables, narrow enough for a terminal."""
    from gradus.bench import registry
    from gradus.bench.record import results
    from gradus.bench.report import narrow_table

    found = results.read(file)
    for run in found.runs:
        for table in registry.load(found.benchmark).tables:
            if run.settings["quick"] and run.of(table.name):
                say(f"{table.titled(quick=True)} ({run.title}; a small workload, not to be quoted)")
                say(f"{narrow_table(run, table)}\n")


def _say_yours(file: Path, say: Callable[[str], None]) -> None:
    """Print the sentences about a student's phases in the run just made, which is the one that has them."""
    from gradus.bench import registry
    from gradus.bench.contenders import yours
    from gradus.bench.record import results

    found = results.read(file)
    for run in found.runs:
        for table in registry.load(found.benchmark).tables:
            for sentence in yours.sentences(run, table):
                say(sentence)


def bench_scheduler(
    *,
    requests: int | None = None,
    batches: tuple[int, ...] = (),
    policy: str | None = None,
    out: Path | None = None,
    quick: bool = False,
    commit: str | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Simulate the scheduler without a model, then write the report. Returns the results file.

    requests, batches, policy: None and () mean those of the committed report. Raises ConfigError in one line.
    """
    from gradus.bench.studies import scheduling

    out = out or Path(OWN_REPORTS)
    asked: dict[str, Any] = {"requests": requests, "batches": batches, "policy": policy}
    with watcher() as watching:
        file = scheduling.measure(out, **asked, quick=quick, commit=commit, say=watching.note)
    report(out, say=lambda _: None)
    say(str(file.with_name("report.md")))
    return file


def report(root: Path | None = None, *, check: bool = False, say: Callable[[str], None] = print) -> int:
    """Remake every report, figure and table from the results. Returns the number of outdated files.

    check: only report them. root: a folder of results; None is the repository's own, with its README and lessons.
    """
    from gradus.bench import report as reports
    from gradus.bench.record.pages import pages

    own = repository() / "reports"
    ours = root is None or root.resolve() == own.resolve()
    root = own if root is None else root
    if not root.is_dir() and not ours:
        raise ConfigError(f"{root}: no such folder; `gradus bench` makes one")
    stale = list(reports.outdated(root))
    if ours:
        stale += reports.outdated_pages(root, pages(repository()))
    for page in stale:
        if check:
            say(f"{page.file} is not what the results say: gradus report")
        elif page.picture and not _can_draw():
            say(f"{page.file} is left for later: it needs the extra 'plots' (matplotlib), which is not installed here")
        else:
            reports.update(page)
            say(f"{page.file}")
    return len(stale)


def profile(
    phase: str,
    *,
    model: str = DEFAULT.model,
    device: str = DEFAULT.device,
    dtype: str = DEFAULT.dtype,
    quantize: str | None = None,
    context: int = 256,
    batch: int = 1,
    out: Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Take decode steps of an engine apart, print where the time went, and write a timeline for Perfetto.

    phase: or "final". Raises ConfigError for an impossible engine, model or context.
    """
    from gradus.bench.contenders.workbench import Workbench
    from gradus.bench.measure.gpu import Utilization
    from gradus.bench.run.profiler import LONGEST_RUN, profile_steps, render, sustain
    from gradus.loading import open_checkpoint

    names = [*(info.name for info in phases.engines()), FINAL]
    if phase not in names:
        raise ConfigError(f"phase must be one of {', '.join(names)}, got {phase!r}")
    if batch < 1:
        raise ConfigError(f"batch must be 1 or more, got {batch}")
    most = open_checkpoint(model).config.context_length - LONGEST_RUN
    if not 1 <= context <= most:
        raise ConfigError(f"context must be between 1 and {most} for {model}, got {context}")
    with watcher() as watching:
        bench = Workbench.open(model, device, dtype, watching.loading, quantize)
    trace = (out or Path(OWN_REPORTS)) / "traces" / f"{phase}-{bench.device.type}.json"
    render(profile_steps(bench, phase, context=context, batch=batch, trace=trace), say)
    if bench.device.type == "cuda":
        with Utilization(bench.device.index or 0) as use:
            sustain(bench, phase, context=context, batch=batch, seconds=OBSERVED_SECONDS)
        say(use.summary())
    say(f"timeline: {trace} (open it in https://ui.perfetto.dev)")
    return trace


def repository() -> Path:
    """The course's folder. Raises ConfigError if it is not installed from its repository."""
    return phases.highest().path.parents[1]


def _can_draw() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


# -- progress ----------------------------------------------------------------------------------------------------------


def watcher() -> "AbstractContextManager[Any]":
    """Progress on stderr: bars on a terminal with rich, else one line per cell."""
    try:
        from gradus.bench.run.progress import Bars

        return Bars()
    except ImportError:
        return Lines()


class Lines:
    """Progress as lines, for logs."""

    loading = None

    def cell(self, title: str, runs: int) -> None:
        print(f"{title}: {runs} runs", file=sys.stderr, flush=True)

    def run_done(self) -> None:
        print(".", end="", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        print(file=sys.stderr)
