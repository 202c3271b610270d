"""The repository's shape: the anatomy of a phase, files that fit in a head, nothing that belongs elsewhere."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from gradus import phases

ROOT = Path(__file__).parents[2]
MAX_LINES = 400
PHASES = [phase.folder for phase in phases.available()]

SECTIONS = [
    "the problem",
    "the idea",
    "predict",
    "read the code",
    "run it",
    "what we measured",
    "where it loses",
    "exercises",
    "further reading",
]


def tracked_or_new() -> list[Path]:
    """Every file that is, or would be, in the repository: what git ignores is not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


# -- phases ----------------------------------------------------------------------------------------------------------


def test_the_phases_begin_with_the_baseline_and_none_is_there_twice():
    numbers = [phase.number for phase in phases.available()]
    assert numbers[0] == 0 and numbers == sorted(set(numbers))


@pytest.mark.parametrize("folder", PHASES)
def test_a_phase_has_its_lesson_and_its_wiring(folder):
    path = ROOT / "phases" / folder
    assert (path / "__init__.py").is_file()
    engine = ast.parse(text_of(path / "engine.py"))
    assert ast.get_docstring(engine), "engine.py opens with the idea"
    build = next(node for node in engine.body if isinstance(node, ast.FunctionDef) and node.name == "build")
    assert [argument.arg for argument in build.args.args] == ["model", "options"]


@pytest.mark.parametrize("folder", PHASES)
def test_a_lesson_has_every_section_in_order(folder):
    lesson = text_of(ROOT / "phases" / folder / "README.md")
    headings = [line.lstrip("# ").strip().lower() for line in lesson.splitlines() if line.startswith("## ")]
    assert [heading for heading in headings if heading in SECTIONS] == SECTIONS


# -- files -----------------------------------------------------------------------------------------------------------


def test_no_source_file_is_longer_than_a_reader_holds_in_mind():
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "phases").rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(text_of(path).splitlines()) for path in files}
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_LINES}


def test_every_source_file_opens_with_its_idea():
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "phases").rglob("*.py")]
    silent = [path for path in files if text_of(path).strip() and not ast.get_docstring(ast.parse(text_of(path)))]
    assert not [str(path.relative_to(ROOT)) for path in silent]


@pytest.mark.parametrize("name", ["utils.py", "helpers.py", "misc.py", "common.py"])
def test_no_file_has_a_name_that_says_nothing(name):
    assert not [path for path in tracked_or_new() if path.name == name]


def test_no_weights_and_no_large_file_is_in_the_repository():
    assert not [path for path in tracked_or_new() if path.stat().st_size > 1_500_000]


# Written in pieces, so that this file does not find itself.
REGISTRY_HOSTS = ["py" + "pi.org", "python" + "hosted.org", "download." + "pytorch.org", "npm" + "js.org"]
PRIVATE_PATHS = [
    rf"/wo{''}rk/(?:main|shared|\.library)",
    r"/tm" + r"p/brief",
    r"/root/\.py" + "env",
    r"/opt/wh" + "eels",
]


@pytest.mark.parametrize("pattern", [*map(re.escape, REGISTRY_HOSTS), *PRIVATE_PATHS])
def test_the_tree_names_no_registry_host_and_no_path_of_one_machine(pattern):
    found = [str(path.relative_to(ROOT)) for path in tracked_or_new() if re.search(pattern, text_of(path))]
    assert not found


# -- the course map --------------------------------------------------------------------------------------------------


def test_every_phase_is_in_the_syllabus():
    assert {phase.number for phase in phases.available()} <= phases.SYLLABUS.keys()


def test_the_course_map_in_the_readme_is_the_syllabus_and_says_what_exists():
    row = r"^\| \[?(p\d\d)(?:\]\([^|]*\))? \| (.*) \|$"  # the phase's name alone: the ladder's rows say more
    rows = dict(re.findall(row, text_of(ROOT / "README.md"), flags=re.MULTILINE))
    exist = {phase.name for phase in phases.available()}
    for number, lesson in phases.SYLLABUS.items():
        title, idea, hours, status = rows[f"p{number:02}"].split(" | ")
        assert (title, idea, hours) == (lesson.title, lesson.idea, f"{lesson.hours:g} h")
        assert status == ("ready" if f"p{number:02}" in exist else "planned")
