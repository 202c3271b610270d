"""Judge a student's file by the tests that the reference passes, and describe a failure in one sentence.

The tests are the repository's own: those in tests/phases about the exercise's phase, and for a file that is a
part of gradus itself, that part's tests. They run in a separate process, in which the student's file replaces the
module that it rewrites (`tests/phases/judge.py`), so the file may print, hang or end the process without harm. The
first failure ends the run.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradus.errors import ConfigError
from gradus.exercises.declaration import Exercise, exercises_of, repository
from gradus.exercises.solution import Found, lacks, listed
from gradus.phases import PhaseInfo

PHASES = "tests/phases"
SECONDS_A_TEST = 30
LONGEST_SENTENCE = 400
LONGEST_MESSAGE = 180  # of an exception: it may show a whole sequence, and the test's claim must still fit after it


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check. sentence: the result for the student.

    tests: the number that passed. kept: their claims, the most informative first. of_file: if several files were judged
    together, the claims about each; kept then has the claims about all of them. On failure:

    test: the place of the failing test, "tests/phases/test_oracle.py, line 44"; "" if none was run.
    suspects: the exercise's functions that the failure points at; all of them if it points at none.
    printed: what the student's file printed in that test.
    """

    passed: bool
    sentence: str
    test: str = ""
    suspects: tuple[str, ...] = ()
    printed: str = ""
    tests: int = 0
    kept: tuple[str, ...] = ()
    of_file: dict[str, tuple[str, ...]] = field(default_factory=dict)


def check(phase: PhaseInfo, found: Found, *, seconds: float = SECONDS_A_TEST, shares: int = 1) -> Verdict:
    """Run the phase's tests with a student's file in place of the exercise's module.

    seconds: the limit of one test; all together get ten times that. shares: processes that divide the tests, on
    Linux. Raises ConfigError if the tests or pytest are missing.
    """
    exercise, file = found.exercise, found.file
    if found.broken:
        return Verdict(False, f"{file.name} does not parse: {found.broken}", suspects=tuple(exercise.functions))
    if found.missing:
        return Verdict(False, f"{file.name} has no {listed(found.missing)}", suspects=found.missing)
    if todo := found.unwritten:
        are = "is" if len(todo) == 1 else "are"
        return Verdict(False, f"{listed(todo)} {are} still to be written", suspects=todo)
    _require_tests(repository(phase), exercise)
    facts = _run(phase, (found,), seconds, shares)
    return facts if isinstance(facts, Verdict) else _verdict(facts, file.resolve(), exercise, phase)


def check_all(
    phase: PhaseInfo, found: Sequence[Found], *, passed: Sequence[Found] = (), shares: int = 1
) -> Iterator[tuple[tuple[Found, ...], Verdict]]:
    """Yield verdicts, each with its files. Complete files are judged together first, each alone only if that fails.

    passed: files that have passed and not changed since. They are not judged again alone.
    """
    whole = tuple(one for one in found if one.complete)
    facts = _together(phase, whole, shares) if len(whole) > 1 else None
    if facts is not None:
        yield whole, _joint_verdict(facts, whole)
    for one in found:
        if one in passed and len(found) > 1 and facts is None:
            yield (one,), Verdict(True, f"{one.file.name} is as it was when it passed")
        elif facts is None or not one.complete:
            yield (one,), check(phase, one, shares=shares)


def _together(phase: PhaseInfo, found: Sequence[Found], shares: int) -> dict[str, Any] | None:
    """Judge all files together. Returns the judge's facts if all tests pass, else None."""
    for one in found:
        _require_tests(repository(phase), one.exercise)
    facts = _run(phase, found, SECONDS_A_TEST, shares)
    return facts if isinstance(facts, dict) and facts["failure"] is None and facts["passed"] else None


def _require_tests(root: Path, exercise: Exercise) -> None:
    if not (root / "tests" / "phases" / "judge.py").is_file():
        raise ConfigError("the tests are not here: clone the repository and run pip install -e '.[dev]' inside")
    if absent := [name for name in ("pytest", "pytest_timeout", "hypothesis") if find_spec(name) is None]:
        raise ConfigError(
            f"the check runs the tests and needs {listed(absent)}: type `make course`, or run pip install -e '.[dev]'"
        )
    if exercise.triton and find_spec("triton") is None:
        remedy = "run pip install triton" if sys.platform == "linux" else "there is one for Linux alone"
        raise ConfigError(f"the check of {exercise.file_name} needs triton, also without a GPU: {remedy}")


