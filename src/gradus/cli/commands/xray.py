"""`gradus xray`: record a run of an engine as a page to step through."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from gradus.cli import options, terminal
from gradus.errors import ConfigError

if TYPE_CHECKING:
    from gradus.course.xray.recording import Recording

MOST_TOKENS = 16
SHAPE = ("max_sequences", "page_size", "cache_tokens", "token_budget")
LANES = frozenset(("p12", "p13"))
"""Phases without an engine of their own. Their pages show workers on one axis of time."""

Runs = Annotated[
    list[str], Argument(help="A phase, as in p04, or final; a second one is shown next to it.", metavar="PHASE [PHASE]")
]


@options.settings_of(only=("device", "dtype", *SHAPE))
def xray(
    runs: Runs,
    beside: Annotated[str | None, Option(help="Another way to name the second run.")] = None,
    impl: Annotated[
        Path | None,
        Option(help="A folder or file with your functions of the first phase; a second run is ours.", metavar="DIR"),
    ] = None,
    prompts: Annotated[
        Path | None, Option(help="Your own prompts: UTF-8, one per line. By default the phase's own small scene.")
    ] = None,
    max_tokens: Annotated[
        int | None, Option(min=1, help=f"Most tokens for each of your prompts; {MOST_TOKENS} by default.")
    ] = None,
    host_pages: Annotated[
        int | None,
        Option(min=0, help="p05 over host memory for this many evicted pages: its second tier, on a scene of its own."),
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The page; xray-PHASE.html by default.")] = None,
    model: Annotated[
        str | None,
        Option(
            "--model",
            "-m",
            help="As in `gradus generate`. By default smollm2-135m if it is pulled, else random; for p14 a tiny "
            "one with experts.",
        ),
    ] = None,
    **settings: Any,
) -> int:
    """Record a run step by step, and write a page to step through it: plans, slots, pages, block tables, radix tree.

    The page is one file that needs no network. Its path goes to stdout. Two runs get the same prompts, and are shown
    side by side.

    Examples:

      gradus xray p04
      gradus xray p05 --out prefix.html
      gradus xray p05 --host-pages 4           # evicted pages move down to host memory, and back up
      gradus xray p06 p05                      # chunks, and the same prompt in one step
      gradus xray p04 p04 --impl exercises     # your p04, next to ours
      gradus xray p04 --prompts mine.txt --cache-tokens 64 --page-size 4
      gradus xray p12                          # ranks: reading, exchanging, waiting
      gradus xray p13                          # every message of two requests, from client to engine and back
    """
    names = [*runs, *([beside] if beside else [])]
    if len(names) > 2:
        raise ConfigError(f"a page shows one run or two, got {len(names)}: {', '.join(names)}")
    settings |= _second_tier(names, host_pages)
    if LANES & set(names):
        return _lanes(names, impl, model, prompts, out, settings)
    if max_tokens is not None and prompts is None:
        raise ConfigError("--max-tokens is for your own prompts: add --prompts FILE, or leave it out")
    texts = None if prompts is None else _lines(prompts)
    recordings = _recordings(names, impl, model, texts, max_tokens or MOST_TOKENS, settings)
    return _write(out or Path(f"xray-{'-'.join(names)}.html"), recordings)


def _write(file: Path, recordings: "list[Recording]") -> int:
    """Write the page, and say of each recording whether its run broke."""
    from gradus.course.xray.page import page

    terminal.write_file(file, page([recording.as_json() for recording in recordings], _code(file)))
    print(file)
    for recording in recordings:
        if recording.failed:
            terminal.print_mistake(f"{recording.title} breaks, as the page's last step shows: {recording.failed}")
    return int(any(recording.failed for recording in recordings))


def _second_tier(names: list[str], host_pages: int | None) -> dict[str, int]:
    if host_pages is None:
        return {}
    if set(names) != {"p05"}:
        raise ConfigError(f"--host-pages is for p05 alone, got {' and '.join(names)}: leave it out")
    return {"host_pages": host_pages}


def _lanes(
    names: list[str],
    impl: Path | None,
    model: str | None,
    prompts: Path | None,
    out: Path | None,
    settings: dict[str, Any],
) -> int:
    """Write the page of p12 or p13. Raises ConfigError for what only an engine's page can show."""
    from gradus.cli.progress import working
    from gradus.course.xray import runs
    from gradus.course.xray.lanes import messages, ranks
    from gradus.course.xray.page import page
    from gradus.exercises import solution

    name = next(each for each in names if each in LANES)
    if len(names) > 1:
        raise ConfigError(f"{name} has no engine to show next to another: leave the second run out")
    if prompts is not None or settings:
        given = "--prompts" if prompts is not None else f"--{next(iter(settings)).replace('_', '-')}"
        raise ConfigError(f"{given} does nothing in {name}, whose page shows the lesson's own requests: leave it out")
    yours = None if impl is None else solution.load(name, impl)
    if model is not None and name == "p13" and yours is None:
        raise ConfigError("the page of p13 shows the lesson's recorded run: leave --model out, or add --impl")
    if yours is not None:
        terminal.print_note(yours.note)
    file = out or Path(f"xray-{name}.html")
    with working(f"{name} runs, and each step is recorded"):
        recording = {"p12": ranks, "p13": messages}[name].record(model or runs.RANDOM, yours)
    terminal.write_file(file, page([recording.as_json()], _code(file)))
    print(file)
    return 0


