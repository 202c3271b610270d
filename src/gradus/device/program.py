"""Run one of our modules as a program in another process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable


def start(
    module: str,
    *arguments: str,
    blocked: Iterable[signal.Signals] = (),
    descriptors: Iterable[int] = (),
    quiet: bool = False,
) -> "subprocess.Popen[bytes]":
    """Run `python -m module arguments`. It imports from this process's paths, never from the current folder.

    blocked: signals that the new process inherits as blocked, so that none can arrive before it decides what to do with
    them: a Ctrl-C at a terminal, or a supervisor that stops the whole group, reaches every process. descriptors: of
    files that it inherits. quiet: whether its output is dropped.
    """
    folders = [folder or os.getcwd() for folder in sys.path]
    output = subprocess.DEVNULL if quiet else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            pass_fds=tuple(descriptors),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
