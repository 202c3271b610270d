"""The course's commands: `gradus exercise`, `check`, `solution`, `progress`, `diff`, `show` and `flat`."""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from gradus.cli import options, terminal
from gradus.errors import ConfigError

if TYPE_CHECKING:
    from gradus.course.student.check import Verdict
    from gradus.course.student.ladder import Best
    from gradus.course.student.solved import Pair
    from gradus.exercises.declaration import Exercise
    from gradus.exercises.solution import Found
    from gradus.phases import PhaseInfo

Phase = Annotated[str, Argument(help="A phase of the course, as in p01.")]
Impl = Annotated[
    Path | None,
    Option(help="Your folder or file; its files may have any names. exercises/ by default.", metavar="DIR"),
]
SHOWN, SHOWN_EACH = 5, 3  # passed claims to show: for a phase, and for each of several files


def exercise(
    phase: Phase,
    to: Annotated[Path | None, Option(help="The folder to write into; exercises/<phase> by default.")] = None,
    only: Annotated[list[str] | None, Option(help="Only this file of several, as in cache.py.")] = None,
    force: Annotated[bool, Option("--force", help="Write over your own file, and lose it.")] = False,
) -> int:
    """Start an exercise: write the phase's files without the functions that you will write.

    Examples:

      gradus exercise p01                    # writes exercises/p01/contiguous.py
      gradus exercise p01 --to my-solutions
      gradus exercise p04 --only cache.py --force    # begin one file again
    """
    from gradus import phases
    from gradus.course.student.progress import FOLDER, remember_begun
    from gradus.exercises.declaration import exercises_of, reference_of
    from gradus.exercises.skeleton import cut

    info = phases.find(phase)
    names = [task.file_name for task in exercises_of(info)]
    for name in only or ():
        if name not in names:
            raise ConfigError(f"{info.name} has no file {name} to write, only {', '.join(names)}")
    folder = to or FOLDER / info.name
    tasks = {folder / task.file_name: task for task in exercises_of(info) if task.file_name in (only or names)}
    for file in tasks:
        if file.exists() and not force:
            raise ConfigError(f"{file} is there already, and is left as it is; --force writes over it")
    for file, task in tasks.items():
        terminal.write_file(file, cut(reference_of(info, task), task.functions, info.name))
        remember_begun(info, task, file)
        _print_task(task, file)
    terminal.print_command("Then", f"gradus check {info.name}{'' if to is None else f' --impl {to}'}")
    return 0


def check(
    phase: Annotated[
        str | None, Argument(help="A phase of the course, as in p01; with --command, all by default.")
    ] = None,
    impl: Impl = None,
    hint: Annotated[
        Literal["1", "2", "3"] | None, Option(help="Show hints up to this one; the third is nearly the answer.")
    ] = None,
    open: Annotated[bool, Option("--open", help="The phase's open task: measure your engine against a goal.")] = False,
    seed: Annotated[
        int | None, Option(help="With --open: repeat a check with these workloads, by its first seed.", min=0)
    ] = None,
    command: Annotated[
        str | None,
        Option(help="Judge a program in any language by what it reports: docs/protocol.md.", metavar="COMMAND"),
    ] = None,
    timeout: Annotated[
        float, Option(help="With --command: the seconds that the program has for each answer.", min=0.1)
    ] = 20.0,
) -> int:
    """Run the phase's own tests against your functions, and report what passes, what fails, and what to do next.

    Files that you have not begun are skipped. Complete files run together first. If that fails, each runs alone,
    with the reference's other files. The exit code is 0 if all pass, and 1 if not.

    Examples:

      gradus check p01
      gradus check p01 --impl my-solutions
      gradus check p01 --hint 1
      gradus check --open p06        # writes exercises/open/p06/yours.py at first, then measures it
      gradus check p03 --command "./engine {port}"    # over HTTP; without {port}, by lines of JSON
      gradus check --command ./engine                 # every phase that a report shows
    """
    if command is not None:
        others = {"--impl": impl, "--hint": hint, "--open": open, "--seed": seed}
        _alone("--command judges a program as a whole", others)
        return _judge(phase, command, timeout)
    if phase is None:
        raise ConfigError(
            "name a phase, as in `gradus check p01`, or a program, as in `gradus check --command ./engine`"
        )
    if open:
        _alone("--open measures an engine of your own", {"--hint": hint})
        return _attempt(phase, impl, seed)
    _alone("--seed varies the workloads of --open", {"--seed": seed})
    return _check(phase, impl, int(hint or 0))


