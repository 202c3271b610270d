"""`gradus check --command`: whatever a program does, one clear line says so, and its process ends."""

import json
import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from gradus.cli import main
from gradus.course.foreign.judge import judge
from gradus.course.foreign.program import Program
from gradus.errors import ConfigError

OK = "import sys\nfor line in sys.stdin: print('{\"ok\": true}', flush=True)"


def script(code: str) -> str:
    return f"{sys.executable} -S -c {shlex.quote(code)}"


def sentence(code: str, models, phase: str = "p00", seconds: float = 10) -> str:
    verdict = judge(phase, script(code), models, seconds)
    assert not verdict.passed and "\n" not in verdict.sentence
    return verdict.sentence


def stepping(report: str) -> str:
    """A program that answers every step with this."""
    return f"import sys\nfor line in sys.stdin: print({report!r} if 'step' in line else '{{}}', flush=True)"


FAULTS = {
    "ends at once": (
        "import sys; sys.exit('no model here')",
        "no answer to 'configure'",
        "(exit code 1); its stderr ends: no model here",
    ),
    "dies by a signal": ("import os; os.abort()", "no answer to 'configure'", "(killed by signal 6)"),
    "writes no JSON": (
        "import sys\nfor line in sys.stdin: print('hello', flush=True)",
        "the answer to 'configure' must be one JSON object, got hello, when checking that greedy tokens",
    ),
    "writes a list": (
        "import sys\nfor line in sys.stdin: print('[1]', flush=True)",
        "must be one JSON object, got [1]",
    ),
    "refuses to be configured": (
        'import sys\nfor line in sys.stdin: print(\'{"error": "no pages yet"}\', flush=True)',
        "is refused: no pages yet (greedy tokens are the oracle's)",
    ),
    "reports no spans": (OK, "step 1: {'ok': True} has no 'spans'"),
    "reports text for a number": (
        stepping('{"spans": [{"id": "a", "start": "0", "count": 1, "tokens": [1]}], "ended": []}'),
        "step 1: 'start' must be a whole number, got 0",
    ),
    "runs what nobody asked for": (
        stepping('{"spans": [{"id": "z", "start": 0, "count": 1, "tokens": [1]}], "ended": []}'),
        "step 1 runs 'z', which is not under way",
    ),
    "makes the wrong token": (
        stepping('{"spans": [{"id": "a", "start": 0, "count": 1, "tokens": [0]}], "ended": []}'),
        "token 1 is 0, the oracle's is",
        "the first differs (greedy tokens are the oracle's)",
    ),
    "does nothing": (
        stepping('{"spans": [], "ended": []}'),
        "after 400 steps request 1 (a, a prompt of 1 token: [",
        "]) has 0 of 8 tokens",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_program_is_one_line(fault, models):
    code, *says = FAULTS[fault]
    said = sentence(code, models)
    assert all(each in said for each in says), said


def test_a_program_that_hangs_is_given_up_and_ended_with_its_children(models, tmp_path):
    child = tmp_path / "child"
    code = f"""
import subprocess, sys, time
sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open({str(child)!r}, "w").write(str(sleeper.pid))
print("waiting for the GPU", file=sys.stderr, flush=True)
time.sleep(600)
"""
    said = sentence(code, models, seconds=3)
    assert "no answer to 'configure' within 3 s; its stderr ends: waiting for the GPU" in said
    assert is_gone(int(child.read_text()))


def is_gone(process: int) -> bool:
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{process}/stat").is_file() and ") Z " in Path(f"/proc/{process}/stat").read_text():
            return True  # ended, and not yet waited for by its new parent
        time.sleep(0.05)
    return False


def test_a_program_that_ends_before_it_listens(models):
    verdict = judge("p00", script("import sys; sys.exit('port in use')") + " {port}", models)
    assert verdict.sentence == "it ended before it listened (exit code 1); its stderr ends: port in use"


def test_a_program_that_never_listens(models):
    verdict = judge("p00", script("import time; time.sleep(600)") + " {port}", models, seconds=1)
    assert verdict.sentence.startswith("nothing listens on port ") and verdict.sentence.endswith("after 1 s")


def test_streams_need_a_port(models):
    assert "name {port} in the command" in judge("p13", script(OK), models).sentence


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "must name a program"),
        ("./engine {model}", "only {port} is filled in, got {model}"),
        ("./engine 'x", "cannot be split into words"),
        ("./no-such-engine", "./no-such-engine cannot be started: No such file or directory"),
    ],
)
def test_a_command_that_cannot_run_is_refused(command, says):
    with pytest.raises(ConfigError, match="--command") as refused:
        Program(command, 1.0)
    assert says in str(refused.value)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Verdicts are recorded below the current folder."""
    monkeypatch.chdir(tmp_path)


def test_the_command_line_and_the_progress_that_it_records(engine, capsys):
    assert main(["check", "p03", "--command", str(engine)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("p03: keeps all 4 promises\n  ✓ a waiting request joins in the step after one ends\n")
    assert main(["check", "p13", "--command", str(engine)]) == 1
    capsys.readouterr()
    assert main(["progress"]) == 0
    assert f"{engine}: p03 passed; p13 failing\n" in capsys.readouterr().out
    assert main(["progress", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["programs"]
    assert [(each["phase"], each["passed"]) for each in found] == [("p03", True), ("p13", False)]


def test_all_phases_have_a_line_each(capsys):
    assert main(["check", "--command", script("raise SystemExit(3)")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in lines] == [f"p{number:02}: " for number in (*range(9), 13)]
    assert all("(exit code 3)" in line for line in lines[:-1])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["p11", "--command", "./engine"], "--command judges p00, p01"),
        (["p01", "--command", "./engine", "--hint", "1"], "leave out --hint"),
        ([], "name a phase, as in `gradus check p01`"),
    ],
)
def test_what_cannot_be_judged_is_refused(arguments, says, capsys):
    assert main(["check", *arguments]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
