"""A folder like a fresh clone after `make serve`, with a HOME of its own, where commands run as a reader gives them."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from gradus.loading.fetch.catalogue import cache_folder
from tests.commands.pages import ROOT
from tests.ports import free_port

PORT = re.compile(r"(127\.0\.0\.1|localhost):8000")
SERVERS = re.compile(r"(\w+=\S+ )?(gradus serve\b(?!.*--dry-run)|python -m phases\.p13_serving( |$))")


class Clone:
    """root: the folder. It ends the server that a command started with the next one, and with itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = 8000
        self._server: subprocess.Popen[bytes] | None = None
        for each in ROOT.iterdir():
            if each.name not in (".git", ".venv", "build", "exercises"):
                (root / each.name).symlink_to(each)
        (root / ".venv" / "bin").mkdir(parents=True)
        (root / ".venv" / "bin" / "gradus").symlink_to(Path(sys.executable).parent / "gradus")
        (root / ".venv" / "bin" / "activate").write_text(
            f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"
        )
        self.home = root / "home"
        self.home.mkdir()

    def __enter__(self) -> "Clone":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """Only what a new terminal has, and where the models are."""
        return {
            "HOME": str(self.home),
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "GRADUS_HOME": str(cache_folder()),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "NUMBA_NUM_THREADS": "2",
        }

    def run(self, command: str, seconds: float = 120) -> str:
        """Give a command in a terminal in which the environment is active. Returns its output.

        A server goes on in the background once it is ready, on a port that is free. What follows asks there.
        Raises AssertionError for a command that fails.
        """
        if SERVERS.match(command):
            return self._serve(command)
        asked = PORT.sub(rf"\1:{self.port}", command)
        if asked.startswith("gradus load") or (asked.startswith("gradus batch") and "--model" not in asked):
            asked += f" --url http://127.0.0.1:{self.port}"
        done = subprocess.run(
            self._shell(asked),
            cwd=self.root,
            env=self.environment,
            input=b"Hello\n",
            capture_output=True,
            timeout=seconds,
        )
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert done.returncode == 0, f"$ {command}\n{output[-2000:]}"
        return output

    def _shell(self, command: str) -> list[str]:
        return ["bash", "-c", f"source .venv/bin/activate; {command}"]

    def _serve(self, command: str, seconds: float = 120) -> str:
        self.stop()
        self.port = free_port()
        with (self.root / "server.log").open("wb") as log:
            self._server = subprocess.Popen(
                self._shell(f"exec {re.sub(r' --port [0-9]+', '', command)} --port {self.port}"),
                cwd=self.root,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        ends = time.monotonic() + seconds
        while not self._ready():
            said = (self.root / "server.log").read_text(encoding="utf-8", errors="replace")
            assert self._server.poll() is None and time.monotonic() < ends, f"$ {command}\n{said[-2000:]}"
            time.sleep(0.1)
        return (self.root / "server.log").read_text(encoding="utf-8", errors="replace")

    def _ready(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10).status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """End the server that runs, as Ctrl-C does."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            try:
                self._server.wait(30)
            finally:
                self._server.kill()
            self._server = None
