"""`gradus speedrun`: one workload against the clock, and a log that checks itself."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from gradus.cli import options, terminal
from gradus.errors import ConfigError

if TYPE_CHECKING:
    from gradus.bench.speedrun.contestants import Contestant
    from gradus.bench.speedrun.log import Log
    from gradus.loading import Checkpoint

ENGINE = (
    "phase", "impl", "device", "dtype", "quantize", "activations", "kv_dtype", "speculate", "drafts", "token_budget",
    "page_size", "threads", "switch_off",
)  # fmt: skip
"""The engine's settings that may change its speed."""


@options.settings_of(only=ENGINE)
def speedrun(
    command: Annotated[
        str | None, Option(help="A program in any language: docs/protocol.md.", metavar="COMMAND")
    ] = None,
    peer: Annotated[Literal["llama.cpp"] | None, Option(help="Another engine that is installed here.")] = None,
    verify: Annotated[
        list[Path] | None, Option(help="Check a log instead; may be given several times.", metavar="LOG")
    ] = None,
    name: Annotated[str | None, Option(help="The engine's name in the table; what ran by default.")] = None,
    category: Annotated[
        Literal["cpu-2", "gpu-1"] | None, Option("--class", help="The class; by default, by the device.")
    ] = None,
    repetitions: Annotated[int, Option(help="Timed runs, of which the median counts.", min=3)] = 3,
    timeout: Annotated[
        float | None,
        Option(help="With --command: the seconds that the program has for each answer; 600 by default.", min=0.1),
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The log; my-reports/speedrun/… by default.")] = None,
    **settings: Any,
) -> int:
    """Run the speedrun's workload on an engine, judge every token, and write a log: docs/speedrun.md has the rules.

    The final engine runs unless a phase, your files, a program or a peer is named. The exit code is 0 for a log that
    may become a row of the table, 1 for any other.

    Examples:

      gradus speedrun
      gradus speedrun --phase p06
      gradus speedrun --impl exercises/p06 --name "p06 by Ada"
      gradus speedrun --command "./engine {port}"
      gradus speedrun --verify my-reports/speedrun/cpu-2-p06.json
    """
    from gradus.bench.speedrun.rules import MODEL
    from gradus.loading import open_checkpoint

    if verify:
        if settings or command or peer or name or category or timeout or out:
            raise ConfigError("--verify reads logs and runs no engine: leave the other options out")
        checkpoint = open_checkpoint(MODEL)
        return max(_verify(file, checkpoint) for file in verify)
    if (command is not None) + (peer is not None) + bool(settings) > 1:
        raise ConfigError("an engine's settings, --command and --peer exclude each other: name one engine")
    if timeout is not None and command is None:
        raise ConfigError("--timeout is for --command: leave it out")
    return _race(settings, command, peer, category, name, repetitions, timeout or 600.0, out)


def _race(
    settings: dict[str, Any],
    command: str | None,
    peer: str | None,
    category: str | None,
    name: str | None,
    repetitions: int,
    timeout: float,
    out: Path | None,
) -> int:
    from gradus.bench.command import OWN_REPORTS
    from gradus.bench.measure.drive import ContenderFailed
    from gradus.bench.speedrun import run, table
    from gradus.bench.speedrun.rules import MODEL
    from gradus.cli.progress import working
    from gradus.loading import open_checkpoint

    ours = command is None and peer is None
    before = run.Before.now(_class_of(settings, category) if ours else category or "cpu-2")
    checkpoint = open_checkpoint(MODEL)
    contestant = _contestant(checkpoint, settings, command, peer, before.category, timeout)
    try:
        with working("the engine runs: it loads, and then has a warm-up and a run for each repetition"):
            measured = run.measure(checkpoint, contestant, repetitions)
    except ContenderFailed as failure:
        terminal.print_mistake(f"{contestant.name}: {failure}")
        return 1
    with working("every token is judged"):
        verdict = run.judged(checkpoint, measured.seed, measured.warm_up, [one.answers for one in measured.runs])
    if name is not None:
        contestant.name = name
    log = run.log_of(checkpoint, before, contestant, measured, verdict, sys.argv[1:])
    slug = "-".join(f"{before.category} {contestant.name}".replace("/", " ").split())
    file = out or Path(OWN_REPORTS) / table.NAME / f"{slug}.json"
    log.write(file)
    return _print(log, list(log.faults()), file)


def _class_of(settings: dict[str, Any], category: str | None) -> str:
    """The class of an engine of ours, whose device it decides. Raises ConfigError for a device of another class."""
    from gradus.bench.speedrun.rules import CLASSES
    from gradus.models.precision import resolve_device

    if category is None:
        category = "gpu-1" if resolve_device(settings.get("device", "auto")).type == "cuda" else "cpu-2"
    wanted = CLASSES[category].device
    if settings.setdefault("device", wanted).partition(":")[0] not in (wanted, "auto"):
        raise ConfigError(f"class {category} runs on {wanted}, and --device is {settings['device']}: leave one out")
    settings["device"] = wanted
    return category


def _contestant(
    checkpoint: "Checkpoint", settings: dict[str, Any], command: str | None, peer: str | None, category: str,
    timeout: float,
) -> "Contestant":  # fmt: skip
    from gradus.bench.speedrun.contestants import EngineContestant, LlamaCppContestant
    from gradus.course.foreign.racing import ProgramContestant

    if command is not None:
        return ProgramContestant(checkpoint, command, timeout)
    if peer is not None:
        if category != "cpu-2":
            raise ConfigError(f"--peer {peer} runs on a CPU here, and class {category} does not: leave one of them out")
        return LlamaCppContestant(checkpoint)
    return EngineContestant(checkpoint, settings)


def _verify(file: Path, checkpoint: "Checkpoint") -> int:
    """Check a log, and print what was found. Returns 1 if it is no row."""
    from gradus.bench.speedrun.verify import verify
    from gradus.cli.progress import working

    with working("every token is judged"):
        log, faults = verify(file, checkpoint)
    return _print(log, faults, file)


def _print(log: "Log", faults: list[str], file: Path) -> int:
    score, verdict = log.score, log.verdict
    print(
        f"{log.engine['name']}, class {log.category}: {score['seconds']} s ({score['fastest']} to {score['slowest']}), "
        f"{score['tokens_per_s']} tokens/s; loading took {log.loading_s} s"
    )
    print(
        f"{verdict['tokens']} tokens judged, {verdict['likeliest']} of them the likeliest, none more than "
        f"{verdict['widest']} below"
    )
    for fault in faults:
        print(f"no row: {fault}")
    print(f"{file}: {'not fit for the table' if faults else 'fit for the table'}")
    return int(bool(faults))