def _alone(why: str, others: Mapping[str, object]) -> None:
    """Refuse options that would do nothing here."""
    from gradus.exercises.solution import listed

    if idle := [name for name, value in others.items() if value not in (None, False)]:
        raise ConfigError(f"{why}: leave out {listed(idle)}")


def _check(phase: str, impl: Path | None, hints: int) -> int:
    """Judge the phase's functions. Returns the exit code."""
    from gradus import phases
    from gradus.cli.progress import working
    from gradus.course.student import check as course_check
    from gradus.course.student import progress
    from gradus.exercises import solution

    info = phases.find(phase)
    found = solution.search(info, solution.files_in(impl or _folder(info), info))
    if not found:
        raise ConfigError(f"{impl or _folder(info)} has no function of {info.name}: {solution.expected(info)}")
    begun = [one for one in found if not one.untouched] or found
    passed = [row.file.resolve() for row in progress.of_phase(info) if row.file is not None and row.state == "passed"]
    settled = [one for one in begun if one.file.resolve() in passed]
    wrong = False
    with working(f"the tests of {info.name} run"):
        verdicts = [*course_check.check_all(info, begun, passed=settled, shares=min(2, os.cpu_count() or 1))]
    for files, verdict in verdicts:
        for one in files:
            if own := progress.remember(info, one, verdict):
                terminal.print_note(f"`gradus progress` follows {own}, and not this copy of it")
        print(f"{info.name}: {verdict.sentence}")
        if verdict.passed:
            _print_kept(verdict)
        else:
            _print_help(files[0], verdict, hints)
            wrong = True
    if not wrong:
        if hints and (waiting := [one for one in found if one not in begun]):
            _print_hints(waiting[0], waiting[0].unwritten, hints)
        _print_next(info, impl)
    return int(wrong)


def _judge(phase: str | None, command: str, seconds: float) -> int:
    """Judge a program: one line per phase, and the promises kept if it is one phase. Returns the exit code."""
    from gradus.cli.progress import working
    from gradus.course.foreign.judge import CLAIMS, judge_all
    from gradus.course.foreign.record import remember

    names = list(CLAIMS) if phase is None else [phase]
    verdicts, wrong = judge_all(names, command, seconds), False
    for name in names:
        with working(f"{name}: the program is asked"):
            verdict = next(verdicts)
        print(f"{name}: {verdict.sentence}", flush=True)
        remember(name, command, verdict)
        wrong |= not verdict.passed
        if phase is not None:
            for claim in verdict.kept:
                print(f"  ✓ {claim}")
    return int(wrong)


