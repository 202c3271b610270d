"""`make test-gpu`, checked without a GPU: each kernel has a quick test, and tests that plan memory are marked."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="without Triton, files of kernels are not collected")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "gpu"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
JIT = {"triton.jit", "gluon.jit"}
MOST_QUICK = 50  # the first 18 took 1.5 minutes of the five that they may take

# Kernels that only engines, twins and tables launch, under the quick test that has them launched.
LAUNCHED_BY_ENGINES = {
    "test_graphs.py::test_a_step_draws_plainly_unless_one_of_its_rows_asks_for_more": {
        "step.decode_rows", "step.table_entries", "step.send_tokens", "step.prompt_history", "sampling.full",
    },
    "test_graphs.py::test_heads_change_no_token_and_say_on_a_gpu_what_they_say_on_a_cpu": {
        "step.verify", "step.draft_inputs",
    },
    "test_mixtures.py::test_a_mixture_is_the_reference": {"experts.few", "experts.combine", "experts.routing"},
    "test_grouped_experts.py::test_on_hopper_each_row_is_found_and_no_other_written": {
        "experts.hopper.grouped", "experts.hopper.streamed",
    },
    "test_hopper_attention.py::test_a_long_prompt_over_8_bits_is_widened_and_attends_as_the_other_kernel_does": {
        "attention.widen",
    },
    "test_host_tier.py::test_answers_are_the_same_after_their_prefixes_were_evicted_and_came_back": {"rows.pages"},
    "test_pairs.py::test_all_pairs_of_fields_are_exact_with_many_settings_together": {"step.ngram"},
    "test_tensor_parallel.py::test_all_activations_have_the_same_bits_on_both_ranks": {"rows.summed_norm"},
}  # fmt: skip


CHOICES = ("gpu and quick", "gpu and plans_memory", "gpu")
LIST = f"""
import sys, pytest
for choice in {CHOICES}:
    print("choice", choice, flush=True)
    code = pytest.main(["--collect-only", "-q", "-m", choice, sys.argv[1]])
    assert code == 0, code
"""


def chosen(folder: Path, choice: str) -> list[str]:
    """The ids of the tests that are chosen, in their order."""
    return collected(folder)[choice]


@cache
def collected(folder: Path) -> dict[str, list[str]]:
    """Each choice's tests, from one process: most of its time goes to imports."""
    command = [sys.executable, "-c", LIST, str(folder)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert listed.returncode == 0, listed.stdout[-2000:] + listed.stderr[-2000:]
    found: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        if line.startswith("choice "):
            ids = found[line.removeprefix("choice ")] = []
        elif "::" in line:
            ids.append(line)
    return found


def functions(ids: list[str]) -> set[tuple[str, str]]:
    """File and function of each test."""
    return {(path.rsplit("/", 1)[1], name.split("[")[0]) for path, name in (line.split("::") for line in ids)}


# -- what a test's code names ------------------------------------------------------------------------------------------


@cache
def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(tree: ast.AST) -> dict[str, str]:
    """Map each imported name to its dotted origin."""
    froms = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {each.asname or each.name: f"{node.module}.{each.name}" for node in froms for each in node.names}


@cache
def definitions(path: Path) -> dict[str, ast.AST]:
    """Map each function and class of a module to its definition."""
    return {each.name: each for each in module(path).body if isinstance(each, ast.FunctionDef | ast.ClassDef)}


@cache
def named(path: Path, name: str) -> tuple[set[str], set[str], set[str]]:
    """Return the names in a definition: arguments and variables, keywords, and the origins of its imports."""
    nodes = list(ast.walk(definitions(path)[name]))
    used = {each for node in nodes for each in (getattr(node, "id", None), getattr(node, "arg", None))}
    keywords = {f"{node.arg}=" for node in nodes if isinstance(node, ast.keyword) and node.arg}
    return {each for each in used if isinstance(each, str)}, keywords, set(imported(definitions(path)[name]).values())


def reached(path: Path, name: str, seen: set[tuple[Path, str]]) -> Iterator[str]:
    """Yield what a test, its fixtures and its helpers in tests/ import, and the keywords that they pass ("name=")."""
    if name not in definitions(path):
        origin = imported(module(path)).get(name, "")
        source = ROOT / (origin.rpartition(".")[0].replace(".", "/") + ".py")
        if origin.startswith("tests.") and source.is_file():
            yield from reached(source, name, seen)
        elif origin:
            yield origin
    elif (path, name) not in seen:
        seen.add((path, name))
        used, keywords, origins = named(path, name)
        yield from keywords | origins
        for each in used:
            yield from reached(path, each, seen)


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], set[str]]:
    """Map each test in tests/gpu to all that it reaches."""
    tests = [(file, each.name) for file in FILES for each in module(FOLDER / file).body if hasattr(each, "name")]
    return {(file, name): set(reached(FOLDER / file, name, set())) for file, name in tests if name.startswith("test_")}


