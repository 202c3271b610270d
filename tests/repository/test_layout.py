"""The repository's shape: the anatomy of a phase, functions that fit in a head, nothing that belongs elsewhere."""

import ast
import re
import subprocess
from pathlib import Path
from statistics import median

import pytest

from gradus import phases

ROOT = Path(__file__).parents[2]
MAX_FUNCTION = 60  # lines, its signature and docstring included
MAX_TEACHING_FILE = 150  # lines
PHASES = [phase.folder for phase in phases.available()]
ENGINES = [phase.folder for phase in phases.engines()]

SECTIONS = [
    "the problem",
    "the idea",
    "predict",
    "build it",
    "read the code",
    "run it",
    "what we measured",
    "where it loses",
    "exercises",
    "from the lesson to the engine",
    "check yourself",
    "further reading",
    "an open task",
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


def test_no_file_has_a_merge_s_conflict_left_in_it():
    left = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert not [str(path.relative_to(ROOT)) for path in tracked_or_new() if left.search(text_of(path))]


# -- phases ----------------------------------------------------------------------------------------------------------


def test_the_phases_begin_with_the_baseline_and_none_is_there_twice():
    numbers = [phase.number for phase in phases.available()]
    assert numbers[0] == 0 and numbers == sorted(set(numbers))


@pytest.mark.parametrize("folder", PHASES)
def test_a_phase_has_its_lesson_and_an_engine_or_a_program_around_one(folder):
    path = ROOT / "phases" / folder
    assert (path / "__init__.py").is_file() and (path / "README.md").is_file()
    assert (path / "engine.py").is_file() != (path / "__main__.py").is_file()


@pytest.mark.parametrize("folder", ENGINES)
def test_an_engine_opens_with_its_idea_and_is_built_by_one_function(folder):
    path = ROOT / "phases" / folder
    engine = ast.parse(text_of(path / "engine.py"))
    assert ast.get_docstring(engine), "engine.py opens with the idea"
    build = next(node for node in engine.body if isinstance(node, ast.FunctionDef) and node.name == "build")
    assert [argument.arg for argument in build.args.args] == ["model", "options"]


@pytest.mark.parametrize("folder", PHASES)
def test_a_lesson_has_every_section_in_order(folder):
    lesson = text_of(ROOT / "phases" / folder / "README.md")
    headings = [line.lstrip("# ").strip().lower() for line in lesson.splitlines() if line.startswith("## ")]
    assert [heading for heading in headings if heading in SECTIONS] == SECTIONS


# -- length ----------------------------------------------------------------------------------------------------------

SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "phases").rglob("*.py")])


def long_functions(source: str) -> dict[str, int]:
    """Functions and methods over the limit, nested ones too, with their lines."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    return {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION}


def test_no_function_is_longer_than_a_reader_holds_in_mind():
    found = {str(path.relative_to(ROOT)): long for path in SOURCES if (long := long_functions(text_of(path)))}
    assert not found


@pytest.mark.parametrize("head", ["def f():", "async def f():", "class C:\n    def f(self):"])
def test_the_check_for_long_functions_catches(head):
    line = "\n        pass"
    assert long_functions(head + line * MAX_FUNCTION) == {"f": MAX_FUNCTION + 1}
    assert not long_functions(head + line * (MAX_FUNCTION - 1))


STUDENTS = ("benchmark.py", "exercise.py", "open.py")  # what a phase measures, and what it asks of the student


def long_teaching_files(root: Path) -> dict[str, int]:
    """Files of a phase's own code over the limit. What it measures and what it asks of the student may be longer."""
    files = [path for path in root.glob("p*/**/*.py") if path.name not in STUDENTS]
    lengths = {str(path.relative_to(root)): len(text_of(path).splitlines()) for path in files}
    return {name: lines for name, lines in lengths.items() if lines > MAX_TEACHING_FILE}


def test_teaching_code_comes_in_short_files():
    assert not long_teaching_files(ROOT / "phases")


def test_the_check_for_long_teaching_files_catches(tmp_path):
    folder = tmp_path / "p01_kv_cache"
    folder.mkdir()
    for name, lines in (("engine.py", 150), ("contiguous.py", 151), ("exercise.py", 300)):
        (folder / name).write_text("pass\n" * lines)
    assert long_teaching_files(tmp_path) == {"p01_kv_cache/contiguous.py": 151}


