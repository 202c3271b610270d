"""The course on the command line, as a student types it."""

import os
import subprocess
import sys

import pytest

from gradus.cli import main
from gradus.course.check import Verdict
from tests.course.conftest import reference


@pytest.fixture
def gradus(tmp_path, monkeypatch, capsys):
    """gradus("check", "p01") in an empty folder → exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_from_the_exercise_to_the_hint(gradus, tmp_path):
    code, out, _ = gradus("exercise", "p01")
    file = tmp_path / "exercises" / "p01" / "contiguous.py"
    assert code == 0 and "Contiguous.reserve" in out and "gradus check p01" in out
    assert 'raise NotImplementedError("p01: Contiguous.reserve")' in file.read_text()

    code, out, err = gradus("check", "p01")
    assert code == 1 and "still to be written" in out and "--hint" in err

    file.write_text(reference("p01").replace("def stored", "def sotred"))
    for number, shown in ((1, 1), (3, 3)):
        code, out, _ = gradus("check", "p01", "--hint", str(number))
        assert (code, out.count("  hint ")) == (1, shown)
        assert "\nContiguous.stored\n" in out and "Contiguous.reserve" not in out


def test_the_students_file_is_never_written_over_unless_asked(gradus, tmp_path):
    file = tmp_path / "mine" / "scheduler.py"
    assert gradus("exercise", "p03", "--to", "mine")[0] == 0
    file.write_text("an hour's work")
    code, _, err = gradus("exercise", "p03", "--to", "mine")
    assert code == 2 and err.startswith("gradus: mine/scheduler.py is there already") and "--force" in err
    assert file.read_text() == "an hour's work"
    assert gradus("exercise", "p03", "--to", "mine", "--force")[0] == 0
    assert "ContinuousBatching" in file.read_text()


def test_an_exercise_of_several_files_is_written_and_judged_file_by_file(gradus, tmp_path):
    code, out, _ = gradus("exercise", "p04", "--to", "mine")
    assert code == 0 and {path.name for path in (tmp_path / "mine").iterdir()} == {
        "cache.py",
        "scheduler.py",
        "attention.py",
    }
    assert all(f"gradus check p04 --impl mine/{name}.py" in out for name in ("cache", "scheduler", "attention"))
    assert gradus("exercise", "p04")[0] == 0
    code, out, _ = gradus("check", "p04", "--hint", "1")
    assert code == 1 and out.count("still to be written") == 3
    assert "\nPagedCache.reserve\n" in out and "\nPagedBatching.make_room\n" in out
    code, out, _ = gradus("check", "p04", "--impl", "mine/scheduler.py")
    assert code == 1 and "PagedBatching.preempt" in out and "PagedCache" not in out
    (tmp_path / "solution.py").write_text("")
    code, out, err = gradus("check", "p04", "--impl", "solution.py")
    assert (code, out) == (2, "") and "name your file cache.py or scheduler.py or attention.py, not solution.py" in err


def test_a_solution_is_judged_in_processes_of_its_own(tmp_path):
    wrong = reference("p00", "scheduler.py").replace("not self.running and ", "")
    (tmp_path / "scheduler.py").write_text(wrong)
    command = [sys.executable, "-m", "gradus", "check", "p00", "--impl", "scheduler.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("p00: one sequence runs at a time, and this plan has 2 spans")


def test_the_test_that_failed_and_what_was_printed_go_to_stderr(gradus, monkeypatch, tmp_path):
    verdict = Verdict(False, "it is wrong", "tests/phases/test_oracle.py, line 9", ("Contiguous.stored",), "a = 3")
    monkeypatch.setattr("gradus.course.check.check", lambda phase, file: verdict)
    code, out, err = gradus("check", "p01", "--impl", "mine.py")
    assert (code, out) == (1, "p01: it is wrong\n")
    assert "the test: tests/phases/test_oracle.py, line 9" in err and "a = 3" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["exercise", "p99"], "phase must be one of p00"),
        (["exercise", "p01", "--to", "/proc/nowhere"], "cannot be written"),
        (["check", "p01"], "start with `gradus exercise p01`"),
        (["check", "p01", "--impl", "nowhere.py"], "nowhere.py cannot be read"),
        (["check", "p01", "--hint", "4"], "--hint"),
        (["diff", "p00"], "new"),
        (["diff", "p00", "p77"], "p77"),
        (["show", "p77"], "p77"),
        (["flat", "p77"], "p77"),
    ],
)
def test_a_mistake_gets_one_line(gradus, arguments, says):
    code, out, err = gradus(*arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("gradus: ") and says in err.lower()


def test_show_prints_the_files_one_after_the_other(gradus):
    code, out, _ = gradus("show", "p01")
    assert code == 0
    assert out.index("phases/p01_kv_cache/contiguous.py =") < out.index("src/gradus/attention/reference.py =")
    assert reference("p01").strip() in out


def test_diff_is_plain_text_where_there_is_no_terminal(gradus):
    code, out, _ = gradus("diff", "p00", "p01")
    assert code == 0 and "\x1b" not in out
    assert "+from phases.p01_kv_cache.contiguous import Contiguous, ContiguousAttention\n" in out


def test_flat_prints_the_file(gradus):
    code, out, _ = gradus("flat", "p01")
    assert code == 0
    compile(out, "p01.py", "exec")
