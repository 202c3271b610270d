"""A server for clients' own programs, and what runs one of them: over a socket, in its own environment and home."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.agent import core
from tests.clients.installing import folder, obstacle
from tests.clients.page import ADDRESS
from tests.server.conftest import Running, eventually, running, tiny_llm

CONTEXT = "32768"
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def shared():
    with running(core, max_body_bytes=1 << 22, tokenizer_info=True) as started:
        yield started


@pytest.fixture(scope="session")
def scoring():
    """A server with the final engine and random weights: for clients that read log-probabilities of prompts."""
    with running(lambda: tiny_llm(None), tokenizer_info=True) as started:
        yield started


@pytest.fixture
def server(shared):
    """The server, with nothing of earlier tests in its records. Nothing may be left running in it."""
    shared.engine.prompts.clear()
    shared.engine.requests.clear()
    yield shared
    assert eventually(shared.idle)


@dataclass
class Home:
    """One client's environment: `bin` on its path, its own HOME, and an empty folder to work in."""

    name: str
    server: Running
    work: Path

    @property
    def home(self) -> Path:
        return folder(self.name) / "home"

    def write(self, path: str, content: str) -> None:
        target = self.home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.addressed(content), encoding="utf-8")

    def addressed(self, text: str) -> str:
        """Replace the page's address, and its context: the served model's tokens are single bytes."""
        return text.replace(ADDRESS, self.server.url).replace(CONTEXT, str(self.server.engine.limits.context_length))

    def run(self, *command: str, seconds: float = 120, **environment: str) -> str:
        """Run a program of the client to its end. Returns its output; a failure shows it."""
        own = folder(self.name)
        node = shutil.which("node")
        path = [own / "bin", own / "venv" / "bin", *([Path(node).parent] if node else []), "/usr/bin", "/bin"]
        done = subprocess.run(
            command,
            cwd=self.work,
            env={
                "HOME": str(self.home),
                "PATH": os.pathsep.join(map(str, path)),
                "LANG": "C.UTF-8",
                "GRADUS": self.server.url,
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, program: str | Path) -> str:
        """Run a Python program, given as text or as a file."""
        if isinstance(program, str):
            path = self.work / "program.py"
            path.write_text(self.addressed(program), encoding="utf-8")
            program = path
        return self.run("python", str(program))

    def shell(self, script: str, **environment: str) -> str:
        return self.run("bash", "-euc", self.addressed(script), **environment)


@pytest.fixture
def client(server, tmp_path):
    """Make the home of a client: `client(name)`. The test is skipped if it is not installed. other: a server of its
    own."""

    def made(name: str, other: Running | None = None) -> Home:
        if (reason := obstacle(name)) is not None:
            pytest.skip(reason)
        return Home(name, other or server, tmp_path)

    return made
