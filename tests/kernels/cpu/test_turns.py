"""Two processes that need the same kernel compile it once, and none waits for one that is gone, stopped or failed."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from pathlib import Path

import numba
import pytest
from filelock import FileLock
from numba.core import event
from numba.core.errors import TypingError

from gradus.kernels.cpu.kept import code, turn
from gradus.kernels.cpu.kept.shown import Compiling
from gradus.kernels.cpu.kept.watch import watched

SOURCE = """
def plus(x):
    return x + 1
"""

FORK = multiprocessing.get_context("fork")  # a new process would import numba for most of a second


class Slow(event.Listener):
    """Has a compilation wait until a file named `go` is there."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say

    def on_start(self, began):
        self.say("compiling")
        while not (self.folder / "go").exists():
            time.sleep(0.02)

    def on_end(self, ended):
        pass


def compile_small(folder: Path, silent_s: float, to: Connection) -> None:
    """Compile the kernel, slowly, and say what happens."""
    turn.SILENT_S, turn.BEAT_S = silent_s, 0.1
    sys.path.insert(0, str(folder))  # code that was kept imports its module
    kernel = code.kept(import_module("small").plus)

    def said(now: Compiling) -> None:
        if now.compiler is not None:
            to.send(now.task)

    with event.install_listener("numba:compile", Slow(folder, to.send)), watched(0.3, said, every_s=60.0):
        result = kernel(41)
    to.send(f"{result} {'read' if sum(kernel.stats.cache_hits.values()) else 'made'}")


class Started:
    """A process that needs the kernel. It ends with the test."""

    def __init__(self, folder: Path, silent_s: float) -> None:
        self.said, to = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=compile_small, args=(folder, silent_s, to))
        self.process.start()
        to.close()

    def line(self) -> str:
        return self.said.recv()

    def rest(self) -> list[str]:
        lines = []
        with suppress(EOFError):
            while True:
                lines.append(self.line())
        return lines


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "small.py").write_text(SOURCE)
    started: list[Started] = []

    def begin(silent_s: float = 60.0) -> Started:
        started.append(Started(tmp_path, silent_s))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.join()
        one.said.close()


def waiting(for_whom: Started) -> str:
    return f"waiting for the process {for_whom.process.pid} that compiles the same kernels"


def test_one_of_two_compiles_and_the_other_says_whom_it_waits_for(start, tmp_path):
    first = start()
    assert first.line() == "compiling"
    second = start()
    assert second.line() == waiting(first)
    (tmp_path / "go").touch()
    assert (first.rest(), second.rest()) == (["42 made"], ["42 read"])


def test_a_process_that_dies_is_followed_by_the_one_that_waits(start, tmp_path):
    first = start()
    assert first.line() == "compiling"
    second = start()
    assert second.line() == waiting(first)
    first.process.kill()
    assert second.line() == "compiling"
    (tmp_path / "go").touch()
    assert second.rest() == ["42 made"]


def test_a_lock_that_a_dead_process_left_holds_up_nobody(start, tmp_path):
    first = start()
    assert first.line() == "compiling"
    first.process.kill()
    first.process.join()
    assert list(tmp_path.rglob("*.lock")) and list(tmp_path.rglob("*.pid"))
    (tmp_path / "go").touch()
    assert start().rest() == ["compiling", "42 made"]


def test_a_process_that_is_stopped_is_waited_for_no_longer(start, tmp_path):
    first = start()
    assert first.line() == "compiling"
    os.kill(first.process.pid, signal.SIGSTOP)
    second = start(silent_s=2.0)
    began = time.monotonic()
    assert second.line() == waiting(first)
    assert second.line() == "compiling" and time.monotonic() - began > 1
    (tmp_path / "go").touch()
    assert second.rest() == ["42 made"]


def test_a_process_that_compiles_for_long_is_waited_for(start, tmp_path):
    first = start()
    assert first.line() == "compiling"
    second = start(silent_s=2.0)
    assert second.line() == waiting(first)
    time.sleep(3)
    (tmp_path / "go").touch()
    assert second.rest() == ["42 read"]


# -- in one process ----------------------------------------------------------------------------------------------------


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A kernel that takes numbers, and no text."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "small.py").write_text(SOURCE)
    return made(tmp_path)


def made(folder: Path):
    spec = spec_from_file_location("small", folder / "small.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return code.kept(module.plus)


def test_what_cannot_be_compiled_gives_its_turn_back(kernel, tmp_path):
    with pytest.raises(TypingError):
        kernel("forty-one")
    (lock,) = tmp_path.rglob("*.lock")
    with FileLock(lock, timeout=0):
        pass


@pytest.mark.parametrize("error", [OSError(38, "no locks here"), NotImplementedError()])
def test_where_there_are_no_locks_every_process_compiles(kernel, error, monkeypatch):
    def fail(self, *given, **more):
        raise error

    monkeypatch.setattr(turn.filelock.FileLock, "acquire", fail)
    assert kernel(41) == 42


def test_code_that_comes_between_a_look_and_the_lock_is_used(kernel, tmp_path, monkeypatch):
    """The other process has ended by then, so this one does not wait."""
    take = turn.Turn.take

    def late(self):
        if not list(tmp_path.rglob("*.nbi")):
            monkeypatch.setattr(turn.Turn, "take", take)
            other = made(tmp_path)
            assert other(41) == 42
        take(self)

    monkeypatch.setattr(turn.Turn, "take", late)
    assert kernel(41) == 42 and sum(kernel.stats.cache_hits.values()) == 1


def test_no_sign_of_life_is_given_once_the_turn_has_ended(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(turn, "BEAT_S", 0.01)
    assert kernel(41) == 42
    (note,) = tmp_path.rglob("*.pid")
    time.sleep(0.1)
    before = note.stat().st_mtime_ns
    time.sleep(0.1)
    assert note.stat().st_mtime_ns == before
