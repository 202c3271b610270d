"""The page for teachers: each of its commands does what the page says, and a handout hides what it promises to hide."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradus import phases
from gradus.course import handout
from gradus.errors import ConfigError
from gradus.exercises.declaration import exercises_of, reference_of
from gradus.exercises.skeleton import cut, unwritten
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.commands.pages import commands
from tests.course.conftest import ROOT
from tests.forked import run_forked

PAGE = ROOT / "docs" / "teaching.md"
ELSEWHERE = {
    "source .venv/bin/activate": "",
    'gradus check p03 --command "./engine {port}"': "tests/course/foreign/test_command.py",
    "gradus check --open p06 --impl students/ann/yours.py --seed 7": "tests/course/test_open_commands.py",
}
"""Commands that are tested in another file, or need no test."""


@pytest.fixture
def given(gradus, tmp_path, monkeypatch):  # noqa: F811
    """Give a command of the page in a folder with two students: ann has written p00's embedding.py, ben begun it."""
    monkeypatch.chdir(tmp_path)
    exercise = next(one for one in exercises_of(phases.find("p00")) if one.file_name == "embedding.py")
    ours = reference_of(phases.find("p00"), exercise)
    for name, source in (("ann", ours), ("ben", cut(ours, exercise.functions, "p00"))):
        (tmp_path / "students" / name).mkdir(parents=True)
        (tmp_path / "students" / name / "embedding.py").write_text(source, encoding="utf-8")
    shown = {command.text for command in commands(PAGE)}

    def give(command: str):
        assert command in shown, f"the page no longer shows {command}"
        return gradus(*command.split()[1:])

    return give


def test_every_command_of_the_page_is_tested_here_or_elsewhere():
    source = Path(__file__).read_text(encoding="utf-8")
    for command in commands(PAGE):
        here = source.count(command.text.splitlines()[0]) >= (2 if command.text in ELSEWHERE else 1)
        assert here or command.text in ELSEWHERE, command.text
    assert all(not where or (ROOT / where).is_file() for where in ELSEWHERE.values())


@pytest.mark.slow
def test_a_student_s_file_is_graded_and_then_shown_next_to_ours(given, monkeypatch):
    monkeypatch.setattr(subprocess, "run", run_forked)
    refused = given("gradus solution p00 --impl students/ann")
    assert refused.code == 2 and "must pass" in refused.err
    done = given("gradus check p00 --impl students/ann")
    assert done.code == 0 and "embedding.py passes all" in done.out
    states = json.loads(given("gradus progress --json").out)["exercises"]
    assert ("embedding.py", "passed") in [(one["exercise"], one["state"]) for one in states]
    shown = given("gradus solution p00 --impl students/ann")
    assert shown.code == 0 and "# -- yours" in shown.out and "# -- ours" in shown.out


def test_exit_codes_tell_wrong_from_not_judged(gradus, given):  # noqa: F811
    assert gradus("check", "p00", "--impl", "students/ben").code == 1
    assert gradus("check", "p00", "--impl", "students/nobody").code == 2
    hinted = gradus("check", "p00", "--impl", "students/ben", "--hint", "1")
    assert hinted.code == 1 and "hint 1: " in hinted.out
    assert "gradus check p00 --impl students/ann --hint 1" in [command.text for command in commands(PAGE)]


def test_the_ladder_is_json_too(given):
    rungs = json.loads(given("gradus progress --ladder --json").out)["ladder"]
    assert [rung["phase"] for rung in rungs] == [phase.name for phase in phases.available()]


@pytest.mark.slow
def test_a_class_is_graded_by_one_loop(given, tmp_path, monkeypatch):
    (loop,) = (command.text for command in commands(PAGE) if command.text.startswith("for student in students/*/; do"))
    calls = tmp_path / "gradus"
    calls.write_text(f'#!/bin/sh\nexec {sys.executable} -m gradus "$@"\n')
    calls.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", loop], capture_output=True, text=True, env=path, timeout=150)
    assert done.stdout.split() == ["students/ann/", "0", "students/ben/", "1"]
    assert "still to be written" in (tmp_path / "students" / "ben" / "p00.txt").read_text()


def test_the_plan_of_ten_weeks_names_ten_and_every_mistake_s_lesson_exists():
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == [str(week) for week in range(1, 11)]
    wrong = text.partition("## What students get wrong")[2].partition("\n## ")[0]
    assert {phase.name for phase in phases.available()} == set(re.findall(r"^\| (p\d\d)", wrong, re.MULTILINE))


def mistakes_on_the_page() -> dict[str, list[str]]:
    wrong = PAGE.read_text(encoding="utf-8").partition("## What students get wrong")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (p\d\d(?:, part 1)?) \| (.*?) \|", wrong, re.MULTILINE)
    return {lesson: made.split("; ") for lesson, made in rows}


SAID = {
    "a later score becomes 0 and not minus infinity": "a later score becomes 0, not minus infinity",
    "neighbors are taken for RoPE's pairs": "neighbors are taken for pairs",
    "softmax overflows": "softmax that overflows",
    "the newest goes first": "p00: the newest first",
    "a sequence is admitted again at every step": "p00: admitted again at every step",
    "nothing is ever reused, and the tokens are right": "p01: nothing is ever reused",
    "a preempted sequence keeps its pages, or goes to the end of the queue": "a preempted sequence keeps its pages",
    "idle time counts into the pace": "idle time counts",
}
"""What the page says in more words than the test that makes the mistake."""


@pytest.mark.parametrize("lesson", mistakes_on_the_page())
def test_a_mistake_on_the_page_is_made_by_a_test(lesson):
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests" / "course").glob("test_check*.py"))
    for mistake in mistakes_on_the_page()[lesson]:
        assert re.search(rf'^    "(p\d\d: )?{re.escape(SAID.get(mistake, mistake))}": \(', tests, re.MULTILINE), mistake


# -- handouts: python -m gradus.course.handout ../handout --from p04 ---------------------------------------------------


def test_a_handout_has_no_function_of_ours_from_a_phase_on(tmp_path):
    cut_files = handout.hand_out(tmp_path / "copy", phases.find("p04"))
    for info in phases.available():
        for exercise in exercises_of(info):
            source = (tmp_path / "copy" / exercise.file).read_text(encoding="utf-8")
            hides = info.number >= 4 and info.name not in handout.AROUND
            assert unwritten(source, exercise.functions) == (list(exercise.functions) if hides else [])
            assert hides == (exercise.file in cut_files)
    assert not (tmp_path / "copy" / ".git").exists()


def test_a_handout_overwrites_nothing(tmp_path):
    with pytest.raises(ConfigError, match="there already"):
        handout.hand_out(tmp_path, phases.find("p04"))


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [phase.name for phase in phases.available()])
def test_a_phase_is_checked_in_its_handout(name, tmp_path):
    info = phases.find(name)
    handout.hand_out(tmp_path / "copy", info)
    folder = tmp_path / "copy" / "exercises" / name
    folder.mkdir(parents=True)
    for exercise in exercises_of(info):
        shutil.copy(ROOT / exercise.file, folder)
    done = subprocess.run(
        [sys.executable, "-m", "gradus", "check", name],
        cwd=tmp_path / "copy",
        env={
            "PYTHONPATH": f"{tmp_path / 'copy' / 'src'}:{tmp_path / 'copy'}",
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]
