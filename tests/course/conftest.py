"""Exercises checked as a student has them checked: a file of their own, and the tests in a process of their own."""

import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradus import phases
from gradus.cli import main
from gradus.course.student import check as course_check
from gradus.course.student.check import Verdict
from gradus.exercises.declaration import Exercise, exercises_of, reference_of
from gradus.exercises.solution import look
from tests.forked import run_forked

ROOT = Path(__file__).parents[2]
PHASES = [phase.name for phase in phases.available()]
CLAIM = 22  # characters that tell one test's explanations from another's
JUDGED = 1
STRESS = pytest.mark.stress


@pytest.fixture
def gradus(tmp_path, monkeypatch, capsys):
    """gradus("check", "p01") in an empty folder → exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def exercises() -> list:
    """Every exercise of every phase, to be the parameters `phase` and `exercise` of a test."""
    return [
        pytest.param(phase.name, exercise, id=f"{phase.name} {exercise.file_name}")
        for phase in phases.available()
        if phase.has("exercise")  # that each has one is a test of its own
        for exercise in exercises_of(phase)
    ]


def mistakes(wrong: Mapping[str, tuple]) -> list:
    """Every mistake, to be the parameter `mistake` of a test.

    wrong: by mistake, the phase or file that it is made in, and last the words that explain it. `make test` judges
    JUDGED mistakes of each place, found by different tests; `make stress` judges the others. Explanations that begin
    alike are one and the same test's. (test_mutants.py judges another mistake of each phase.)
    """
    params: list = []
    told: dict[str, set[str]] = defaultdict(set)
    for mistake, (place, *_, says) in wrong.items():
        claims, claim = told[place], says[:CLAIM]
        params.append(pytest.param(mistake, marks=() if claim not in claims and len(claims) < JUDGED else STRESS))
        claims.add(claim)
    return params


def exercise_of(info: phases.PhaseInfo, file: Path | None = None) -> Exercise:
    """The phase's exercise whose file has this name; the first one without a name."""
    exercises = exercises_of(info)
    return exercises[0] if file is None else next(one for one in exercises if one.file_name == file.name)


def reference(phase: str, file_name: str | None = None) -> str:
    """The source that an exercise was cut out of; of a phase with several, the one of that file."""
    info = phases.find(phase)
    return reference_of(info, exercise_of(info, Path(file_name) if file_name else None))


@pytest.fixture
def checked(tmp_path, monkeypatch) -> Callable[..., Verdict]:
    """checked("p01", source) → what `gradus check` would say of a file with this source.

    exercise: which of the phase's, if it has several.
    """
    monkeypatch.setattr(subprocess, "run", run_forked)

    def run(phase: str, source: str, exercise: Exercise | None = None, **options) -> Verdict:
        info = phases.find(phase)
        exercise = exercise or exercise_of(info)
        if exercise.triton and find_spec("triton") is None:
            pytest.skip("Triton is for Linux alone")
        file = tmp_path / phase / exercise.file_name
        file.parent.mkdir(exist_ok=True)
        file.write_text(source, encoding="utf-8")
        return course_check.check(info, look(exercise, file, source), **options)

    return run
