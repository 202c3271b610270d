"""`gradus check --open` and the reader's ladder, as they are typed."""

import hashlib
import json
import subprocess
from datetime import datetime
from importlib.util import find_spec

import pytest

from gradus import phases
from gradus.course.open import attempt
from gradus.course.open.attempt import Found
from gradus.course.student.check import Verdict
from gradus.exercises.declaration import exercises_of
from tests.course.conftest import reference
from tests.forked import run_forked


@pytest.fixture
def found(monkeypatch):
    """Make the judge's findings up: found(0.7) or found(error="…"), for the checks that follow."""

    def set_to(ratio: float = 1.0, fullest: float = 0.5, error: str = "") -> None:
        numbers = {"visits": ratio, "fullest": fullest}, {"visits": 1.0, "fullest": 1.0}
        result = Found((1,), error) if error else Found((1,), "", "", *numbers, (ratio,), ratio)
        monkeypatch.setattr(attempt, "attempt", lambda phase, file, seed=None: result)

    return set_to


@pytest.fixture
def forked(monkeypatch) -> None:
    """Let the judge's processes be forked ones."""
    monkeypatch.setattr(subprocess, "run", run_forked)


def test_a_task_is_begun_and_measured(gradus, tmp_path):
    """The judge's process is not forked here: it imports all that it needs."""
    code, out, _ = gradus("check", "--open", "p14")
    file = tmp_path / "exercises" / "open" / "p14" / "yours.py"
    assert code == 0 and "gradus check --open p14" in out and "def place(" in file.read_text()
    code, out, _ = gradus("check", "--open", "p14", "--seed", "3")
    assert (
        code == 1
        and "score      1.00, the goal is 0.85 or less" in out
        and "fullest    1.00 of the beginning's, the goal is 0.90 or less\n" in out
        and out.endswith("\nNot yet.\n")
    )
    assert "seeds 3, " in out and "your best  1.00, not reached" in out


def test_what_does_not_count_is_refused(gradus, forked, tmp_path):
    gradus("check", "--open", "p14")
    file = tmp_path / "exercises" / "open" / "p14" / "yours.py"
    file.write_text("def place(seen, experts, ranks):\n    return [0] * experts\n")
    code, out, _ = gradus("check", "--open", "p14")
    assert code == 1 and out.startswith("does not count: each of 8 ranks must have 8 of the 64 experts\n")
    for source, says in (
        ("1 / 0\n", "ZeroDivisionError: division by zero (line 1)"),
        ("def place(:\n", "line 1: invalid syntax"),
        ("import os\nprint('bye')\nos._exit(3)\n", "it ended the judge's process (exit code 3)"),
    ):
        file.write_text(source)
        code, out, _ = gradus("check", "--open", "p14")
        assert code == 1 and says in out, out


def test_options_that_do_not_go_together_are_refused(gradus):
    for options, idle in (
        (["--open", "--hint", "1"], "--hint"),
        (["--seed", "1"], "--seed"),
        (["--command", "./engine", "--open", "--seed", "1"], "--open and --seed"),
    ):
        code, out, err = gradus("check", "p06", *options)
        assert (code, out) == (2, "") and f"leave out {idle}" in err


def test_a_file_that_hangs_is_given_up(gradus, forked, tmp_path, monkeypatch):
    monkeypatch.setattr(attempt, "SECONDS", 2)
    (tmp_path / "mine.py").write_text("import time\n\nwhile True:\n    time.sleep(0.1)\n")
    code, out, _ = gradus("check", "--open", "p14", "--impl", "mine.py")
    assert code == 1 and "the trials had not ended after 2 s" in out


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is for Linux alone")
def test_kernels_are_interpreted(forked, tmp_path, monkeypatch):
    monkeypatch.setattr(attempt, "seeds_of", lambda task, seed: (seed,))
    info = phases.find("p09")
    file = tmp_path / "yours.py"
    file.write_text(attempt.task_of(info).start)
    result = attempt.attempt(info, file, seed=1)
    assert not result.error and result.ratio == 1.0
    file.write_text(
        "from phases.p09_triton_attention.paged_attention import paged_attention_reference as slow\n\n\n"
        "def attend(q, keys, values, tables, lengths, scale):\n"
        "    start = lengths.new_tensor(range(len(lengths) + 1))\n"
        "    return slow(q, keys, values, tables, start, lengths, longest=1, scale=scale)\n"
    )
    result = attempt.attempt(info, file, seed=1)
    assert not result.error and result.ratio > 1  # a gather in torch is counted, too
    for copied, says in (("torch.stack([each[page] for page in used])", ""), ("each.numpy()[used]", "stay in torch")):
        file.write_text(
            "import torch\nfrom phases.p09_triton_attention.paged_attention import paged_attention\n\n\n"
            "def attend(q, keys, values, tables, lengths, scale):\n"
            "    start, used = lengths.new_tensor(range(len(lengths) + 1)), tables.unique().tolist()\n"
            "    tables = torch.searchsorted(torch.tensor(used), tables)\n"
            f"    keys, values = ({copied} for each in (keys, values))\n"
            "    return paged_attention(q, keys, values, tables, start, lengths, longest=1, scale=scale)\n"
        )
        result = attempt.attempt(info, file, seed=1)
        assert says in result.error and (says or result.ratio > 1)  # reading a copy is reading, too