def _merged(shares: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the facts of all shares as if one process had found them."""
    failures = [facts["failure"] for facts in shares if facts["failure"] is not None]
    before = min((failure["order"] for failure in failures), default=None)
    kept = sorted((order, claim, near) for facts in shares for claim, (order, near) in facts["kept"].items())
    kept = [each for each in kept if before is None or each[0] < before]
    first = next((failure for failure in failures if failure["order"] == before), None)
    passed = [place for facts in shares for place in facts["passed"] if before is None or place < before]
    return {"passed": len(passed), "kept": kept, "failure": first}


def _claims(kept: list[tuple[int, str, list[str]]], module: str | None = None) -> tuple[str, ...]:
    """Select the claims about one module, or, without one, about whole engines."""
    return tuple(dict.fromkeys(claim for _, claim, near in kept if (module in near if module else not near)))


def _run(phase: PhaseInfo, found: Sequence[Found], seconds: float, shares: int) -> dict[str, Any] | Verdict:
    """Run the judge. Returns its facts, or a Verdict if it did not end properly."""
    exercise, file = found[0].exercise, found[0].file.resolve()
    shares = shares if sys.platform == "linux" else 1
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts"
        homes = [one.exercise.alone or PHASES for one in found]
        homes = [home for home in homes if home == PHASES or PHASES not in homes or not home.startswith(PHASES)]
        tests = dict.fromkeys([*homes, *(test for one in found for test in one.exercise.tests)])
        command = [sys.executable, "-m", "pytest", "-p", "tests.phases.judge", *tests]
        command += ["-x", "-q", "--capture=sys", "-p", "no:cacheprovider", "-p", "timeout", "-p", "hypothesispytest"]
        command += [f"--timeout={seconds}", f"--shares={shares}", f"--phase={phase.name}", f"--facts={facts}"]
        for one in found:
            command += [f"--module={one.exercise.module}", f"--file={one.file.resolve()}"]
        try:
            done = subprocess.run(
                command,
                cwd=repository(phase),
                env=_environment(interpreted=any(one.exercise.interpreted for one in found)),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=10 * seconds,
            )
        except subprocess.TimeoutExpired:
            late = f"the tests had not ended after {10 * seconds:g} s"
            return Verdict(False, late, suspects=tuple(exercise.functions))
        written = [Path(f"{facts}.{share}") for share in range(shares)]
        if not all(each.is_file() for each in written):
            return _ended_early(done, file, exercise)
        return _merged([json.loads(each.read_text(encoding="utf-8")) for each in written])


def _environment(*, interpreted: bool) -> dict[str, str]:
    """Our environment, without settings and plugins that change pytest's behavior."""
    triton = {"TRITON_INTERPRET": "1"} if interpreted else {}  # read when Triton is first imported
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HYPOTHESIS_"))}
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_PROFILE": "check"}
    return ours | triton | plugins | {"PYTHONFAULTHANDLER": "1"}


def _ended_early(done: subprocess.CompletedProcess[str], file: Path, exercise: Exercise) -> Verdict:
    """Describe a run that ended before pytest wrote its facts."""
    said = done.stdout + done.stderr
    line = re.search(rf'File "{re.escape(str(file))}", line (\d+) in (\w+)', said)  # faulthandler: the innermost first
    where = f" at line {line[1]}, in {line[2]}" if line else ""
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):  # the allocator aborts if it notices
        why = "it read or wrote memory that is not the tensor's"
        mask = " (does every load and store have a mask?)" if exercise.interpreted else ""
        sentence = f"{file.name} crashed the tests' process{where}: {why}{mask}"
    else:
        sentence = f"{file.name} ended the tests' process{where} (exit code {done.returncode})"
    return Verdict(False, _one_line(sentence), suspects=tuple(exercise.functions))


def _joint_verdict(facts: dict[str, Any], found: Sequence[Found]) -> Verdict:
    """Make one verdict for files that pass together."""
    of_file = {one.file.name: _claims(facts["kept"], one.exercise.module) for one in found}
    said = f"{listed(of_file)} pass all {facts['passed']} tests"
    return Verdict(True, said, tests=facts["passed"], kept=_claims(facts["kept"]), of_file=of_file)


