"""A student's functions are found under any file name, run in place of ours, and leave ours as they were."""

import sys
from pathlib import Path

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.config.settings import Settings
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.errors import ConfigError
from gradus.exercises import solution
from gradus.exercises.declaration import exercises_of, reference_of
from gradus.exercises.skeleton import cut
from gradus.models import SHAPES, create_model, randomize

STORED = "return self.length if id == self.owner else 0"


def reference(phase: str, number: int = 0) -> str:
    info = phases.find(phase)
    return reference_of(info, exercises_of(info)[number])


def skeleton(phase: str, number: int = 0) -> str:
    info = phases.find(phase)
    exercise = exercises_of(info)[number]
    return cut(reference_of(info, exercise), exercise.functions, phase)


@pytest.fixture
def folder(tmp_path):
    """folder({"a.py": text}) → a folder with these files."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    return write


def answer(module) -> list[int]:
    """Six tokens of a tiny model, from a phase's `build`."""
    model = create_model(SHAPES["tiny-llama"])
    randomize(model, seed=0)
    limits = ModelLimits(model.config.vocab_size, 32)
    engine = module.build(model, EngineOptions(limits, 2))
    engine.submit(Request.create("a", [1, 2, 3], SamplingParams(max_tokens=6), limits))
    tokens = []
    with torch.inference_mode():
        while engine.has_work:
            tokens += [token for output in engine.step() for token in output.tokens]
    return tokens


@pytest.mark.parametrize("phase", [phase.name for phase in phases.engines() if phase.name < "p09"])
def test_the_reference_under_other_names_runs_as_the_phase_does(folder, phase):
    info = phases.find(phase)
    texts = {f"mine{number}.py": reference_of(info, one) for number, one in enumerate(exercises_of(info))}
    yours = solution.load(phase, folder(texts))
    assert answer(yours) == answer(phases.load(phase))
    assert len(yours.files) == len(texts) and "ours" not in yours.note


def test_the_students_functions_run_and_ours_stay(folder):
    where = folder(
        {"mine.py": reference("p01").replace(STORED, f"CALLS.append(id)\n        {STORED}") + "\n\nCALLS = []"}
    )
    ours = sys.modules["phases.p01_kv_cache.contiguous"] = phases.find("p01").module("contiguous")
    yours = solution.load("p01", where)
    assert answer(yours) == answer(phases.load("p01"))
    assert yours.module("contiguous").CALLS and not hasattr(ours, "CALLS")
    assert phases.find("p01").module("contiguous") is ours
    assert phases.load("p01") is not yours.module("engine")
    assert not list(where.rglob("__pycache__"))


def test_all_exercises_of_a_phase_may_be_in_one_file(folder):
    text = "\n\n".join(reference("p04", number) for number in range(3))
    yours = solution.load("p04", folder({"everything.py": text}) / "everything.py")
    assert len(yours.files) == 3 and answer(yours) == answer(phases.load("p04"))


def test_a_folder_with_a_folder_per_phase_will_do(folder):
    where = folder({"p01/contiguous.py": reference("p01"), "p03/scheduler.py": reference("p03")})
    assert solution.load("p01", where).note == "your p01: contiguous.py"
    assert solution.load("p03", where).note == "your p03: scheduler.py"


def test_an_exercise_that_is_only_begun_is_left_to_ours_and_that_is_said(folder):
    where = folder({"a.py": reference("p04"), "b.py": skeleton("p04", 1)})
    yours = solution.load("p04", where)
    assert list(yours.files) == ["phases.p04_paged_cache.cache"]
    assert yours.note == (
        "your p04: a.py; ours: scheduler.py (PagedBatching.may_start, PagedBatching.make_room and "
        "PagedBatching.preempt still to be written), attention.py"
    )


def test_a_helper_named_like_another_exercises_function_begins_no_exercise(folder):
    own_softmax = reference("p00", 4) + "\n\ndef softmax(scores):\n    return scores.softmax(-1)\n"
    info = phases.find("p00")
    found = solution.search(info, solution.files_in(folder({"draw.py": own_softmax}), info))
    assert [one.exercise.file_name for one in found] == ["sampling.py"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a.py": "x = 1\n"}, "has no function of p01: its exercise asks for Contiguous.stored"),
        ({"a.py": reference("p01").replace("def stored(self", "def stored(self:")}, r"a\.py, line \d+: "),
        ({"a.py": skeleton("p01")}, "Contiguous.stored, .* are still to be written, so there is no p01 of yours"),
        ({"a.py": reference("p01").replace("def stored", "def sotred")}, "it has no Contiguous.stored"),
        ({"a.py": reference("p01"), "b.py": reference("p01")}, "b.py all have Contiguous.stored: keep one"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_used_gets_one_line(folder, files, says):
    with pytest.raises(ConfigError, match=says):
        solution.load("p01", folder(files))


def test_a_path_that_is_not_there_and_one_that_is_no_python_are_named(folder):
    with pytest.raises(ConfigError, match="nowhere: no such file or folder"):
        solution.load("p01", Path("nowhere"))
    with pytest.raises(ConfigError, match=r"notes.txt: not a Python file"):
        solution.load("p01", folder({"notes.txt": "…"}) / "notes.txt")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text + "\nprint(nothing)\n", r"mine\.py, line \d+: NameError: name 'nothing' is not defined"),
        (lambda text: text + "\nimport no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        (lambda text: text.replace("capacity: int) -> None:\n", "capacity: int) -> None:\n        1 / 0\n", 1),
         r"mine\.py, line \d+: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_run_is_named_with_its_line(folder, change, says):
    yours = solution.load("p01", folder({"mine.py": change(reference("p01"))}))
    with pytest.raises(ConfigError, match=says):
        answer(yours)


def test_what_the_rest_of_the_phase_needs_of_a_file_is_named(folder):
    text = reference("p02").replace("class PaddedRunner", "class MyRunner")
    with pytest.raises(ConfigError, match="does not define PaddedRunner, which the rest of the phase imports"):
        solution.load("p02", folder({"mine.py": text})).module()


def test_files_that_the_engine_never_runs_are_no_phase_of_the_students(folder):
    yours = solution.load("p00", folder({"embedding.py": reference("p00")}))
    with pytest.raises(ConfigError, match=r"p00's engine runs nothing of embedding\.py: `gradus check p00`"):
        answer(yours)


def test_the_phase_is_known_by_its_functions(folder):
    where = folder({"p03.py": reference("p03")})
    assert Settings.of({"impl": str(where)}).phase == "p03"
    folder({"p01.py": reference("p01")})
    with pytest.raises(ConfigError, match="has functions of p01 and p03: say which with --phase"):
        Settings.of({"impl": str(where)})
    with pytest.raises(ConfigError, match="no function of any phase"):
        solution.phase_in(folder({"empty/a.py": ""}) / "empty")


def test_a_name_that_two_phases_ask_for_leaves_no_doubt_where_more_is_known(folder):
    """p08 and p13 both have a `kept`, and p13 more functions in that file."""
    number = next(i for i, one in enumerate(exercises_of(phases.find("p08"))) if one.file_name == "verification.py")
    where = folder({"mine/a.py": reference("p08", number)})
    assert "kept" in {name for one in exercises_of(phases.find("p13")) for name in one.functions}
    assert solution.phase_in(where / "mine") == "p08"
    cut_short = "def kept(a, b):\n    return a\n"
    assert solution.phase_in(folder({"p08/a.py": cut_short}) / "p08") == "p08"
    with pytest.raises(ConfigError, match="has functions of p08 and p13"):
        solution.phase_in(folder({"other/a.py": cut_short}) / "other")