def solution(
    phase: Phase,
    impl: Impl = None,
    anyway: Annotated[bool, Option("--anyway", help="Show ours before yours pass.")] = False,
    plain: Annotated[bool, Option("--plain", help="Only text: no colors, no columns.")] = False,
) -> int:
    """Show our functions next to yours, once yours pass, and explain ours.

    Examples:

      gradus solution p01
      gradus solution p01 --impl my-solutions --plain
      gradus solution p01 --anyway            # ours, whether or not you have begun
    """
    from gradus import phases
    from gradus.course.student import progress, solved
    from gradus.exercises.solution import files_in, read

    info = phases.find(phase)
    rows = progress.of_phase(info)
    if impl is not None:  # only the files of that folder
        files = {file.resolve() for file in files_in(impl, info)}
        rows = [row for row in rows if row.file is not None and row.file.resolve() in files] or rows
    passed = [row for row in rows if row.state == "passed"]
    if not passed and not anyway:
        command = f"gradus check {info.name}{'' if impl is None else f' --impl {impl}'}"
        raise ConfigError(f"yours first: `{command}` must pass (--anyway shows ours all the same)")
    for row in rows if anyway else passed:
        theirs = read(row.file) if row.file is not None and row.state != "not begun" else ""
        for pair in solved.pairs(info, row.exercise, theirs):
            print_pair(pair, plain=plain)
    if left := [row.exercise.file_name for row in rows if row not in passed and not anyway]:
        terminal.print_note(f"not passed yet, and so not shown: {', '.join(left)}")
    return 0


def progress(
    json: options.Json = False,
    ladder: Annotated[bool, Option("--ladder", help="Per phase: exercises passed, and your best open task.")] = False,
) -> int:
    """Show your progress: every exercise, passed, failing or not begun, and what to do next. Runs nothing.

    It reads the results of `gradus check` in exercises/progress.json; a file that has changed since counts as
    unchecked. A check of a copy in another folder counts only for an exercise that has no file in exercises/.

    Examples:

      gradus progress
      gradus progress --ladder
      gradus progress --json
    """
    from gradus.course.foreign.record import reached, summaries
    from gradus.course.student import progress as course_progress
    from gradus.course.student.ladder import bests as best_attempts

    if ladder:
        return _print_ladder(json=json)
    rows, programs = list(course_progress.standings()), reached()
    command, why = course_progress.next_step(rows)
    if json:
        found = [
            {
                "phase": row.phase.name,
                "exercise": row.exercise.file_name,
                "state": row.state,
                "detail": row.detail,
                "file": None if row.file is None else str(row.file),
            }
            for row in rows
        ]
        judged = [asdict(each) for each in programs]
        terminal.print_json({"exercises": found, "programs": judged, "next": command or None})
        return 0
    table = [[row.phase.name, row.exercise.file_name, row.state, row.detail] for row in rows]
    names = [row[0] for row in table]
    table = [
        [name if names.index(name) == i else "", *row[1:]]
        for i, (name, row) in enumerate(zip(names, table, strict=True))
    ]
    terminal.print_table(["phase", "exercise", "", ""], table)
    passed, bests = sum(row.state == "passed" for row in rows), best_attempts()
    print(f"\n{passed} of {len(rows)} exercises passed.")
    if bests:
        goals = sum(best.reached for best in bests.values())
        print(f"Open tasks: {len(bests)} tried, {goals} reached (gradus progress --ladder).")
    for line in summaries(programs):
        print(line)
    terminal.print_command(f"Next: {why}", command)
    return 0


def _print_ladder(*, json: bool) -> int:
    """Print a line for each phase: the exercises that have passed, and the best attempt at its open task."""
    from gradus.course.student import ladder

    rungs = list(ladder.rungs())
    if json:
        found = [
            {
                "phase": rung.phase.name,
                "passed": rung.passed,
                "exercises": rung.exercises,
                "open": None if rung.best is None else asdict(rung.best),
            }
            for rung in rungs
        ]
        terminal.print_json({"ladder": found})
        return 0
    table = [
        [rung.phase.name, f"{rung.passed} of {rung.exercises}", *_best(rung.best, open=rung.phase.has("open"))]
        for rung in rungs
    ]
    terminal.print_table(["phase", "passed", "open task", "day", "file"], table)
    reached = sum(rung.best is not None and rung.best.reached for rung in rungs)
    print(f"\n{reached} of {sum(rung.phase.has('open') for rung in rungs)} open tasks reached.")
    return 0


def _best(best: "Best | None", *, open: bool) -> list[str]:
    if best is None:
        return ["not begun" if open else "", "", ""]
    return [f"{best.ratio:.2f}{', reached' if best.reached else ''}", best.day, f"{best.file} ({best.sha256[:8]})"]


