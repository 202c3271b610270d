"""The package that others install: types, extras that `LLM` does not need, bounds on what is used privately."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gradus import extras
from tests.repository.test_imports import OURSELVES, SOURCES, imports, normalized, trees
from tests.repository.test_layout import tracked_or_new
from tests.repository.test_python_versions import SUPPORTED

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]


def test_the_wheel_has_every_file_of_the_package_and_the_marker_of_its_types():
    """setuptools answers as it builds: a file that no pattern of package-data matches would stay behind."""
    code = """
from pathlib import Path
from setuptools import Distribution
project = Distribution()
project.parse_config_files()
build = project.get_command_obj("build_py")
build.ensure_finalized()
for _, folder, _, names in build.get_data_files_without_manifest():
    for name in names:
        print((Path(folder) / name).as_posix())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    shipped = set(done.stdout.split())
    package = ROOT / "src" / "gradus"
    there = {
        str(path.relative_to(ROOT)) for path in tracked_or_new() if package in path.parents and path.suffix != ".py"
    }
    assert shipped == there and "src/gradus/py.typed" in shipped


def test_the_classifiers_name_the_supported_versions_and_that_there_are_types():
    named = PROJECT["classifiers"]
    versions = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(named), re.MULTILINE)
    assert versions == SUPPORTED and "Typing :: Typed" in named
    assert not [line for line in named if line.startswith("License ::")], "the license is an SPDX expression"


# -- extras ------------------------------------------------------------------------------------------------------------

WITHOUT = sorted({module for modules in extras.EXTRAS.values() for module in modules} | {"ray", "uvloop"})
BLOCKED = f"import sys\nsys.modules.update(dict.fromkeys({WITHOUT}))\n"


def run_without_extras(code: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", BLOCKED + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=170)


def test_the_modules_of_an_extra_are_those_that_pyproject_installs():
    owners = {
        "prometheus_client": "prometheus-client",
        "opentelemetry.trace": "opentelemetry-api",
        "opentelemetry.sdk": "opentelemetry-sdk",
        "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
    }
    for extra, modules in extras.EXTRAS.items():
        declared = {normalized(line) for line in OPTIONAL[extra] if ";" not in line}
        if OURSELVES in declared:
            declared = declared - {OURSELVES} | {normalized(line) for line in OPTIONAL["server"] if ";" not in line}
        assert {owners.get(module, module) for module in modules} == declared - {"ray"}, extra


def test_the_page_on_installing_lists_every_extra():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", page.partition("## Extras")[2].partition("\n## ")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == OPTIONAL.keys()


def test_llm_needs_no_web_framework_and_nothing_that_draws_and_a_demo_with_a_figure_says_that_it_does():
    done = run_without_extras("""
from gradus import LLM, SamplingParams
with LLM("random:tiny-llama", device="cpu") as llm:
    [completion] = llm.generate(["text"], SamplingParams(max_tokens=2))
    assert len(completion.token_ids) == 2
from gradus.cli import main
sys.exit(main(["demo", "p01", "--out", "figure.svg"]))
""")
    says_which_extra_is_missing(done, "plots")  # and `LLM` nothing


def says_which_extra_is_missing(done, extra):
    [line] = done.stderr.splitlines()
    assert done.returncode == 2 and f"pip install -e '.[{extra}]'" in line and f"extra '{extra}'" in line


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve", "--model", "random:tiny-llama"], "server"),
        (["serve", "--model", "random:tiny-llama", "--dry-run"], "server"),
        (["deploy", "ray"], "ray"),
    ],
)
def test_a_command_without_its_extra_says_in_one_line_which_it_is(arguments, extra):
    done = run_without_extras("from gradus.cli import main\nsys.exit(main())", *arguments)
    says_which_extra_is_missing(done, extra)


def test_a_figure_without_matplotlib_names_the_extra(monkeypatch):
    from gradus.bench.record.plots import Picture, draw
    from gradus.errors import ConfigError

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"needs the extra 'plots' \(matplotlib not found\): run pip install"):
        draw(Picture("lines", "a", "b", "c", "d", ()))


# -- bounds ------------------------------------------------------------------------------------------------------------

PRIVATE = {"uvicorn.protocols", "numba.core", "triton.runtime", "triton.compiler", "triton.experimental"}
"""Packages of others that they document for no user, and which no underscore marks."""

MAY_BE_PRIVATE = re.compile(rf"^ *(from|import) .*(\._|{'|'.join(map(re.escape, sorted(PRIVATE)))})", re.MULTILINE)
"""A line of a file that is worth parsing."""


def distributions_used_privately() -> set[str]:
    """The distributions whose modules the source imports by a name with an underscore, or from PRIVATE."""
    found = set()
    for _, tree in trees([path for path in SOURCES if MAY_BE_PRIVATE.search(path.read_text(encoding="utf-8"))]):
        for name in imports(tree):
            parts = name.split(".")
            hidden = any(part.startswith("_") and not part.startswith("__") for part in parts[1:])
            if name and parts[0] not in ("gradus", "") and (hidden or ".".join(parts[:2]) in PRIVATE):
                found.add(parts[0])
    return found


def test_what_is_used_privately_is_bounded_by_the_next_minor_version_after_the_pinned_one():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line)
    declared = {normalized(line): line for lines in (PROJECT["dependencies"], *OPTIONAL.values()) for line in lines}
    private = distributions_used_privately()
    assert private >= {"torch", "triton", "numba", "uvicorn"}
    for name in private | {"llvmlite"}:
        major, minor = pins[name].split(".")[:2]
        assert f"<{major}.{int(minor) + 1}" in re.split("[,;]", declared[name])[1], declared[name]
