"""The course on the command line, as a student types it."""

import importlib
import json
from itertools import pairwise
from types import SimpleNamespace

import pytest

from gradus import phases
from gradus.course.student.check import Verdict
from gradus.exercises.declaration import exercises_of
from tests.course.conftest import reference
from tests.phases import judge


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
    assert out.endswith("\nThen:\n  gradus check p04 --impl mine\n")
    assert gradus("exercise", "p04")[0] == 0
    code, out, _ = gradus("check", "p04", "--hint", "1")
    assert code == 1 and out.count("still to be written") == 3
    assert "\nPagedCache.reserve\n" in out and "\nPagedBatching.make_room\n" in out
    code, out, _ = gradus("check", "p04", "--impl", "mine/scheduler.py")
    assert code == 1 and "PagedBatching.preempt" in out and "PagedCache" not in out
    (tmp_path / "solution.py").write_text("")
    code, out, err = gradus("check", "p04", "--impl", "solution.py")
    assert (code, out) == (2, "") and "solution.py has no function of p04: " in err
    (tmp_path / "all.py").write_text("".join(file.read_text() for file in (tmp_path / "mine").iterdir()))
    code, out, _ = gradus("check", "p04", "--impl", "all.py")
    assert code == 1 and out.count("still to be written") == 3
    code, out, err = gradus("exercise", "p04", "--only", "pool.py")
    assert code == 2 and "p04 has no file pool.py to write, only cache.py, scheduler.py, attention.py" in err
    (tmp_path / "exercises" / "p04" / "cache.py").unlink()
    assert gradus("exercise", "p04", "--only", "cache.py")[0] == 0


@pytest.fixture
def judged(monkeypatch):
    """Verdicts without tests: a file passes unless it says "wrong"."""

    def verdict(phase, found, **_):
        if not found.complete:
            return Verdict(False, "still to be written", suspects=found.unwritten)
        wrong = "wrong" in found.file.read_text()
        return Verdict(
            not wrong, "it is wrong" if wrong else "it passes", tests=3, kept=("one thing holds", "another holds")
        )

    monkeypatch.setattr("gradus.course.student.check.check", verdict)
    monkeypatch.setattr("gradus.course.student.check._together", lambda *_: None)  # so each file is judged alone


def test_success_says_what_was_right_and_what_comes_next(gradus, judged, tmp_path):
    folder = tmp_path / "exercises" / "p04"
    folder.mkdir(parents=True)
    (folder / "cache.py").write_text(reference("p04", "cache.py"))
    code, out, _ = gradus("check", "p04")
    assert code == 0 and out.startswith("p04: it passes\n  ✓ one thing holds\n  ✓ another holds\n")
    assert "p00" not in out and out.endswith(":\n  gradus exercise p04 --only scheduler.py\n")
    for name in ("scheduler.py", "attention.py"):
        (folder / name).write_text(reference("p04", name))
    code, out, _ = gradus("check", "p04")
    assert code == 0 and "All of p04 is written. Now try:" in out and "gradus bench p04 --quick --impl exercises" in out
    assert "\nNext: Prefix cache: " in out and out.endswith(":\n  gradus exercise p05\n")


def test_after_a_phase_without_an_engine_its_program_is_what_to_try(gradus, judged, tmp_path):
    folder = tmp_path / "exercises" / "p13"
    folder.mkdir(parents=True)
    for exercise in exercises_of(phases.find("p13")):
        (folder / exercise.file_name).write_text(reference("p13", exercise.file_name))
    code, out, _ = gradus("check", "p13")
    assert code == 0 and "  python -m phases.p13_serving --impl exercises\n" in out
    assert "generate" not in out and "bench" not in out


def next_of(out: str) -> str:
    """The command that is proposed, alone on the line below its reason."""
    reason, command = out.rstrip("\n").split("\n")[-2:]
    assert reason.startswith("Next: ") and reason.endswith(":") and command.startswith("  gradus "), out
    return command.strip()


