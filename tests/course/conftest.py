"""Exercises checked as a student has them checked: a file of their own, and the tests in a process of their own."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gradus import phases
from gradus.course import check as course_check
from gradus.course.check import Verdict
from gradus.course.exercise import Exercise, exercise_of, exercises_of, reference_of

ROOT = Path(__file__).parents[2]
PHASES = [phase.name for phase in phases.available()]


def exercises() -> list:
    """Every exercise of every phase, to be the parameters `phase` and `exercise` of a test."""
    return [
        pytest.param(phase.name, exercise, id=f"{phase.name} {exercise.file_name}")
        for phase in phases.available()
        if phase.has("exercise")  # that each has one is a test of its own
        for exercise in exercises_of(phase)
    ]


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
        file = tmp_path / phase / (exercise or exercise_of(info)).file_name
        file.parent.mkdir(exist_ok=True)
        file.write_text(source, encoding="utf-8")
        return course_check.check(info, file, **options)

    return run


# -- processes that need not import torch ------------------------------------------------------------------------------

SERVER = multiprocessing.get_context("forkserver")
PRELOADED = ["pytest", "hypothesis", "gradus.models", "gradus.sampling.sampler"]
SERVER.set_forkserver_preload(PRELOADED)
RUN = subprocess.run


def run_forked(command: list[str], *, cwd: Path, env: dict, timeout: float, **_) -> subprocess.CompletedProcess:
    """`subprocess.run` for `python -m pytest …`, forked from a process that has imported what takes seconds.

    Among that is Triton, which decides at its import whether it interprets: what it shall interpret starts afresh.
    """
    if "TRITON_INTERPRET" in env:
        return RUN(command, cwd=cwd, env=env, timeout=timeout, capture_output=True, text=True)
    with tempfile.NamedTemporaryFile("w+") as output:
        child = SERVER.Process(target=run_pytest, args=(command[3:], cwd, env, output.name))
        child.start()
        child.join(timeout)
        if child.is_alive():
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, child.exitcode, output.read(), "")


def run_pytest(arguments: list[str], cwd: Path, env: dict, output: str) -> None:
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(cwd)
    os.environ.clear()  # what the server was started with must not decide here
    os.environ.update(env)
    sys.path.insert(0, str(cwd))
    sys.dont_write_bytecode = True
    sys.exit(pytest.main(arguments))
