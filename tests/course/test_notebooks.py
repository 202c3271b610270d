"""Notebooks are what their pages give, run as a reader runs them, and judge what their cells define."""

import ast
import importlib.util
import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from gradus import phases
from gradus.cli import main
from gradus.course.notebook import build, inside, setup
from gradus.course.notebook.pages import Lesson, definition
from gradus.exercises.declaration import exercises_of, reference_of
from tests.course.conftest import ROOT
from tests.forked import run_forked

PASSES = {
    "p00_forward_pass": ["embedding.py", "attention.py", "rope.py", "heads.py", "sampling.py"],
    "p00": ["scheduler.py"],
    "p01": ["contiguous.py"],
    "p02": ["padded.py"],
    "p03": ["scheduler.py"],
}
"""The files that the last check of each notebook passes."""


def code_of(name: str) -> list[str]:
    made = json.loads(build.notebook(name))
    return ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]


def solved(name: str, cell: str) -> str:
    """The cell as a reader who knows our functions would have it."""
    if "raise NotImplementedError(" not in cell:
        return cell
    info = phases.find(build.PAGES[name][0])
    (wanted,) = inside.defined(cell)
    exercise = next(one for one in exercises_of(info) if wanted in inside.definitions(one))
    return definition(reference_of(info, exercise), wanted)


class Host:
    """A place to run cells, as a notebook's kernel does: one after the other, in one namespace, and kept in `In`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("phases", "src"):  # tests are found where they are: the judge goes by their place
            (folder / name).symlink_to(ROOT / name)
        (folder / "notebooks").mkdir()
        monkeypatch.chdir(folder / "notebooks")
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(inside, "run", self.command)
        monkeypatch.setattr(subprocess, "run", run_forked)
        self.cells: list[str] = []
        self.names = {"In": self.cells, "__name__": "notebook"}
        self.commands: list[str] = []
        self.capsys = capsys

    def run(self, cell: str) -> str:
        self.cells.append(cell)
        exec(compile(cell, "a cell", "exec"), self.names)
        return "".join(self.capsys.readouterr())

    def command(self, command: str) -> None:
        """Run a check in this process. What else it names waits for `test_a_notebook_s_commands_can_be_given`."""
        self.commands.append(command)
        if command.startswith("gradus check"):
            main(shlex.split(command)[1:])


@pytest.fixture
def host(tmp_path, capsys, monkeypatch) -> Host:
    return Host(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize("name", build.PAGES)
def test_a_notebook_is_what_its_page_gives(name):
    file = ROOT / "notebooks" / f"{name}.ipynb"
    same = file.is_file() and file.read_text(encoding="utf-8") == build.notebook(name)
    assert same, "python -m gradus.course.notebook.build rewrites it"


def test_no_notebook_is_left_over():
    assert {file.stem for file in (ROOT / "notebooks").glob("*.ipynb")} == build.PAGES.keys()


def last_check(cells: list[str]) -> int:
    return max(number for number, cell in enumerate(cells) if cell.startswith("check("))


@pytest.mark.parametrize("name", build.PAGES)
def test_what_a_solved_notebook_hands_to_the_check_is_our_file(name, host):
    cells = [solved(name, cell) for cell in code_of(name) if not cell.startswith("check(")]
    for cell in cells:
        host.run(cell)
    info = phases.find(build.PAGES[name][0])
    for exercise in exercises_of(info):
        file = inside.write(info, exercise, cells)
        assert (file is not None) == (exercise.file_name in PASSES[name])
        if file is not None:
            ours, theirs = reference_of(info, exercise), file.read_text(encoding="utf-8")
            assert ast.unparse(ast.parse(theirs)) == ast.unparse(ast.parse(ours))


JUDGED = {"p00_forward_pass", "p03"}  # several files, and one of an engine; the others' files are ours, as seen above


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in JUDGED else pytest.mark.stress) for name in build.PAGES]
)
def test_a_notebook_passes_its_check_with_the_functions_written(name, host):
    cells = code_of(name)
    for number, cell in enumerate(cells):
        if cell.startswith("check(") and number != last_check(cells):
            continue  # the last one judges all of it
        out = host.run(solved(name, cell))
        if cell.startswith("check("):
            assert "still to be written" not in out and "the test: " not in out, out
            assert all(file in out.partition("Next: ")[0] for file in PASSES[name]), out
    assert host.commands[-1].endswith(f"--impl exercises/notebook/{build.PAGES[name][0]}")


@pytest.mark.parametrize("name", build.PAGES)
def test_an_untouched_notebook_says_what_is_still_to_be_written(name, host):
    examples = 0
    for cell in code_of(name):
        try:
            out = host.run(cell)
        except NotImplementedError as error:  # an example, which runs the reader's functions
            assert str(error).startswith(f"{build.PAGES[name][0]}: ")
            examples += 1
            continue
        except (NameError, IndexError, ValueError):  # an example that goes on with what the one before it would make
            assert examples
            continue
        if cell.startswith("check("):
            assert "still to be written" in out and "add --hint 1" in out
    assert examples or name == "p00_forward_pass"


def outputs_to_come(name: str) -> list[str]:
    """The output that a notebook's text promises for its examples."""
    made = json.loads(build.notebook(name))
    texts = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "markdown"]
    shown = [text.partition("```text\n")[2].removesuffix("```") for text in texts]
    return [one for text, one in zip(texts, shown, strict=True) if text.startswith("This is what it should print")]


