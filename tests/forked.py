"""Processes that run pytest and need not import torch: forked from one that has, once for all of a session's.

Importing torch and an engine takes three seconds, and there are a hundred of them.
"""

import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

# Apple's libraries, which torch loads on macOS, may crash in a forked process.
SERVER = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
PRELOADED = ["pytest", "hypothesis", "gradus.assembly.final", "gradus.course.probe"]
PRELOADED += ["gradus.server.serve", "gradus.text.llm", "gradus.assembly.parallel", "httpx", "jinja2"]
SERVER.set_forkserver_preload(PRELOADED)


def run_forked(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float | None = None, **_
) -> subprocess.CompletedProcess:
    """`subprocess.run` for `python -m pytest …`, forked from a process that has imported what takes seconds."""
    with tempfile.NamedTemporaryFile("w+") as output:
        child = SERVER.Process(target=run_pytest, args=(command[3:], cwd, env, output.name))
        child.start()
        child.join(timeout)
        if child.is_alive():
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, child.exitcode, output.read(), "")


def run_pytest(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], output: str) -> None:
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(cwd)
    os.environ.clear()  # what the server was started with must not decide here
    os.environ.update(env)
    assert "triton" not in sys.modules, "Triton decides at its import whether it interprets, so it is not preloaded"
    sys.dont_write_bytecode = False  # the next process runs the same tests
    sys.path.insert(0, str(cwd))
    gc.freeze()  # what was preloaded is no garbage: pytest collects several times before it ends
    sys.exit(pytest.main(list(arguments)))
