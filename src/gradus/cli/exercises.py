"""The course's commands: `gradus exercise`, `check`, `diff`, `show` and `flat`."""

import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from gradus.cli import terminal
from gradus.errors import ConfigError

if TYPE_CHECKING:
    from gradus.course.check import Verdict
    from gradus.exercises.declaration import Exercise

FOLDER = Path("exercises")

Phase = Annotated[str, Argument(help="A phase of the course, as in p01.")]


def exercise(
    phase: Phase,
    to: Annotated[Path | None, Option(help="The folder to write into; exercises/<phase> by default.")] = None,
    force: Annotated[bool, Option("--force", help="Write over your own file, and lose it.")] = False,
) -> int:
    """Start an exercise: the phase's file (or files) without the functions that are yours to write.

    Examples:

      gradus exercise p01                    writes exercises/p01/contiguous.py
      gradus exercise p01 --to my-solutions
    """
    from gradus import phases
    from gradus.exercises.declaration import exercises_of, reference_of
    from gradus.exercises.skeleton import cut

    info = phases.find(phase)
    tasks = {(to or FOLDER / info.name) / task.file_name: task for task in exercises_of(info)}
    for file in tasks:
        if file.exists() and not force:
            raise ConfigError(f"{file} is there already, and is left as it is; --force writes over it")
    for file, task in tasks.items():
        _write(file, cut(reference_of(info, task), task.functions, info.name))
        _print_task(info.name, task, file)
    return 0


def check(
    phase: Phase,
    impl: Annotated[Path | None, Option(help="Your file; the one that `gradus exercise` wrote by default.")] = None,
    hint: Annotated[int | None, Option(min=1, max=3, help="Show hints up to this one; 3 says almost how.")] = None,
) -> int:
    """Run the phase's own tests against your file, and say in a sentence what is wrong.

    Where an exercise has several files, each is judged alone, beside the reference's others. The exit code is 0 if all
    tests pass, and 1 if not.

    Examples:

      gradus check p01
      gradus check p01 --impl my-solutions/contiguous.py
      gradus check p01 --hint 1
    """
    from gradus import phases
    from gradus.course import check as course_check
    from gradus.exercises.declaration import exercise_of, exercises_of

    info = phases.find(phase)
    files = [impl] if impl else [FOLDER / info.name / task.file_name for task in exercises_of(info)]
    if impl is None and not files[0].exists():
        raise ConfigError(
            f"{files[0]} is not there: start with `gradus exercise {info.name}`, or name yours with --impl"
        )
    code = 0
    for file in files:
        verdict = course_check.check(info, file)
        print(f"{info.name}: {verdict.sentence}")
        if not verdict.passed:
            _print_help(info.name, exercise_of(info, file), verdict, hint)
            code = 1
    return code


def diff(
    old: Annotated[str, Argument(help="The phase before, as in p00.")],
    new: Annotated[str, Argument(help="The phase after it, as in p01.")],
) -> int:
    """Show what a phase changed: the parts that it swapped, its new files, and the difference in their text.

    Examples:

      gradus diff p00 p01
      gradus diff p02 p03 | less
    """
    from gradus import phases
    from gradus.course.difference import difference

    _print_diff(difference(phases.find(old), phases.find(new)))
    return 0


def show(phase: Phase) -> int:
    """Print a phase's code, file by file, in the order in which its lesson reads them.

    Examples:

      gradus show p01
      gradus show p01 | less
    """
    from gradus import phases
    from gradus.course.reading import reading

    for path, source in reading(phases.find(phase)):
        _print_code(f"# {'=' * 8} {path} {'=' * (100 - len(path))}\n\n{source.rstrip()}\n\n")
    return 0


def flat(phase: Phase) -> int:
    """Print a phase as one file that runs: what it uses of its own and earlier phases, without their imports.

    Examples:

      gradus flat p03 > p03.py && python p03.py
      gradus flat p00
    """
    from gradus import phases
    from gradus.course.flat import flatten

    _print_code(flatten(phases.find(phase)))
    return 0


def _print_code(source: str) -> None:
    """Python, colored on a terminal and to the letter elsewhere."""
    if not sys.stdout.isatty():
        print(source, end="")
        return
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(source.rstrip(), "python", background_color="default", word_wrap=True))


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error


def _print_task(name: str, task: "Exercise", file: Path) -> None:
    print(f"{fill(task.text, 100)}\n\nYours to write, in {file}:")
    for function in task.functions:
        print(f"  {function}")
    print(f"\nThen: gradus check {name}{'' if file.parent == FOLDER / name else f' --impl {file}'}")


def _print_help(name: str, task: "Exercise", verdict: "Verdict", hint: int | None) -> None:
    if verdict.test:
        terminal.print_note(f"the test: {verdict.test}")
    if verdict.printed:
        terminal.print_note(f"your file printed:\n{verdict.printed}")
    if hint is None:
        terminal.print_note("help: gradus check … --hint 1, 2 or 3")
        return
    for function in verdict.suspects:
        print(f"\n{function}")
        for number, text in enumerate(task.functions[function][:hint], start=1):
            print(fill(text, 100, initial_indent=f"  hint {number}: ", subsequent_indent=" " * 10))


def _print_diff(lines: list[str]) -> None:
    """Colored on a terminal, as `git diff` has it; plain elsewhere."""
    from rich.console import Console
    from rich.text import Text

    styles = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red", "#": "bold"}
    console = Console(highlight=False)
    for line in lines:
        style = next((style for start, style in styles.items() if line.startswith(start)), "")
        console.print(Text(line, style=style), soft_wrap=True)
