"""The engine in C, built once where there is a compiler, and the models that programs under test load."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradus.course.foreign.weights import Models

ENGINE = Path(__file__).with_name("engine.c")
FLAGS = ["-O2", "-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> Callable[[str], Path]:
    """compiled(source, *flags) → the program. Skips without a compiler, or outside Linux, whose sockets it uses."""
    compiler = shutil.which("cc")

    def build(source: str, *flags: str) -> Path:
        if compiler is None or sys.platform != "linux":
            pytest.skip("the engine needs a C compiler and Linux")
        folder = tmp_path_factory.mktemp("engine")
        (folder / "engine.c").write_text(source, encoding="utf-8")
        command = [compiler, *flags, "-o", str(folder / "engine"), str(folder / "engine.c"), "-lm"]
        subprocess.run(command, check=True)
        return folder / "engine"

    return build


@pytest.fixture(scope="session")
def engine(compiled) -> Path:
    return compiled(ENGINE.read_text(encoding="utf-8"), *FLAGS)
