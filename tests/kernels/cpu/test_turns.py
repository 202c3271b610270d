"""Two processes that need the same kernel compile it once, and none waits for one that is gone, stopped or failed."""

import signal
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numba
import pytest
from filelock import FileLock
from numba.core.errors import TypingError

from gradus.kernels.cpu.kept import code, turn

SOURCE = """
def plus(x):
    return x + 1
"""

# Compiles when a file named `go` is there, and says what it does.
PROCESS = """
import sys, time
from pathlib import Path
from numba.core import event
from gradus.kernels.cpu.kept import turn
from gradus.kernels.cpu.kept.code import kept
from gradus.kernels.cpu.kept.watch import watched

folder, turn.SILENT_S, turn.BEAT_S = Path(sys.argv[1]), float(sys.argv[2]), 0.1

class Slow(event.Listener):
    def on_start(self, began):
        print("compiling", flush=True)
        while not (folder / "go").exists():
            time.sleep(0.02)

    def on_end(self, ended):
        pass

sys.path.insert(0, str(folder))
kernel = kept(__import__("small").plus)
said = lambda now: print(now.task, flush=True) if now.compiler is not None else None
with event.install_listener("numba:compile", Slow()), watched(0.3, said, every_s=60.0):
    result = kernel(41)
print(result, "read" if sum(kernel.stats.cache_hits.values()) else "made", flush=True)
"""


class Started:
    """A process that needs the kernel. It ends with the test."""

    def __init__(self, folder: Path, silent_s: float) -> None:
        command = [sys.executable, "-c", PROCESS, str(folder), str(silent_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def rest(self) -> list[str]:
        return self.process.communicate(timeout=60)[0].split("\n")[:-1]


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "small.py").write_text(SOURCE)
    started: list[Started] = []

    def begin(silent_s: float = 60.0) -> Started:
        started.append(Started(tmp_path, silent_s))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        one.process.stdout.close()


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
    first.process.wait()
    assert list(tmp_path.rglob("*.lock")) and list(tmp_path.rglob("*.pid"))
    (tmp_path / "go").touch()
    assert start().rest() == ["compiling", "42 made"]


def test_a_process_that_is_stopped_is_waited_for_no_longer(start, tmp_path):
    first = start()
    assert first.line() == "compiling"
    first.process.send_signal(signal.SIGSTOP)
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
