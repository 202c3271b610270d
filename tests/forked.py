"""Processes that run a module and need not import torch: forked from one that has, once for all of a session's.

Importing torch and an engine takes three seconds, and there are a hundred of them. That a command imports all that it
needs is what a process of its own shows, once for each command.
"""

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    os.chdir(cwd)
    os.environ.clear()  # what the server was started with must not decide here
    os.environ.update(env)
    assert "triton" not in sys.modules, "Triton decides at its import whether it interprets, so it is not preloaded"
    sys.dont_write_bytecode = False  # the next process runs the same tests
    sys.path.insert(0, str(cwd))
    sys.argv = [*arguments]
    gc.freeze()  # what was preloaded is no garbage: pytest collects several times before it ends
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
