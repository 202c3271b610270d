"""Running the command: in this process, through the `main` that the installed command calls, or as a real child."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def gradus(capsys, monkeypatch) -> Callable[..., Done]:
    """gradus("generate", "text", stdin=b"…") → exit code, stdout, stderr."""
    from gradus.cli import main

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Tables and help are laid out for 200 columns, so that no expected word is broken in two."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def models_folder(tmp_path, monkeypatch) -> Path:
    """An empty model cache."""
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def hears_ctrl_c() -> None:
    """Handle Ctrl-C like a program started at a prompt: tests in the background may ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments: str, **options) -> subprocess.Popen:
    """The real command in a process of its own, as text with its three streams piped."""
    return subprocess.Popen(
        [sys.executable, "-m", "gradus", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=hears_ctrl_c,
        **options,
    )


@pytest.fixture
def process():
    """`start`, with whatever still runs at the end of the test killed."""
    started: list[subprocess.Popen] = []

    def run(*arguments: str, **options) -> subprocess.Popen:
        started.append(start(*arguments, **options))
        return started[-1]

    yield run
    for child in started:
        child.kill()
        child.communicate()
