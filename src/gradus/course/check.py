"""A student's file judged by the tests that the reference passes, and one sentence about what is wrong with it.

The tests are the repository's own: those of tests/phases that are about the exercise's phase, and for a file that is a
part of gradus itself, that part's. They run in a process of their own, in which the student's file stands in for the
module that it rewrites (`tests/phases/judge.py`), so the file may print, hang or end the process without harm. The
first failure ends the run.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradus.errors import ConfigError
from gradus.exercises.declaration import Exercise, exercise_of, repository
from gradus.exercises.skeleton import functions, unwritten
from gradus.phases import PhaseInfo

SECONDS_A_TEST = 30
LONGEST_SENTENCE = 400
LONGEST_MESSAGE = 120  # of an exception: it may show a whole sequence, and what was checked comes behind it


@dataclass(frozen=True, slots=True)
class Verdict:
    """passed, and what to say. On failure:

    test: where the failing test is, "tests/phases/test_oracle.py, line 44"; "" if none was run.
    suspects: the exercise's functions that the failure points at; all of them if it points at none.
    printed: what the student's file printed in that test.
    """

    passed: bool
    sentence: str
    test: str = ""
    suspects: tuple[str, ...] = ()
    printed: str = ""


def check(phase: PhaseInfo, file: Path, *, seconds: float = SECONDS_A_TEST) -> Verdict:
    """Run the phase's tests with `file` in the place of the exercise's module.

    seconds: how long one test may take; all together get ten times that.
    Raises ConfigError if the file cannot be read, or if the tests or pytest are not there.
    """
    exercise = exercise_of(phase, file)
    source = _read(file)
    names = tuple(exercise.functions)
    try:
        written = functions(source)
    except SyntaxError as error:
        return Verdict(False, f"{file.name} does not parse: {error.msg} (line {error.lineno})", suspects=names)
    if missing := [name for name in names if name not in written]:
        return Verdict(False, f"{file.name} has no {listed(missing)}", suspects=tuple(missing))
    if todo := unwritten(source, names):
        are = "is" if len(todo) == 1 else "are"
        return Verdict(False, f"{listed(todo)} {are} still to be written", suspects=tuple(todo))
    _require_tests(repository(phase), exercise)
    return _judge(phase, exercise, file.resolve(), seconds)


def listed(names: Iterable[str]) -> str:
    """a, b and c"""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 ({error.reason} at byte {error.start})") from error


def _require_tests(root: Path, exercise: Exercise) -> None:
    if not (root / "tests" / "phases" / "judge.py").is_file():
        raise ConfigError("the tests are not here: clone the repository and run pip install -e '.[dev]' inside")
    if absent := [name for name in ("pytest", "pytest_timeout", "hypothesis") if find_spec(name) is None]:
        raise ConfigError(f"the check runs the tests and needs {listed(absent)}: run pip install -e '.[dev]'")
    if exercise.interpreted and find_spec("triton") is None:
        raise ConfigError("the check interprets a kernel and needs triton, also without a GPU: run pip install triton")


def _judge(phase: PhaseInfo, exercise: Exercise, file: Path, seconds: float) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts.json"
        tests = [exercise.alone or "tests/phases", *exercise.tests]
        command = [sys.executable, "-m", "pytest", "-p", "tests.phases.judge", *tests]
        command += ["-x", "-q", "-p", "no:cacheprovider", "-p", "timeout", "-p", "hypothesispytest"]
        command += [f"--timeout={seconds}"]
        command += [f"--phase={phase.name}", f"--module={exercise.module}", f"--file={file}", f"--facts={facts}"]
        try:
            done = subprocess.run(
                command,
                cwd=repository(phase),
                env=_environment(exercise),
                capture_output=True,
                text=True,
                timeout=10 * seconds,
            )
        except subprocess.TimeoutExpired:
            late = f"the tests had not ended after {10 * seconds:g} s"
            return Verdict(False, late, suspects=tuple(exercise.functions))
        if not facts.is_file():
            return _ended_early(done, file, exercise)
        return _verdict(json.loads(facts.read_text(encoding="utf-8")), file, exercise)


def _environment(exercise: Exercise) -> dict[str, str]:
    """Ours, without settings and plugins that change what pytest does; no bytecode, whose age is told by the second."""
    triton = {"TRITON_INTERPRET": "1"} if exercise.interpreted else {}  # heeded where Triton is first imported
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HYPOTHESIS_"))}
    return ours | triton | {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _ended_early(done: subprocess.CompletedProcess[str], file: Path, exercise: Exercise) -> Verdict:
    """pytest writes the facts when it ends; here it did not come to that."""
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    last = f"; its last line was: {said[-1]}" if said else ""
    sentence = f"{file.name} ended the tests' process (exit code {done.returncode}){last}"
    return Verdict(False, _one_line(sentence), suspects=tuple(exercise.functions))


def _verdict(facts: dict[str, Any], file: Path, exercise: Exercise) -> Verdict:
    failure = facts["failure"]
    if failure is None:
        tests = f"{facts['passed']} tests"
        if facts["passed"] == 0:
            raise ConfigError(f"no test in tests/phases is about {exercise.file}: is this checkout complete?")
        return Verdict(True, f"{file.name} passes all {tests} of its phase")
    return Verdict(
        passed=False,
        sentence=_one_line(sentence(failure, file)),
        test=f"{failure['test_file']}, line {failure['test_line']}",
        suspects=_suspects(failure, file, exercise),
        printed=failure["printed"].strip(),
    )


def sentence(failure: dict[str, Any], file: Path) -> str:
    """What went wrong, from what the judge saw: the test's claim, the exception, and the frames it came through."""
    claim, frames = failure["claim"], failure["frames"]
    kind, message = failure["kind"], failure["message"]
    own = [frame for frame in frames if frame["file"] == str(file)]
    innermost = frames[-1]
    if kind == "Failed" and message.startswith("Timeout"):
        where = f"{_place(own[-1])} was at work" if own else "the engine still had work to do"
        return f"it takes too long: {where} when the test gave up that checks that {claim}"
    if kind == "AssertionError" and innermost["test"]:
        explanation = message.splitlines()[0] if message else innermost["text"]
        if explanation.startswith("assert "):
            return f"it should be that {claim}, but this does not hold: {explanation.removeprefix('assert ')}"
        return f"{explanation} ({claim})"
    error = (
        f"{kind}: {_cut(message.splitlines()[0], LONGEST_MESSAGE)}" if message else f"{kind} at `{innermost['text']}`"
    )
    if innermost in own:
        return f"{_place(innermost)} raised {error}, when checking that {claim}"
    if own:
        return f"{_place(own[-1])} led to {error}, raised in {_place(innermost)}, when checking that {claim}"
    return f"{_place(innermost)} raised {error}, when checking that {claim}"


def _place(frame: dict[str, Any]) -> str:
    return f"{frame['function']} ({Path(frame['file']).name}, line {frame['line']})"


def _suspects(failure: dict[str, Any], file: Path, exercise: Exercise) -> tuple[str, ...]:
    """A function that raised is to blame; one that led to an error elsewhere may have been given wrong numbers."""
    innermost = failure["frames"][-1]
    seen = {innermost["function"]} if innermost["file"] == str(file) else set()
    return tuple(name for name in exercise.functions if name in seen) or tuple(exercise.functions)


def _one_line(text: str) -> str:
    return _cut(" ".join(text.split()), LONGEST_SENTENCE)


def _cut(line: str, longest: int) -> str:
    return line if len(line) <= longest else line[: longest - 2] + " …"