def _recordings(
    names: list[str],
    impl: Path | None,
    model: str | None,
    texts: list[str] | None,
    output: int,
    settings: dict[str, Any],
) -> "list[Recording]":
    from gradus.bench.contenders.workbench import Workbench
    from gradus.cli import interpreted
    from gradus.cli.progress import Bars, working
    from gradus.config.options import FINAL
    from gradus.config.settings import Settings
    from gradus.course.xray import runs
    from gradus.exercises import solution

    for name in names:
        runs.title_of(name)  # refuses an unknown name before a model is loaded
    scene = None if texts is not None else runs.scene_of(names[0], tiers=runs.HOST in settings)
    _refuse_unheeded(names, settings)
    part = runs.TIERS_PART if runs.HOST in settings else "engine"
    yours = None if impl is None else solution.load(names[0], impl, part)
    if yours is not None:
        terminal.print_note(yours.note)
    phases = [name for name in names if name != FINAL]
    asked: dict[str, Any] = {"model": model} | {name: settings.get(name) for name in ("device", "dtype")}
    kernels = next((found for name in phases if (found := interpreted.wanted(asked | {"phase": name}))), None)
    chosen = model or (scene and scene.model) or runs.usual_model()
    if kernels is not None:
        terminal.print_note(kernels.note)
        chosen, settings = kernels.settings["model"], settings | {"dtype": kernels.settings["dtype"]}
    elif model is None and chosen == runs.RANDOM:
        terminal.print_note(f"{runs.REAL} is not pulled, so weights are random and the text means nothing")
    given = Settings.of({"model": chosen, **{name: value for name, value in settings.items() if name != runs.HOST}})
    with Bars() as progress:
        bench = Workbench.open(given.model, given.device, given.dtype, progress)
    shape = {name: settings[name] for name in (*SHAPE, runs.HOST) if name in settings}
    tokenizer = bench.checkpoint.tokenizer
    if scene is not None:
        work = runs.work_of(scene, tokenizer, shape)
    else:
        assert texts is not None
        work = runs.own_work(texts, tokenizer, output, shape)
    mine = [yours, *([None] * (len(names) - 1))]
    recordings = []
    for name, own in zip(names, mine, strict=True):
        with working(f"{name} runs, and each step is recorded"):
            recordings.append(runs.run(name, bench, work, own))
    return recordings


def _code(file: Path) -> str:
    """The relative link from a page to a line of the repository, as a pattern."""
    from gradus import phases
    from gradus.exercises.declaration import repository

    root = repository(phases.find("p00"))
    return f"{Path(os.path.relpath(root, file.resolve().parent)).as_posix()}/{{path}}#L{{line}}"


def _refuse_unheeded(names: list[str], settings: dict[str, Any]) -> None:
    """Refuse a setting that none of the runs uses. (cache_tokens sets the memory of every run.)"""
    from gradus.config.options import FINAL
    from gradus.config.settings import heeded

    used = frozenset().union(*(heeded(None if name == FINAL else name) for name in names))
    for name in ("page_size", "token_budget"):
        if name in settings and name not in used:
            raise ConfigError(f"{name} does nothing in {' and '.join(names)}: leave it out")


def _lines(file: Path) -> list[str]:
    """Read the prompts from a file: its lines that are not blank."""
    try:
        return [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 ({error.reason} at byte {error.start})") from error