def test_what_comes_next_is_where_the_exercise_was_begun(gradus, judged, tmp_path):
    """A folder of the student's own counts, whatever exercises/ holds."""
    assert gradus("exercise", "p00")[0] == 0
    assert gradus("exercise", "p00", "--to", "mine")[0] == 0
    assert next_of(gradus("progress")[1]) == "gradus check p00 --impl mine/embedding.py"
    files = ["embedding.py", "attention.py", "rope.py", "heads.py", "sampling.py", "scheduler.py"]
    for name, following in pairwise(files):
        (tmp_path / "mine" / name).write_text(reference("p00", name))
        code, out, _ = gradus("check", "p00", "--impl", f"mine/{name}")
        assert code == 0 and next_of(out) == f"gradus check p00 --impl mine/{following}"
        assert f" in mine/{following}, then:" in out
    (tmp_path / "mine" / "scheduler.py").unlink()
    (tmp_path / "exercises" / "p00" / "scheduler.py").unlink()
    assert next_of(gradus("progress")[1]) == "gradus exercise p00 --only scheduler.py --to mine"


def test_files_that_were_not_begun_wait(gradus, judged, tmp_path):
    """The lesson's own flow: one file after the other, checked by the same short command."""
    assert gradus("exercise", "p04")[0] == 0
    folder = tmp_path / "exercises" / "p04"
    (folder / "cache.py").write_text(reference("p04", "cache.py"))
    code, out, _ = gradus("check", "p04")
    assert code == 0 and "still to be written" not in out and next_of(out) == "gradus check p04"
    assert " in exercises/p04/scheduler.py, then:" in out
    code, out, _ = gradus("check", "p04", "--hint", "1")
    assert code == 0 and "\nPagedBatching.make_room\n  hint 1: " in out and "PagedAttention" not in out.split("Next")[0]
    (folder / "scheduler.py").write_text(reference("p04", "scheduler.py") + "# wrong\n")
    code, out, _ = gradus("check", "p04")
    assert code == 1 and out == "p04: cache.py is as it was when it passed\np04: it is wrong\n"


def test_files_that_pass_together_have_one_total_and_claims_of_their_own(gradus, tmp_path, monkeypatch):
    names = ("cache.py", "scheduler.py", "attention.py")
    cache, scheduler, _ = (f"phases.p04_paged_cache.{name[:-3]}" for name in names)
    kept = [(0, "a page belongs to one", [cache]), (1, "the last gives way", [scheduler]), (2, "all get tokens", [])]
    facts = {"passed": 7, "kept": kept, "failure": None}
    monkeypatch.setattr("gradus.course.student.check._run", lambda *_: facts)
    folder = tmp_path / "exercises" / "p04"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(reference("p04", name))
    code, out, _ = gradus("check", "p04")
    total = "p04: cache.py, scheduler.py and attention.py pass all 7 tests\n  ✓ all get tokens\n"
    own = "  cache.py\n    ✓ a page belongs to one\n  scheduler.py\n    ✓ the last gives way\n"
    assert code == 0 and out.startswith(total + own + "\nAll of p04 is written.")
    code, out, _ = gradus("check", "p04", "--impl", "exercises/p04/scheduler.py")
    assert out.startswith("p04: scheduler.py passes all 7 tests\n  ✓ the last gives way\n\n")


def test_a_promise_is_about_a_file_that_a_student_writes():
    """Where a test drives a whole engine, `about` names the file: p04's scheduler preempts, not its cache."""
    files = {"paging": "p04", "prefix": "p05", "overlap": "p10", "graphs": "p10"}
    for name, phase in files.items():
        module = importlib.import_module(f"tests.phases.test_promises_{name}")
        modules = [exercise.module for exercise in exercises_of(phases.find(phase))]
        parts = {name: test.about for name, test in vars(module).items() if hasattr(test, "about")}
        assert parts and all(any(one.endswith(f".{part}") for one in modules) for part in parts.values())
    preempted = importlib.import_module("tests.phases.test_promises_paging")
    item = SimpleNamespace(function=preempted.test_no_plan_runs_a_sequence_that_has_no_pages, module=preempted)
    near = [name for name in ("cache", "scheduler") if judge.is_near(item, f"phases.p04_paged_cache.{name}")]
    assert near == ["scheduler"]