# -- the choice --------------------------------------------------------------------------------------------------------


def test_each_file_has_a_quick_case_and_all_of_them_take_minutes():
    ids = chosen(FOLDER, "gpu and quick")
    assert sorted({file for file, _ in functions(ids)}) == FILES
    assert len(ids) <= MOST_QUICK


def launching() -> set[str]:
    """The modules with a kernel that they launch. (A demo's is interpreted everywhere.)"""
    paths = [*(ROOT / "src/gradus/kernels").rglob("*.py"), *(ROOT / "phases/p09_triton_attention").glob("*.py")]
    paths = [path for path in paths if path.name != "demo.py"]
    dotted = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("src.") for path in paths}
    return {dotted[path] for path in paths if any(launches(module(path)))}


def launches(tree: ast.Module) -> Iterator[str]:
    compiled = {
        each.name
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and any(ast.unparse(by).split("(")[0] in JIT for by in each.decorator_list)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Name(id=name))) if name in compiled:
                yield name


def test_each_kernel_is_launched_by_a_quick_case(found):
    quick = functions(chosen(FOLDER, "gpu and quick"))
    assert {tuple(test.split("::")) for test in LAUNCHED_BY_ENGINES} <= quick
    names = [name for test in quick for name in found[test]]
    by_engines = {f"gradus.kernels.{each}" for kernels in LAUNCHED_BY_ENGINES.values() for each in kernels}
    kernels = launching()
    assert len(kernels) > 25 and by_engines <= kernels
    assert {each for each in kernels - by_engines if not any(f"{name}.".startswith(f"{each}.") for name in names)} == (
        set()
    )


def test_engines_whose_memory_is_planned_from_what_is_free_are_marked(found):
    """An `LLM` plans its memory, an engine with `memory_fraction` does, and ranks do in their own processes. All other
    engines of these tests have room for a few sequences and no more."""
    planning = {test for test, names in found.items() if names & {"gradus.LLM", "memory_fraction="}}
    planning |= {("test_tensor_parallel.py", name) for file, name in found if file == "test_tensor_parallel.py"}
    assert functions(chosen(FOLDER, "gpu and plans_memory")) == planning


SUITE = """
import pytest

pytestmark = pytest.mark.gpu

@pytest.mark.plans_memory
def test_planned():
    pass

@pytest.mark.quick
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["a", "b"])
def test_cases(size, kind):
    pass

def test_other():
    pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    suite = tmp_path_factory.mktemp("suite")
    (suite / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (suite / "test_suite.py").write_text(SUITE, encoding="utf-8")
    return suite


def test_of_a_parametrized_test_the_first_case_is_quick(folder):
    assert [line.split("::")[1] for line in chosen(folder, "gpu and quick")] == ["test_cases[a-1]"]


def test_what_plans_memory_comes_last(folder):
    assert [line.split("::")[1].split("[")[0] for line in chosen(folder, "gpu")] == [
        *["test_cases"] * 4,
        "test_other",
        "test_planned",
    ]
