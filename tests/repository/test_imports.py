"""Allowed imports and their speed: read from syntax trees, and measured in fresh interpreters."""

import ast
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "gradus").rglob("*.py"))
COURSE = sorted((ROOT / "phases").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

CODE_FROM_DATA = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def imports(tree: ast.AST) -> Iterator[str]:
    """The dotted names of every module that a file imports, wherever in the file it does."""
    for node in import_statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield f"{'.' * node.level}{node.module or ''}"


@cache
def import_statements(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in statements(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement of a file. There are ten times as many expressions, and none of them holds a statement."""
    for name in BODIES:
        inner = getattr(tree, name, ())
        for node in inner if isinstance(inner, list) else ():  # a lambda's body is an expression
            yield node
            yield from statements(node)


def trees(paths: list[Path]) -> Iterator[tuple[str, ast.AST]]:
    for path in paths:
        yield str(path.relative_to(ROOT)), parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def code_from_data(tree: ast.AST) -> list[str]:
    """List the calls in a file that could run code from data."""
    found = [name for name in imports(tree) if name.split(".")[0] in CODE_FROM_DATA | {"transformers"}]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in FORBIDDEN_CALLS | {"load"}:
            called = ast.unparse(node.func)  # which takes long
            if called in FORBIDDEN_CALLS or called in ("torch.load", "torch.jit.load", "torch.hub.load", "yaml.load"):
                found.append(called)
        if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "weights_only"):
            found.append(node.arg)
    return found


def last_name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def test_nothing_runs_code_that_came_as_data():
    found = {name: bad for name, tree in trees(SOURCES + COURSE) if (bad := code_from_data(tree))}
    # a peer is measured by running it, on tensors that we have read ourselves
    peer = found.pop("src/gradus/bench/contenders/transformers.py")
    assert not found and {name.split(".")[0] for name in peer} == {"transformers"}


DANGEROUS = [
    "import pickle",
    "from pickle import loads",
    "eval('1')",
    "exec(text)",
    "torch.load(path)",
    "import transformers.models",
    "f(trust_remote_code=True)",
    "yaml.load(text)",
]


@pytest.mark.parametrize("line", DANGEROUS)
def test_the_check_for_code_from_data_catches(line):
    assert code_from_data(ast.parse(line))


def test_gradus_never_imports_the_phases():
    guilty = [name for name, tree in trees(SOURCES) if any(i.split(".")[0] == "phases" for i in imports(tree))]
    assert not guilty


def later_phases(folder: str, tree: ast.AST) -> list[str]:
    """List a phase's imports of later phases."""
    number = int(folder[1:3])
    modules = [name.split(".") for name in imports(tree)]
    return [parts[1] for parts in modules if parts[0] == "phases" and len(parts) > 1 and int(parts[1][1:3]) > number]


def test_a_phase_builds_on_gradus_and_earlier_phases_only():
    for path in COURSE:
        folder = path.relative_to(ROOT / "phases").parts[0]
        tree = parsed(path)
        if re.match(r"p\d\d_", folder):
            assert not later_phases(folder, tree), path
        others = (
            {name.split(".")[0] for name in imports(tree)}
            - {"gradus", "phases", "torch", "triton"}
            - ({"starlette", "uvicorn"} if folder.startswith("p13_") else set())  # HTTP is that phase's subject
            - ({"numba", "numpy"} if folder.startswith("p07_") else set())  # its product is a loop that numba compiles
            - sys.stdlib_module_names
        )
        assert not others, f"{path} imports {others}"


def test_the_museum_stands_alone():
    for path in sorted((ROOT / "phases" / "museum").rglob("*.py")):
        own = f"phases.museum.{path.parent.name}"
        names = [name for name in imports(parsed(path)) if name.startswith("phases")]
        assert all(name.startswith(own) for name in names), path


def test_the_check_for_later_phases_catches():
    tree = ast.parse("from phases.p03_continuous_batching.scheduler import Slots\nimport phases.p01_kv_cache.engine")
    assert later_phases("p02_static_batching", tree) == ["p03_continuous_batching"]


# -- what is imported is there -----------------------------------------------------------------------------------------

OURS = {"gradus": ROOT / "src", "phases": ROOT, "benchmarks": ROOT, "tests": ROOT, "book": ROOT}


def source_of(module: str) -> Path | None:
    """Return a module's file, or a package's folder where it has no __init__.py."""
    path = OURS[module.split(".")[0]].joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py", path) if file.exists()), None)


@cache
def defined(path: Path) -> set[str]:
    """Return every name that a file binds, wherever in the file it does."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)) if path.is_file() else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def gone(tree: ast.AST) -> list[str]:
    """List the imports of our own modules and names that do not exist."""
    found = [name for name in imports(tree) if name.split(".")[0] in OURS and source_of(name) is None]
    for node in import_statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            path = source_of(node.module)
            names = {alias.name for alias in node.names} - defined(path) if path else set()
            found += [lost for name in sorted(names) if source_of(lost := f"{node.module}.{name}") is None]
    return found


def test_everything_that_is_imported_from_our_own_modules_exists():
    """mypy checks the sources and the phases; the tests and the scripts are checked here."""
    files = [*TESTS, *sorted((ROOT / "benchmarks").rglob("*.py")), *sorted((ROOT / "book").rglob("*.py"))]
    assert {name: lost for name, tree in trees(files) if (lost := gone(tree))} == {}


@pytest.mark.parametrize(
    "line",
    ["import gradus.bench.fingerprint", "from gradus.bench.prose import fill", "from gradus.models import llama",
     "def late():\n    from gradus.errors import NoSuchError"],
)  # fmt: skip
def test_the_check_for_imports_of_what_is_gone_catches(line):
    assert len(gone(ast.parse(line))) == 1


def test_the_check_for_imports_of_what_is_gone_lets_modules_and_names_pass():
    lines = "import gradus.models.rope\nfrom gradus.models import SHAPES, rope\nfrom tests.models import toy_family"
    assert not gone(ast.parse(lines))


# -- dependencies ----------------------------------------------------------------------------------------------------


# distributions that share one package; the exporter brings its protocol
SHARED = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.proto": "opentelemetry-exporter-otlp-proto-http",
}


def package(module: str) -> str:
    """The part of a module's name that says whose it is."""
    first, shared = module.split(".")[0], next((SHARED[name] for name in SHARED if module.startswith(name)), None)
    return shared or first


def third_party(paths: list[Path]) -> set[str]:
    """Distributions that these files import, normalized: "huggingface-hub"."""
    modules = {package(name) for _, tree in trees(paths) for name in imports(tree) if not name.startswith(".")}
    modules -= sys.stdlib_module_names | {"gradus", "phases", "benchmarks", "tests", "book"}
    # the one that is nowhere by default, and the one whose package others share
    owners = {"llama_cpp": ["llama-cpp-python"]} | packages_distributions() | {"opentelemetry": ["opentelemetry-api"]}
    return {normalized(owners[module][0]) if module in owners else module for module in modules}


OURSELVES = "gradus-llm"  # in an extra: with another one


def normalized(requirement: str) -> str:
    name = requirement.split(";")[0]
    for mark in "[<>=!~ ":
        name = name.split(mark)[0]
    return name.lower().replace("_", "-").replace(".", "-")


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_runtime_dependency_is_imported_in_the_source_and_every_import_is_declared(project):
    optional = {"triton"}  # comes with a CUDA build of torch; the doctor reports it, GPU kernels need it
    extras = project["optional-dependencies"]
    named = [line for extra in ("server", "plots", "otel", "ray", "peers", "llama-cpp") for line in extras[extra]]
    declared = {normalized(line) for line in project["dependencies"] + named} - {OURSELVES}
    assert third_party(SOURCES) - optional == declared


def test_every_dependency_of_the_book_is_used_by_it_and_every_import_is_declared(project):
    named_in_settings = {"myst-parser", "furo"}
    conf = (ROOT / "book" / "conf.py").read_text(encoding="utf-8")
    assert '"myst_parser"' in conf and '"furo"' in conf
    declared = {normalized(line) for line in project["optional-dependencies"]["book"]}
    assert third_party(sorted((ROOT / "book").glob("*.py"))) | named_in_settings == declared


TESTING = ("dev", "server", "plots", "otel", "notebooks")
"""The extra of tests, and those that it includes."""


def test_the_tests_import_only_what_is_declared(project):
    extras = project["optional-dependencies"]
    declared = project["dependencies"] + [line for name in TESTING for line in extras[name]]
    elsewhere = {*(ROOT / "tests" / "clients" / "programs").glob("*.py"), ROOT / "tests" / "deploy" / "program.py"}
    ours = [path for path in TESTS if path not in elsewhere]  # those have an environment of their own
    assert third_party(ours) - {"triton"} <= {normalized(line) for line in declared} | {"setuptools"}


def test_every_dependency_is_pinned_and_nothing_that_only_a_cuda_build_brings(project):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {normalized(line): line for line in lines if not line.startswith("#")}
    extras = project["optional-dependencies"]
    named = [line for extra in ("dev", "server", "plots", "otel", "book") for line in extras[extra]]
    assert {normalized(line) for line in project["dependencies"] + named} - {OURSELVES} <= pins.keys()
    assert pins["torch"] == "torch==2.13.0"  # no +cpu: which build is pip's settings' choice
    # nvidia-ml-py only reads the driver's counters, and installs anywhere
    assert [name for name in pins if name.startswith(("nvidia", "triton"))] == ["nvidia-ml-py", "triton"]


# -- lightness -------------------------------------------------------------------------------------------------------

LIGHT = ["gradus", "gradus.errors", "gradus.phases", "gradus.cli", "gradus.cache", "gradus.engine.request",
         "gradus.engine.sequence", "gradus.engine.plan", "gradus.scheduling.scheduler", "gradus.engine.wire",
         "gradus.models.config",
         "gradus.models.shapes", "gradus.engine.core", "gradus.structured", "gradus.text.front_end",
         "gradus.text.transcript", "gradus.text.tools.dialect",
         "gradus.server.config", "gradus.server.engine.messages", "gradus.server.engine.loop",
         "gradus.server.client"]  # fmt: skip


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_these_modules_import_without_torch():
    """One interpreter, one module after the other: the first that brings torch in is named."""
    code = f"""
import importlib, sys
for name in {LIGHT}:
    importlib.import_module(name)
    assert "torch" not in sys.modules, f"{{name}} imports torch"
"""
    run_python(code)


def test_every_cache_module_imports_without_torch():
    modules = [
        f"gradus.cache.{path.stem}" for path in (ROOT / "src/gradus/cache").glob("*.py") if path.stem != "__init__"
    ]
    run_python(
        f"import importlib, sys\nfor n in {modules}: importlib.import_module(n)\nassert 'torch' not in sys.modules"
    )


def test_a_model_runs_on_a_cpu_without_torchs_compiler_and_what_measures_starts_without_the_package_that_reads_gguf():
    """torch imports its compiler by itself, in two seconds, when certain functions are first called or imported. A lent
    GPU machine has torch and Triton; that package is for the peer's weights and for files in that format."""
    code = """
import importlib, sys
def light(what):
    assert "torch._dynamo" not in sys.modules, f"{what} imports torch's compiler"
sys.modules["gguf"] = None
for name in ("gradus", "gradus.attention.reference", "gradus.text.llm", "gradus.bench.command",
             "gradus.bench.run.block"):
    importlib.import_module(name)
    light(name)
del sys.modules["gguf"]
from gradus import LLM, SamplingParams
llm = LLM("random:tiny-llama", device="cpu")
light("building an engine")
llm.generate("text", SamplingParams(max_tokens=2))
light("a step")
"""
    run_python(code)


def best_seconds(command: list[str], runs: int = 5) -> float:
    """The least processor time of several runs: what the command costs, whatever else the machine is doing."""
    return min(processor_seconds(command) for _ in range(runs))


def processor_seconds(command: list[str]) -> float:
    before = children_seconds()
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=60)
    return children_seconds() - before


def children_seconds() -> float:
    """Processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def yardstick() -> float:
    """Seconds to import a part of Python's own library: some tenth of a second on a usual machine.

    Machines differ by two, and so does one from minute to minute.
    """
    return best_seconds([sys.executable, "-c", "import asyncio, http.server, logging.config, pydoc, unittest.mock"])


def test_importing_gradus_takes_less_than_a_part_of_pythons_own_library(yardstick):
    empty = best_seconds([sys.executable, "-c", ""])
    assert best_seconds([sys.executable, "-c", "import gradus"]) - empty < yardstick


def test_help_appears_within_half_a_second(yardstick):
    assert best_seconds([sys.executable, "-m", "gradus", "--help"]) < 4.5 * yardstick


def test_help_is_shown_without_what_it_never_uses_and_others_find_that_in_its_place():
    code = """
import sys
from gradus.cli import main
main(["--help"])
heavy = {"markdown_it", "pygments", "http.client", "gradus.doctor", "rich.markdown", "rich.traceback"}
assert "typer.rich_utils" in sys.modules and not heavy & sys.modules.keys(), heavy & sys.modules.keys()
from rich.markdown import Markdown
Markdown("# A heading")
"""
    run_python(code)
