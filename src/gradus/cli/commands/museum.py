"""`gradus museum`: eleven faults of real serving engines to find and repair, and five causes of slowness."""

from textwrap import fill, indent
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from gradus.cli import terminal
from gradus.cli.commands import exercises
from gradus.errors import ConfigError

if TYPE_CHECKING:
    from gradus.course.museum import Exhibit


def museum(
    exhibit: Annotated[str | None, Argument(help="An exhibit's number, as in 3. None: list them all.")] = None,
    check: Annotated[bool, Option("--check", help="Run the exhibit's tests on your copy.")] = False,
    slow: Annotated[bool, Option("--slow", help="The slow wing: engines that are right and slow.")] = False,
    hint: Annotated[
        Literal["1", "2", "3"] | None, Option(help="Show hints up to this one; the third says what to do.")
    ] = None,
    solution: Annotated[
        bool, Option("--solution", help="Show the fix next to the fault, and where it happened.")
    ] = False,
    force: Annotated[bool, Option("--force", help="Write over your copy, and lose it.")] = False,
) -> int:
    """Visit the bug museum: a small engine with a fault that real engines have had. Find it, and repair it.

    Naming an exhibit copies its engine to exercises/museum and shows what a user saw. With --slow, the engines give
    the right tokens too late: find out why with a profiler. With --check, the exit code is 0 if all tests pass, and 1
    if not.

    Examples:

      gradus museum                 # the eleven symptoms
      gradus museum 3
      gradus museum 3 --check
      gradus museum 3 --hint 1
      gradus museum 3 --solution
      gradus museum --slow          # five engines that are right and slow
      gradus museum --slow 2
    """
    from gradus.course import museum as course_museum

    if exhibit is None:
        if check or hint or solution or force:
            raise ConfigError("name an exhibit, as in `gradus museum 3 --check`")
        _print_tour(course_museum.exhibits(slow=slow))
        return 0
    found = course_museum.find(exhibit, slow=slow)
    if solution:
        _print_solution(found)
        return 0
    if hint is not None:
        _print_hints(found, int(hint))
    if check:
        return _check(found)
    if hint is None:
        _begin(found, force=force)
    return 0


def _print_tour(exhibits: "list[Exhibit]") -> None:
    terminal.print_table(
        ["", "what an operator saw" if exhibits[0].slow else "what a user saw", "phase"],
        [[str(exhibit.number), exhibit.symptom, exhibit.label.phase] for exhibit in exhibits],
    )
    terminal.print_command("Choose one", exhibits[0].command)


def _begin(exhibit: "Exhibit", *, force: bool) -> None:
    from gradus.course.museum import SlowLabel, shown

    begun = exhibit.copy.exists() and not force
    if not begun:
        terminal.write_file(exhibit.copy, exhibit.source)
    _say(f"{exhibit.symptom}\n")
    _say(indent(shown(exhibit.module("engine")), "  "))
    where = (
        "is there already, and is left as it is (--force writes over it)" if begun else "has the engine that did this"
    )
    _say(f"{exhibit.copy} {where}.")
    if isinstance(exhibit.label, SlowLabel):
        terminal.print_command("Look where the time goes", exhibit.label.look)
    terminal.print_command("Find the fault, repair it, then", f"{exhibit.command} --check")


def _check(exhibit: "Exhibit") -> int:
    from gradus.course.museum import judge, load

    findings = list(judge(exhibit, load(exhibit)))
    for finding in findings:
        _say(f"  {'✗' if finding.failure else '✓'} {finding.claim}")
    failures = [finding.failure for finding in findings if finding.failure]
    if failures:
        _say(f"\n{exhibit.copy}: {failures[0]}")
        terminal.print_note(f"the tests: {exhibit.path / 'test.py'}")
        terminal.print_note("for help, add --hint 1 to the command, then --hint 2, then --hint 3")
        return 1
    _say(f"\n{exhibit.copy} passes all {len(findings)} tests.")
    if exhibit.slow:
        terminal.print_command("What an operator sees now", f"python {exhibit.copy}")
    terminal.print_command("Where this happened, and our fix", f"{exhibit.command} --solution")
    return 0


def _print_hints(exhibit: "Exhibit", count: int) -> None:
    for number, text in enumerate(exhibit.label.hints[:count], start=1):
        _say(fill(text, 100, initial_indent=f"  hint {number}: ", subsequent_indent=" " * 10))


def _print_solution(exhibit: "Exhibit") -> None:
    from gradus.course.museum import SlowLabel, repairs

    label = exhibit.label
    _say(f"{label.fault}\n")
    if isinstance(label, SlowLabel):
        _say(fill(f"In the profile: {label.seen}", 100) + "\n")
    for pair in repairs(exhibit):
        exercises.print_pair(pair, titles=("fault", "fix"))
    _say(fill(label.story, 100) + "\n")
    if isinstance(label, SlowLabel):
        _say(fill(f"What it gave: {label.gave}", 100) + "\n")
    for text, address in label.sources:
        _say(f"  {text}: {address}")
    _say("\n" + fill(f"Moral: {label.moral}", 100))


def _say(text: str) -> None:
    terminal.print_text(f"{text}\n")