def test_the_ladder_keeps_the_best_attempt_that_counts(gradus, found, tmp_path):
    gradus("check", "--open", "p14")
    file = tmp_path / "exercises" / "open" / "p14" / "yours.py"
    today = datetime.now().astimezone().date().isoformat()
    found(0.9)
    assert gradus("check", "--open", "p14")[0] == 1
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    record = json.loads((tmp_path / "exercises" / "ladder.json").read_text())["p14"]
    assert record == {
        "ratio": 0.9, "reached": False, "day": today, "sha256": digest, "file": "exercises/open/p14/yours.py"
    }  # fmt: skip
    file.write_text("# better\n")
    found(0.8)
    code, out, _ = gradus("check", "--open", "p14")
    assert code == 0 and out.endswith("\nReached.\n") and f"your best  0.80, reached, {today}, file " in out
    for worse in (
        lambda: found(0.84),
        lambda: found(0.5, fullest=0.95),
        lambda: found(0.5, fullest=1.05),
        lambda: found(error="a wrong token"),
    ):
        worse()
        gradus("check", "--open", "p14")
        assert json.loads((tmp_path / "exercises" / "ladder.json").read_text())["p14"]["ratio"] == 0.8


def test_the_ladder_lists_every_phase(gradus, found, tmp_path):
    gradus("check", "--open", "p14")
    found(0.8)
    gradus("check", "--open", "p14")
    code, out, _ = gradus("progress", "--ladder")
    lines = out.splitlines()
    assert code == 0 and lines[0].split() == ["phase", "passed", "open", "task", "day", "file"]
    names = [info.name for info in phases.available()]
    assert [line.split()[0] for line in lines[1 : len(names) + 1]] == names
    assert "0.80, reached" in lines[len(names)] and lines[1].rstrip().endswith("not begun")
    assert lines[-1] == f"1 of {len(names)} open tasks reached."
    assert "\nOpen tasks: 1 tried, 1 reached (gradus progress --ladder).\n" in gradus("progress")[1]
    rungs = json.loads(gradus("progress", "--ladder", "--json")[1])["ladder"]
    assert rungs[-1]["open"]["ratio"] == 0.8 and rungs[0]["open"] is None and rungs[0]["exercises"] == 6
    (tmp_path / "exercises" / "ladder.json").write_text('{"p14": {"ratio": 1}}')
    assert json.loads(gradus("progress", "--ladder", "--json")[1])["ladder"][-1]["open"] is None


def test_a_copy_in_another_folder_does_not_change_the_progress_of_a_file_in_exercises(gradus, tmp_path, monkeypatch):
    def verdict(phase, one, **_):
        wrong = "wrong" in one.file.read_text()
        return Verdict(not wrong, "it is wrong" if wrong else "it passes", tests=3)

    monkeypatch.setattr("gradus.course.student.check.check", verdict)
    monkeypatch.setattr("gradus.course.student.check._together", lambda *_: None)

    def state() -> str:
        rows = json.loads(gradus("progress", "--json")[1])["exercises"]
        return next(row["state"] for row in rows if row["phase"] == "p06")

    (name,) = (exercise.file_name for exercise in exercises_of(phases.find("p06")))
    for folder, remark in (("exercises/p06", ""), ("experiment", "# wrong\n")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(reference("p06") + remark)
    code, _, err = gradus("check", "p06", "--impl", "experiment")
    assert code == 1 and f"`gradus progress` follows exercises/p06/{name}, and not this copy" in err
    assert state() == "unchecked"
    assert gradus("check", "p06")[0] == 0 and state() == "passed"
    assert gradus("check", "p06", "--impl", "experiment")[0] == 1 and state() == "passed"
    (tmp_path / "exercises" / "p06" / name).unlink()
    assert gradus("check", "p06", "--impl", "experiment")[0] == 1 and state() == "failing"