@pytest.mark.parametrize("name", [name for name in build.PAGES if name != "p00_forward_pass"])
def test_examples_print_what_the_notebook_says(name, host):
    printed = [host.run(solved(name, cell)) for cell in code_of(name) if not cell.startswith("check(")]
    wanted = outputs_to_come(name)
    assert wanted and [one for one in printed if one in wanted] == wanted


def test_figures_and_printed_runs_are_shown_before_anything_runs():
    made = json.loads(build.notebook("p01"))["cells"]
    shown = {"".join(cell["source"]): cell["outputs"] for cell in made if cell.get("outputs")}
    (drawn, *_) = (outputs for source, outputs in shown.items() if source.startswith("figure("))
    assert "".join(drawn[0]["data"]["image/svg+xml"]).startswith("<svg")
    (steps,) = (outputs for source, outputs in shown.items() if "watch(" in source)
    assert "step 4    a (5, 1)\n" in steps[0]["text"]


def test_a_figure_draws_itself_where_a_notebook_asks(host):
    figures = [cell for cell in code_of("p01") if cell.startswith("figure(")]
    host.run("\n".join(code_of("p01")[:2]))
    drawn = eval(figures[0], host.names)
    assert drawn._repr_svg_().startswith("<svg") and len(figures) == 2


# -- what is judged ----------------------------------------------------------------------------------------------------

SKELETON = "import torch\n\n\n@torch.no_grad()\ndef one():\n    raise E\n\n\nTWO = 2\n\n\nclass Three:\n    pass\n"


def test_the_newest_definition_takes_the_place_of_the_skeleton_s():
    cells = ["def one():\n    return 1", "x = one()", "import math\ndef one():\n    return math.pi\n", "%time one()"]
    assert inside.assembled(SKELETON, ["one", "Three"], cells) == (
        "import torch\n\n\nimport math\ndef one():\n    return math.pi\n\n\nTWO = 2\n\n\nclass Three:\n    pass\n"
    )
    assert inside.assembled(SKELETON, ["one", "Three"], cells[1:2]) is None


def test_a_cell_that_defines_two_names_is_taken_once():
    cell = "class Three:\n    pass\ndef one():\n    return 3"
    assert inside.assembled(SKELETON, ["one", "Three"], [cell]) == f"import torch\n\n\n{cell}\n\n\nTWO = 2\n\n\n"


def test_a_check_before_any_cell_says_so(host):
    assert "run those above" in host.run("\n".join(code_of("p01")[:2]) + '\ncheck("p01", In[:0])')