MOST_TEACHING_LINES = (
    3060  # of p00 to p08 together, counted as wc -l does: what a reader can read whole, runner included
)
USUAL_FUNCTION = 12  # lines of the median function


def teaching_sources(root: Path) -> list[str]:
    """The code of p00 to p08, but what they measure and what they ask of the student."""
    files = [path for path in root.glob("p0[0-8]*/*.py") if path.name not in STUDENTS]
    return [text_of(path) for path in files]


def lines_in_all(sources: list[str]) -> int:
    """Blank lines, comments and docstrings included."""
    return sum(source.count("\n") for source in sources)


def usual_function(sources: list[str]) -> float:
    """Lines of the median function, its signature and docstring included."""
    trees = [node for source in sources for node in ast.walk(ast.parse(source))]
    functions = [node for node in trees if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return median((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)


def test_the_teaching_code_can_be_read_whole():
    sources = teaching_sources(ROOT / "phases")
    assert lines_in_all(sources) <= MOST_TEACHING_LINES and usual_function(sources) <= USUAL_FUNCTION


def test_the_measures_of_teaching_code_count(tmp_path):
    for name, source in (("p00_a/part.py", "def f():\n    pass\n\n\ndef g():\n    f()\n    f()\n    f()\n"),
                         ("p08_b/exercise.py", "x = 1\n" * 9), ("p09_c/part.py", "x = 1\n" * 9)):  # fmt: skip
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(source)
    sources = teaching_sources(tmp_path)
    assert lines_in_all(sources) == 8 and usual_function(sources) == 3


# -- what a reader sees first ---------------------------------------------------------------------------------------


def test_every_source_file_opens_with_its_idea():
    silent = [path for path in SOURCES if (text := text_of(path)).strip() and not re.match(r'r?"""\S', text)]
    assert not [str(path.relative_to(ROOT)) for path in silent]


PACKAGES = [path.parent for path in sorted((ROOT / "src" / "gradus").rglob("__init__.py"))]


def wrong_contents(package: Path) -> tuple[set[str], set[str]]:
    """Modules and packages that a package's docstring does not name, and names in it that are not there."""
    docstring = ast.get_docstring(ast.parse(text_of(package / "__init__.py"))) or ""
    named = set(re.findall(r"\w+\.py\b|\b\w+/(?=[\s:]|$)", docstring))
    there = {path.name for path in package.glob("*.py")} | {
        f"{path.parent.name}/" for path in package.glob("*/__init__.py")
    }
    there -= {"__init__.py"}
    return there - named, named - there


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_package_says_what_is_in_it_and_in_which_order_to_read_it(package):
    unnamed, gone = wrong_contents(package)
    assert not unnamed and not gone


def test_the_check_for_contents_catches(tmp_path):
    (tmp_path / "__init__.py").write_text('"""Read first.py, then gone.py and below/ too."""')
    for name in ("first.py", "forgotten.py"):
        (tmp_path / name).touch()
    assert wrong_contents(tmp_path) == ({"forgotten.py"}, {"gone.py", "below/"})


@pytest.mark.parametrize("folder", [folder for folder in PHASES if folder >= "p03"])
def test_a_lesson_whose_idea_the_final_engine_carries_on_says_how(folder):
    lesson = text_of(ROOT / "phases" / folder / "README.md")
    assert lesson.index("## Exercises") < lesson.index("## From the lesson to the engine") < lesson.index("## Further")


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["utils.py", "helpers.py", "misc.py", "common.py"])
def test_no_file_has_a_name_that_says_nothing(name):
    assert not [path for path in tracked_or_new() if path.name == name]


def test_no_weights_and_no_large_file_is_in_the_repository():
    """But for heads that were trained here, which are small."""
    heads = ROOT / "heads"
    files = {path: path.stat().st_size for path in tracked_or_new()}
    assert not [path for path, size in files.items() if size > 1_500_000 and heads not in path.parents]
    assert sum(size for path, size in files.items() if heads in path.parents) < 10_000_000


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
