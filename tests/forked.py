"""Processes that need not import torch, or the server: forked from one that has, once for all of a session's.

Importing torch and an engine takes three seconds, and the server one; there are a hundred and fifty of them. That a
command imports all that it needs is what a process of its own shows, once for each command.
"""

import gc
import multiprocessing
import multiprocessing.reduction
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Apple's libraries, which torch loads on macOS, may crash in a forked process.
SERVER = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
PRELOADED = ["pytest", "hypothesis", "gradus.assembly.final", "gradus.course.probe"]
PRELOADED += ["gradus.server.serve", "gradus.text.llm", "gradus.assembly.parallel", "httpx", "jinja2"]
SERVER.set_forkserver_preload(PRELOADED)


def run_forked(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float | None = None, **_
) -> subprocess.CompletedProcess:
    """`subprocess.run` for `python -m module …`, forked from a process that has imported what takes seconds."""
    with tempfile.NamedTemporaryFile("w+") as output, tempfile.NamedTemporaryFile("w+") as errors:
        child = SERVER.Process(target=run_module, args=(command[2:], cwd, dict(env), output.name, errors.name))
        child.start()
        child.join(timeout)
        if child.is_alive():
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, child.exitcode, output.read(), errors.read())


def run_module(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], output: str, errors: str) -> None:
    for descriptor, name in ((1, output), (2, errors)):
        with open(name, "w") as file:
            os.dup2(file.fileno(), descriptor)
    begin_anew(cwd, env)
    assert "triton" not in sys.modules, "Triton decides at its import whether it interprets, so it is not preloaded"
    sys.dont_write_bytecode = False  # the next process runs the same tests
    sys.path.insert(0, str(cwd))
    sys.argv = [*arguments]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def begin_anew(cwd: Path, env: Mapping[str, str]) -> None:
    """Let nothing that the server was started with decide in this forked process."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    gc.freeze()  # what was preloaded is no garbage: pytest collects several times before it ends


class Descriptor:
    """A file's descriptor as an argument of a process: what the process gets is the number of its own copy."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple:
        return _received, (multiprocessing.reduction.DupFd(self._number),)


def _received(sent: Any) -> int:
    return sent.detach()