def test_a_wrong_function_is_explained_as_gradus_check_does(host):
    begin, calls, *cells = code_of("p03")
    imports, scheduler = next((one, two) for one, two in pairwise(cells) if "NotImplementedError" in two)
    wrong = solved("p03", scheduler).replace("self.free_slots.append(sequence.slot)", "pass")
    out = [host.run(cell) for cell in (begin, calls, imports, wrong, 'check("p03", In, hint=1)')][-1]
    assert "passes all" not in out and "hint 1: " in out and "hint 2: " not in out


# -- marks, and the first cell -----------------------------------------------------------------------------------------


def test_marks_leave_no_trace_and_what_is_for_the_page_stays_out():
    for name in build.PAGES:
        text = build.notebook(name)
        assert "<!-- notebook" not in text and "gradus exercise p" not in text and "--hint" not in text


def test_every_function_of_an_exercise_has_a_cell_and_every_file_its_imports_once():
    for name, (phase, page) in build.PAGES.items():
        info = phases.find(phase)
        cells = [cell.source for cell in Lesson(info, info.path / page).cells() if cell.kind == "code"]
        written = {each for cell in cells if "NotImplementedError" in cell for each in inside.defined(cell)}
        files = [one for one in exercises_of(info) if one.file_name in PASSES[name]]
        assert written == {each for one in files for each in inside.definitions(one)}
        assert sum(cell.startswith("# your functions need these") for cell in cells) == len(files)


def test_links_of_a_notebook_lead_somewhere():
    for name in build.PAGES:
        for cell in json.loads(build.notebook(name))["cells"]:
            text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
            for link in text.split("](")[1:]:
                path = link.partition(")")[0].partition("#")[0]
                assert not path or path.startswith("http") or (ROOT / "notebooks" / path).exists(), path


@pytest.fixture
def no_uv() -> bool:
    """Whether uv cannot install there."""
    return False


@pytest.fixture
def alone(tmp_path, monkeypatch, no_uv):
    """A host that has nothing but the notebook; what it would install or clone is kept."""
    asked: list[list[str]] = []

    def do(command, **_):
        asked.append(command)
        if command[0] == "git":
            (tmp_path / "gradus" / "phases" / "p00_baseline").mkdir(parents=True)
        return subprocess.CompletedProcess(command, int("uv" in command[:3] and no_uv))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(subprocess, "run", do)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pytest" else object())
    return asked


def test_the_first_cell_clones_and_installs_where_nothing_is(alone, tmp_path):
    setup.begin("https://example.org/gradus")
    clone, uv, course = alone
    assert clone == ["git", "clone", "--depth", "1", "https://example.org/gradus", "gradus"]
    assert uv == [sys.executable, "-m", "pip", "install", "--quiet", "uv"]
    assert course[:3] == [sys.executable, "-m", "uv"] and course[-2:] == ["--editable", ".[notebooks]"]
    assert {"--torch-backend", "cpu"} <= {*course}
    assert Path.cwd() == tmp_path / "gradus"


@pytest.mark.parametrize("no_uv", [True])
def test_the_first_cell_installs_with_pip_where_uv_does_not(alone):
    setup.begin("https://example.org/gradus")
    assert alone[-1] == [sys.executable, "-m", "pip", "install", "--quiet", "--editable", ".[notebooks]"]


def test_the_first_cell_asks_for_the_address_that_it_lacks(alone):
    with pytest.raises(SystemExit, match="write where from"):
        setup.begin()
    assert not alone


def test_the_first_cell_installs_nothing_where_all_is_there(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    (tmp_path / "phases" / "p00_baseline").mkdir(parents=True)
    setup.begin()
    assert not alone


@pytest.mark.slow
def test_a_notebook_s_commands_can_be_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a notebook's kernel has it
    for command in ("gradus generate x --model random:tiny-llama --max-tokens 2 --impl exercises/notebook/p03",
                    "python -m gradus.course.sentence x --model random:tiny-llama --tokens 2"):  # fmt: skip
        monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
        file = tmp_path / "exercises" / "notebook" / "p03" / "scheduler.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        info = phases.find("p03")
        file.write_text(reference_of(info, exercises_of(info)[0]), encoding="utf-8")
        inside.run(command)
    out = capsys.readouterr().out
    assert "your p03: scheduler.py" in out and "the same tokens" in out and "\x1b" not in out
