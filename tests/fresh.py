"""Processes as good as new that need not import torch: forked from one that has, and has done nothing with it.

Each has one thread, an environment of its own, and ends as a program does, with its modules. `forked.py` is for those
that run pytest.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

# A child leaves the loop, and the script is the rest of its program.
PROGRAM = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if (child := os.fork()) == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.environ.update(asked["environment"])
for number, path in enumerate(asked["files"]):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
exec(asked["script"])
"""


class Parent:
    """A process that has run `imports`, and forks others."""

    def __init__(self, imports: str, environment: Mapping[str, str] = os.environ) -> None:
        self.imports, self.environment = imports, environment
        self.forks = sys.platform == "linux"  # Apple's libraries, which torch loads on macOS, may crash in a fork
        if self.forks:
            command = [sys.executable, "-c", imports + PROGRAM]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script in a process of its own."""
        if not self.forks:
            command, own = [sys.executable, "-c", self.imports + script], {**self.environment, **environment}
            return subprocess.run(command, env=own, capture_output=True, text=True)
        with TemporaryDirectory() as folder:
            files = [os.devnull, *(f"{folder}/{name}" for name in ("out", "err"))]
            asked = {"script": script, "environment": environment, "files": files}
            print(json.dumps(asked), file=self.process.stdin, flush=True)
            code = int(self.process.stdout.readline())
            return subprocess.CompletedProcess(script, code, *(Path(path).read_text() for path in files[1:]))

    def close(self) -> None:
        """End it, and a child that has not ended."""
        if self.forks:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
