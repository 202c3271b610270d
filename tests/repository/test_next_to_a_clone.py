"""`import gradus` finds the package in every folder, also in one that holds a clone: a folder named `gradus`."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A folder named `gradus`, with what is built and imported of the repository."""
    folder = tmp_path_factory.mktemp("home") / "gradus"
    for name in NEEDED:
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder)
    for module in ("src/gradus/__init__.py", "src/gradus/errors.py", "phases/__init__.py"):
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / module, folder / module)
    return folder


def installed(clone: Path, kind: str, place: Path) -> Path:
    """Build a wheel of this kind as pip does, and unpack it where packages are."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(place)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (wheel,) = place.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place / "packages")
    return place / "packages"


def imported(packages: Path, module: str, cwd: Path) -> str:
    """The file of a module, for a Python that is started in `cwd` and has only these packages."""
    code = f"import site; site.addsitedir({str(packages)!r}); import {module}; print({module}.__file__)"
    command = [sys.executable, "-SB", "-c", code]
    done = subprocess.run(command, cwd=cwd, env={}, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def editable(clone, tmp_path_factory) -> Path:
    return installed(clone, "editable", tmp_path_factory.mktemp("editable"))


@pytest.mark.parametrize("module, file", [("gradus", "src/gradus/__init__.py"), ("phases", "phases/__init__.py")])
def test_an_editable_install_is_found_next_to_its_clone_in_it_and_elsewhere(editable, clone, module, file, tmp_path):
    for cwd in (clone.parent, clone, tmp_path):
        assert imported(editable, module, cwd) == str(clone / file), f"started in {cwd}"


def test_a_wheel_is_found_next_to_a_clone(clone, tmp_path):
    packages = installed(clone, "wheel", tmp_path)
    assert imported(packages, "gradus", clone.parent) == str(packages / "gradus" / "__init__.py")
    assert "No module named 'phases'" in imported(packages, "phases", clone.parent)


def test_the_record_lists_every_file_so_that_pip_removes_all(editable):
    (record,) = editable.glob("*.dist-info/RECORD")
    listed = {line.split(",")[0] for line in record.read_text().splitlines()}
    assert listed == {path.relative_to(editable).as_posix() for path in editable.rglob("*") if path.is_file()}