def _verdict(facts: dict[str, Any], file: Path, exercise: Exercise, phase: PhaseInfo) -> Verdict:
    failure = facts["failure"]
    own, whole = _claims(facts["kept"], exercise.module), _claims(facts["kept"])
    # if there are several files, claims about whole engines say little about a file with its own tests
    kept = own if own and len(exercises_of(phase)) > 1 else own + whole
    if failure is None:
        if facts["passed"] == 0:
            raise ConfigError(f"no test in tests/phases is about {exercise.file}: is this checkout complete?")
        return Verdict(True, f"{file.name} passes all {facts['passed']} tests", tests=facts["passed"], kept=kept)
    return Verdict(
        passed=False,
        sentence=_one_line(sentence(failure, file)),
        test=f"{failure['test_file']}, line {failure['test_line']}" if failure["claim"] else "",
        suspects=_suspects(failure, file, exercise),
        printed=failure["printed"].strip(),
        tests=facts["passed"],
        kept=kept,
    )


def sentence(failure: dict[str, Any], file: Path) -> str:
    """Describe a failure, from the judge's facts: the test's claim, the exception, and its frames."""
    claim, frames = failure["claim"], failure["frames"]
    kind, message = failure["kind"], failure["message"]
    own = [frame for frame in frames if frame["file"] == str(file)]
    innermost = frames[-1]
    if not claim:
        return _not_imported(failure, own, file)
    if kind == "Failed" and message.startswith("Timeout"):
        where = f"{_place(own[-1])} was at work" if own else "the engine still had work to do"
        return f"it takes too long: {where} when the test gave up that checks that {claim}"
    said = _cut(message.splitlines()[0], LONGEST_MESSAGE) if message else ""
    if kind == "AssertionError" and not innermost["test"] and said and not said.startswith("assert "):
        by = f", called by {_place(own[-1])}" if own and innermost not in own else ""
        return f"{said}: {_place(innermost)}{by} found that, when checking that {claim}"
    if kind == "AssertionError" and innermost["test"]:
        return _asserted(message.splitlines()[0] if message else innermost["text"], claim)
    error = f"{kind}: {said}" if said else f"{kind} at `{innermost['text']}`"
    if innermost in own:
        return f"{_place(innermost)} raised {error}, when checking that {claim}"
    if own:
        return f"{_place(own[-1])} led to {error}, raised in {_place(innermost)}, when checking that {claim}"
    return f"{_place(innermost)} raised {error}, when checking that {claim}"


def _not_imported(failure: dict[str, Any], own: list[dict[str, Any]], file: Path) -> str:
    """Describe the error that ended the import of the file, or of a module that imports from it."""
    kind, message = failure["kind"], _cut(failure["message"], LONGEST_MESSAGE)
    if kind == "ImportError" and not own:
        return f"{file.name} cannot be imported: {lacks(message)}"
    where = f"line {own[-1]['line']}: " if own else ""
    return f"{file.name} cannot be imported: {where}{kind}{message and f': {message}'}"


def _asserted(explanation: str, claim: str) -> str:
    """Describe a test's finding, in its own words if it has some."""
    if not explanation.startswith("assert "):
        return f"{explanation} ({claim})"
    found = explanation.removeprefix("assert ")
    return f"{claim}: {found}" if found.startswith("expected ") else f"{claim}: that does not hold, for {found}"


def _place(frame: dict[str, Any]) -> str:
    return f"{frame['function']} ({Path(frame['file']).name}, line {frame['line']})"


def _suspects(failure: dict[str, Any], file: Path, exercise: Exercise) -> tuple[str, ...]:
    """List the functions to suspect: the one that raised, else all. A caller may have received wrong numbers itself."""
    innermost = failure["frames"][-1]
    seen = {innermost["function"]} if innermost["file"] == str(file) else set()
    return tuple(name for name in exercise.functions if name in seen) or tuple(exercise.functions)


def _one_line(text: str) -> str:
    return _cut(" ".join(text.split()), LONGEST_SENTENCE)


def _cut(line: str, longest: int) -> str:
    return line if len(line) <= longest else line[: longest - 2] + " …"