def _attempt(phase: str, impl: Path | None, seed: int | None) -> int:
    """Begin the phase's open task, or measure the reader's file. Returns 0 if the goal is reached or nothing was
    measured yet, else 1."""
    from gradus import phases
    from gradus.cli.progress import working
    from gradus.course.open import attempt, report
    from gradus.course.student import ladder

    info = phases.find(phase)
    task, file = attempt.task_of(info), attempt.file_of(info, impl)
    check = f"gradus check --open {info.name}{'' if impl is None else f' --impl {impl}'}"
    if not file.exists():
        terminal.write_file(file, task.start)
        print(f"{info.name}, an open task: {fill(task.goal, 100)}\n\nYours to change: {file}. It scores 1.00 so far.")
        terminal.print_command("Then", check)
        return 0
    with working(f"the trials of {info.name} run"):
        found = attempt.attempt(info, file, seed)
    best, reached = ladder.bests().get(info.name), found.reached(task)
    if found.counts(task) and found.better(task, best):
        best = ladder.remember(info, file, found.ratio, reached=reached)
    for line in report.lines(task, found, best):
        print(line)
    if found.printed:
        terminal.print_note(f"your file printed:\n{found.printed}")
    return int(not reached)


def _folder(info: "PhaseInfo") -> Path:
    """Where `gradus exercise` wrote. Raises ConfigError if it did not."""
    from gradus.course.student.progress import FOLDER

    if not (FOLDER / info.name).is_dir():
        raise ConfigError(
            f"{FOLDER / info.name} is not there: start with `gradus exercise {info.name}`, "
            "or name your folder with --impl"
        )
    return FOLDER / info.name


def diff(
    old: Annotated[str, Argument(help="The phase before, as in p00.")],
    new: Annotated[str, Argument(help="The phase after it, as in p01.")],
) -> int:
    """Show what a phase changed: the parts that it replaced, its new files, and the difference in their text.

    Examples:

      gradus diff p00 p01
      gradus diff p02 p03 | less
    """
    from gradus import phases
    from gradus.course.views.difference import difference

    _print_diff(difference(phases.find(old), phases.find(new)))
    return 0


def show(phase: Phase) -> int:
    """Print a phase's code, file by file, in the order in which its lesson reads them.

    Examples:

      gradus show p01
      gradus show p01 | less
    """
    from gradus import phases
    from gradus.course.views.reading import reading

    for path, source in reading(phases.find(phase)):
        _print_code(f"# {'=' * 8} {path} {'=' * (100 - len(path))}\n\n{source.rstrip()}\n\n")
    return 0


def flat(phase: Phase) -> int:
    """Print a phase as one file that runs: its own code and the code that it uses from earlier phases, without imports.

    Examples:

      gradus flat p03 > p03.py && python p03.py
      gradus flat p00
    """
    from gradus import phases
    from gradus.course.views.flat import flatten

    _print_code(flatten(phases.find(phase)))
    return 0


def _print_code(source: str) -> None:
    """Print Python code, colored on a terminal and verbatim elsewhere."""
    if not sys.stdout.isatty():
        print(source, end="")
        return
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(source.rstrip(), "python", background_color="default", word_wrap=True))


def _print_task(task: "Exercise", file: Path) -> None:
    print(f"\n{fill(task.text, 100)}\n\nYours to write, in {file}:")
    for function in task.functions:
        print(f"  {function}")


def _print_kept(verdict: "Verdict") -> None:
    for claim in verdict.kept[:SHOWN]:
        print(f"  ✓ {claim}")
    for name, claims in verdict.of_file.items():
        if claims:
            print(f"  {name}")
        for claim in claims[:SHOWN_EACH]:
            print(f"    ✓ {claim}")