def test_progress_knows_passed_failing_unchecked_and_not_begun(gradus, judged, tmp_path):
    code, out, _ = gradus("progress")
    assert code == 0 and "0 of " in out and out.endswith(":\n  gradus exercise p00\n")
    assert gradus("exercise", "p01")[0] == 0
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "any_name.py").write_text(reference("p03"))
    assert gradus("check", "p03", "--impl", "mine")[0] == 0
    (mine / "other.py").write_text(reference("p06") + "# wrong\n")
    assert gradus("check", "p06", "--impl", "mine")[0] == 1

    def states() -> dict[str, str]:
        code, out, _ = gradus("progress", "--json")
        assert code == 0
        return {row["phase"]: row["state"] for row in json.loads(out)["exercises"]}

    found = states()
    assert (found["p01"], found["p02"], found["p03"], found["p06"]) == ("not begun", "not begun", "passed", "failing")
    (mine / "any_name.py").write_text(reference("p03") + "# edited\n")
    file = tmp_path / "exercises" / "p01" / "contiguous.py"
    file.write_text(file.read_text().replace('raise NotImplementedError("p01: Contiguous.stored")', "return 0"))
    found = states()
    assert (found["p01"], found["p03"]) == ("begun", "unchecked")
    _, out, _ = gradus("progress")
    assert "changed since its check" in out and "it is wrong" in out
    (tmp_path / "exercises" / "progress.json").write_text("not JSON")
    assert states()["p03"] == "not begun"


def test_our_solution_is_shown_once_theirs_passes(gradus, judged, tmp_path):
    code, out, err = gradus("solution", "p01")
    assert (code, out) == (2, "") and "yours first: `gradus check p01` must pass" in err
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "cache.py").write_text(reference("p01").replace("if id == self.owner", "if self.owner == id"))
    assert gradus("check", "p01", "--impl", "mine")[0] == 0
    for arguments in (("--impl", "mine"), ("--impl", "mine", "--plain"), ()):
        code, out, _ = gradus("solution", "p01", *arguments)
        assert code == 0 and "\x1b" not in out
        assert "# Contiguous.stored\n\n# -- yours\ndef stored" in out
        assert "if self.owner == id" in out and "if id == self.owner" in out
    code, out, _ = gradus("solution", "p02", "--anyway")
    assert code == 0 and "# -- ours" in out and "# -- yours" not in out


def test_a_solution_is_judged_in_a_process_of_its_own(gradus, tmp_path):
    wrong = reference("p00", "scheduler.py").replace("not self.running and ", "")
    (tmp_path / "scheduler.py").write_text(wrong)
    code, out, err = gradus("check", "p00", "--impl", "scheduler.py")
    assert code == 1, err
    assert out.startswith("p00: one sequence runs at a time, and this plan has 2 spans")


def test_the_test_that_failed_and_what_was_printed_go_to_stderr(gradus, monkeypatch, tmp_path):
    verdict = Verdict(False, "it is wrong", "tests/phases/test_oracle.py, line 9", ("Contiguous.stored",), "a = 3")
    monkeypatch.setattr("gradus.course.student.check.check", lambda phase, file, **_: verdict)
    (tmp_path / "mine.py").write_text(reference("p01"))
    code, out, err = gradus("check", "p01", "--impl", "mine.py")
    assert (code, out) == (1, "p01: it is wrong\n")
    assert "the test: tests/phases/test_oracle.py, line 9" in err and "a = 3" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["exercise", "p99"], "phase must be one of p00"),
        (["exercise", "p01", "--to", "/proc/nowhere"], "cannot be written"),
        (["check", "p01"], "start with `gradus exercise p01`"),
        (["check", "p01", "--impl", "nowhere.py"], "nowhere.py: no such file or folder"),
        (["check", "p01", "--hint", "4"], "--hint"),
        (["check", "p01", "--hint"], "--hint"),
        (["check", "p01", "mine.py"], "mine.py"),
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
