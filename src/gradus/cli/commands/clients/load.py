"""`gradus load`: send requests to a server, and report how well it answers."""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.cli import options, terminal
from gradus.errors import ConfigError
from gradus.load.measurements import REFUSED
from gradus.load.settings import MOST_USERS, LoadSettings

if TYPE_CHECKING:
    from gradus.load.asking.target import Target
    from gradus.load.search import Found
    from gradus.load.trials import Trial, Trials

CLOCKWORK = ("uptime_s", "self_checks")  # of /stats: these change by themselves
RESULT = "load.json"
LONG_S = 8  # how long answers may take: how many an open load has under way depends on it


@options.settings_of(LoadSettings)
def load(**given: Any) -> int:
    """Send requests to a running server, and report when their tokens arrived and how much it served.

    All requests are sent at once unless a rate or a number of users says otherwise. Prompts are random
    token ids, so a prompt has exactly as many tokens as you ask for, and its answer is meaningless.
    The exit code is 1 if no request completes, or fewer than --share keep the objective of --goodput.

    Examples:

      gradus load
      gradus load --requests 16 --mixed    # answers that end at different times
      gradus load --long 2000              # a long prompt while the others decode
      gradus load --shared 48              # prompts with the same beginning
      gradus load --concurrency 1,2,4,8,16 --plot curve.svg
      gradus load --mix chat --request-rate 4 --find-rate --goodput ttft:200 tpot:20
    """
    from gradus.load.asking.clients import crew, processes_for
    from gradus.load.asking.target import Target
    from gradus.load.trials import opened

    goals: list[str] = given.pop("goodput", [])
    settings = LoadSettings(**given, goodput=tuple(goals))
    target = Target.at(settings.base_url, mine=settings.yes_this_server_is_mine, key_variable=settings.key_variable)
    before = _ready(target)
    with crew(_processes(settings, processes_for)) as pool:
        trials = opened(settings, target, before, pool)
        if settings.find_rate:
            return _search(settings, trials)
        if len(settings.rates) * len(settings.users) > 1:
            return _sweep(settings, trials)
        return _once(settings, trials, before, pool)


def _ready(target: "Target") -> dict[str, Any] | None:
    """Wait for the server; a Gradus server's statistics."""
    from gradus.cli.progress import working

    with working("the server gets ready"):
        return target.ready()


def _processes(settings: LoadSettings, processes_for: Any) -> int:
    """Count the processes for the most requests under way. A late job has to see the others' tokens: one process."""
    if settings.long:
        return 1
    if settings.find_rate:
        return int(processes_for(MOST_USERS))
    if settings.users != [None]:
        return int(processes_for(max(users or 0 for users in settings.users)))
    return int(processes_for(round(min(settings.requests, LONG_S * max(settings.rates)))))


# -- one load ----------------------------------------------------------------------------------------------------------


def _once(
    settings: LoadSettings, trials: "Trials", before: dict[str, Any] | None, pool: ProcessPoolExecutor | None
) -> int:
    from gradus.cli.progress import working
    from gradus.load import report
    from gradus.load.trials import loads

    with working("the server answers"):
        (trial,) = loads(settings, trials)
    _refused(trial)
    record = trial.record(settings.percentiles)
    crowd = settings.all_at_once and len(trial.answers) <= report.MOST_ROWS
    if crowd:
        terminal.print_table(*report.requests_table(trial))
    if not crowd or settings.objective or record["errors"]:
        terminal.print_text(("\n" if crowd else "") + report.summary_lines(record, settings) + "\n\n")
        terminal.print_table(*report.latency_table(record, settings))
    after = trials.target.stats()
    if before is not None and after is not None:
        terminal.print_text(f"\n/stats, what changed:\n{changes(before, after)}\n")
    _save(settings, [record], None, trials)
    return _exit_code(settings, [trial])


def _refused(trial: "Trial") -> None:
    """Raise ConfigError with the server's words if it says that a request is wrong, or if nothing was served."""
    for answer in trial.answers:
        if answer.error.startswith("4") and answer.error not in REFUSED:
            raise ConfigError(f"the server refuses: {answer.detail}")
    if trial.answers and all(answer.error and answer.error not in REFUSED for answer in trial.answers):
        first = trial.answers[0]
        raise ConfigError(f"no request completed ({first.error}): {first.detail}")


def _exit_code(settings: LoadSettings, trials: "list[Trial]") -> int:
    if any(trial.late for trial in trials) or not all(trial.answers for trial in trials):
        return 1
    return int(bool(settings.objective) and min(trial.good for trial in trials) < settings.share)


# -- several -----------------------------------------------------------------------------------------------------------


def _sweep(settings: LoadSettings, trials: "Trials") -> int:
    from gradus.cli.progress import working
    from gradus.load import report
    from gradus.load.trials import loads

    done: list[Trial] = []
    records: list[dict[str, Any]] = []
    several = loads(settings, trials)
    while True:
        with working(f"load {len(done) + 1}: the server answers"):
            trial = next(several, None)
        if trial is None:
            break
        _refused(trial)
        done.append(trial)
        records.append(trial.record(settings.percentiles))
        terminal.print_note(" · ".join(report.sweep_row(records[-1], settings)))
    terminal.print_table(report.sweep_header(settings), [report.sweep_row(one, settings) for one in records])
    if line := report.knee_line(records, settings):
        terminal.print_text(f"\n{line}\n")
    if settings.plot:
        from gradus.load.figure import curve

        by = "users" if len(settings.users) > 1 else "rate"
        terminal.write_file(Path(settings.plot), curve(records, f"{trials.writing.model or 'Gradus'} under load", by))
    _save(settings, records, None, trials)
    return int(any(trial.late for trial in done))


def _search(settings: LoadSettings, trials: "Trials") -> int:
    from gradus.load import report

    records: list[dict[str, Any]] = []

    def each(trial: "Trial") -> None:
        _refused(trial)
        records.append(trial.record(settings.percentiles))
        terminal.print_note(" · ".join(report.sweep_row(records[-1], settings)))

    found = trials.highest(settings.draws(), settings.rates[0], settings.search, each)
    terminal.print_table(report.sweep_header(settings), [report.sweep_row(one, settings) for one in records])
    terminal.print_text(f"\n{report.found_line(found, settings)}\n")
    _save(settings, records, found, trials)
    return int(not found.best)


def _save(settings: LoadSettings, records: list[dict[str, Any]], found: "Found | None", trials: "Trials") -> None:
    from gradus.load.report import result

    if settings.save_result or settings.result_filename:
        file = Path(settings.result_filename or RESULT)
        made = result(settings, records, found, trials.writing.model)
        terminal.write_file(file, json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        print(f"written to {file}", file=sys.stderr)


# -- /stats ------------------------------------------------------------------------------------------------------------


def changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """List the numbers of /stats that differ, one per line; nested ones are named like cache.held."""
    old, new = _numbers(before), _numbers(after)
    found = [(name, f"{old.get(name, 0)} → {value}") for name, value in new.items() if old.get(name, 0) != value]
    width = max((len(name) for name, _ in found), default=0)
    return "\n".join(f"{name:<{width}}  {change}" for name, change in found)


def _numbers(stats: dict[str, Any], prefix: str = "") -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in stats.items():
        if isinstance(value, dict):
            numbers |= _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and name not in CLOCKWORK:
            numbers[prefix + name] = value
    return numbers