def _print_help(found: "Found", verdict: "Verdict", hints: int) -> None:
    if verdict.tests:
        passed = "1 test" if verdict.tests == 1 else f"{verdict.tests} tests"
        terminal.print_note(f"{passed} passed before that one")
    if verdict.test:
        terminal.print_note(f"the test: {verdict.test}")
    if verdict.printed:
        terminal.print_note(f"your file printed:\n{verdict.printed}")
    if not hints:
        terminal.print_note("for help, add --hint 1 to the command, then --hint 2, then --hint 3")
        return
    _print_hints(found, verdict.suspects, hints)


def _print_hints(found: "Found", functions: Iterable[str], hints: int) -> None:
    for function in functions:
        print(f"\n{function}")
        for number, text in enumerate(found.exercise.functions[function][:hints], start=1):
            print(fill(text, 100, initial_indent=f"  hint {number}: ", subsequent_indent=" " * 10))


def print_pair(pair: "Pair", *, plain: bool = False, titles: tuple[str, str] = ("yours", "ours")) -> None:
    """Print the pair side by side if the terminal is wide enough for both, else one after the other."""
    from rich.columns import Columns
    from rich.console import Console
    from rich.panel import Panel
    from rich.syntax import Syntax

    both = [(title, code) for title, code in zip(titles, (pair.theirs, pair.ours), strict=True) if code]
    if plain or not sys.stdout.isatty():
        print(f"# {pair.name}\n")
        for title, code in both:
            print(f"# -- {title}\n{code}\n")
        if pair.why:
            print(fill(pair.why, 100) + "\n")
        return
    console = Console()
    wide = max(len(line) for _, code in both for line in code.splitlines()) + 4
    room = console.width // len(both) - 1 if wide * len(both) < console.width else console.width
    panels = [
        Panel(Syntax(code, "python", background_color="default", word_wrap=True), title=title, width=room)
        for title, code in both
    ]
    console.rule(pair.name, align="left")
    console.print(Columns(panels, padding=(0, 0)))
    if pair.why:
        console.print(fill(pair.why, min(100, console.width)), markup=False, highlight=False)
    console.print()


def _print_next(info: "PhaseInfo", impl: Path | None) -> None:
    """What to type now: after a phase's last exercise, ways to use it, and the next phase."""
    from gradus.course.student import progress

    rows = progress.of_phase(info)
    if all(row.state == "passed" for row in rows):
        folder = impl.parent if impl is not None and impl.is_file() else impl  # an engine needs all of its files
        where = f" --impl {folder or progress.FOLDER}"
        print(f"\nAll of {info.name} is written. Now try:")
        print(f"  gradus solution {info.name}{'' if impl is None else where}    # yours next to ours, and why")
        if info.has("engine"):
            kernels = any(row.exercise.interpreted for row in rows)
            runs = f"{where} --device cuda" if kernels and _has_gpu() else where
            print(f'  gradus generate "Once upon a time" --phase {info.name}{runs}')
            if kernels and runs == where:  # its bench has rows for a GPU alone
                print(f"  gradus xray {info.name}{where}")
            else:
                print(f"  gradus bench {info.name} --quick{runs}")
        else:
            print(f"  python -m phases.{info.folder}{where}")
        every = list(progress.standings())
        later = [row for row in every if row.phase.number > info.number]
        rows = later if any(row.state != "passed" for row in later) else every
    command, why = progress.next_step(rows)
    terminal.print_command(f"Next: {why}", command)


def _has_gpu() -> bool:
    from gradus.models.precision import resolve_device

    return resolve_device("auto").type == "cuda"


def _print_diff(lines: list[str]) -> None:
    """Print a diff, colored on a terminal like `git diff`, plain elsewhere."""
    from rich.console import Console
    from rich.text import Text

    styles = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red", "#": "bold"}
    console = Console(highlight=False)
    for line in lines:
        style = next((style for start, style in styles.items() if line.startswith(start)), "")
        console.print(Text(line, style=style), soft_wrap=True)
