"""Servers over real sockets: uvicorn in a thread of the test process, or a process of its own where signals matter."""

import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gradus.errors import GradusError
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.engine.child import EngineProcess
from gradus.server.engine.thread import EngineThread
from gradus.server.serve import Server, bind, serve
from tests.forked import SERVER, Descriptor, begin_anew
from tests.server.scripted import ScriptedCore, register, registered, written

ROOT = Path(__file__).parents[2]
PLAIN = {"trust_env": False, "verify": False}
"""Settings of httpx for plain HTTP: to read the certificates of all authorities takes longer than most tests."""


@dataclass
class Running:
    """A server that answers. `engine` is what was made for it: a ScriptedCore, or the LLM whose core is served; None if
    it is in a process of its own."""

    url: str
    port: int
    engine: Any
    client: EngineClient
    server: Server
    http: httpx.Client

    def generate(self, **body):
        return self.http.post("/generate", json=body)

    def stats(self):
        return self.http.get("/stats").json()

    def health(self):
        return self.http.get("/health").status_code

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def send(self, body: bytes, headers=(), path="/generate"):
        """A POST as raw bytes on a connection of its own; the socket, nothing read yet."""
        connection = self.connect()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
        if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
            lines.append(f"Content-Length: {len(body)}")
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return connection

    def leave(self, connection, reset):
        """Close a connection, politely (FIN) or not (RST)."""
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def on_loop(self, function):
        """Run `function` on the server's event loop, as everything of the client's must be."""
        done = threading.Event()
        self.server.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(10)

    def idle(self):
        """The engine has nothing to do, and the client and its front end remember no request."""
        open_requests = self.client.front_end.open_requests
        samples = self.client._samples or self.client._handles
        has_work = self.client._requests if self.engine is None else self.engine.has_work
        return not (self.client._streams or samples or open_requests or has_work or self.client.waiting)


def processes():
    """The engines' processes that this one has started."""
    found = []
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie
            found += [each] * ("gradus.server.engine.process" in each.cmdline())
    return found


def eventually(condition, seconds=10.0):
    """Wait until `condition()` holds; its last value."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return value


@contextlib.contextmanager
def running(load=None, *, headers=None, **settings):
    """A server on a free port in this process; `load` makes its engine (scripted when None), on a thread. A text is an
    expression that makes it in a process of its own. headers: of `http`."""
    elsewhere = isinstance(load, str)
    config = ServerConfig(model=written(load) if elsewhere else register(load or ScriptedCore), port=0, **settings)
    client = EngineClient(config, "tests.server.scripted", EngineProcess if elsewhere else EngineThread)
    with answering(config, client, headers) as server:
        server.engine = None if elsewhere else registered(config.model)
        yield server


@contextlib.contextmanager
def real_running(model, **settings):
    """A server whose engine is loaded as users' are, in a process of its own."""
    config = ServerConfig(model=model, port=0, **settings)
    with answering(config, EngineClient(config)) as server:
        yield server


@contextlib.contextmanager
def answering(config, served, headers=None):
    """A server of one client, or of several models."""
    server, listening = Server(config, served), bind(config)
    client = server.client
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=60, headers=headers, **PLAIN) as http:
            assert eventually(lambda: server.started)
            assert eventually(lambda: client.state != "loading", 60)
            yield Running(url, port, None, client, server, http)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture
def serving():
    """Start servers: `serving(load, **settings)`; all are stopped at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda load=None, **settings: stack.enter_context(running(load, **settings))


@pytest.fixture
def numbered(monkeypatch):
    """Number the requests of this test's servers: gen-1, gen-2, …"""
    numbers = itertools.count(1)
    monkeypatch.setattr("gradus.server.client.new_name", lambda: f"gen-{next(numbers)}")


def tiny_llm(phase="p01"):
    from gradus.text.llm import LLM

    return LLM("random:tiny-llama", phase=phase, device="cpu", dtype="float32")


@pytest.fixture(scope="session", params=["p01", None], ids=["p01", "final"])
def real(request):
    """A real engine with a tiny random model, shared: tests must leave it idle. A phase without pages, and the final
    engine."""
    with running(lambda: tiny_llm(request.param), receive_timeout=5) as server:
        yield server


def events(response):
    """The JSON of each `data:` line, and whether [DONE] came last."""
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    done = bool(lines) and lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines if line != "[DONE]"], done


def read_answer(connection, seconds=20):
    """(status, headers as text, body) of one answer on a raw connection that the server may keep open."""
    connection.settimeout(seconds)
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    text = head.decode().lower()
    length = next((int(line.split(":")[1]) for line in text.split("\r\n") if line.startswith("content-length:")), None)
    while length is not None and len(body) < length:
        body += connection.recv(65536)
    return int(text.split()[1]), text, body


class Process:
    """`serve` in a process of its own, and its engine in another. engine: an expression that makes it, evaluated by the
    loader there. phase: one that runs the engine on a thread. stderr: a file for its log, instead of a pipe.

    The process is forked from one that has imported the server, which takes most of a start.
    """

    def __init__(self, engine="ScriptedCore()", stderr=None, **settings):
        said, stdout = os.pipe()
        logged, errors = os.pipe()
        self.stdout, self._errors = os.fdopen(said), []
        self._reader = threading.Thread(target=self._read, args=(logged,))
        self._reader.start()
        descriptors = Descriptor(stdout), Descriptor(stderr.fileno() if stderr else errors)
        model = written(engine)
        self.process = SERVER.Process(target=serve_here, args=(*descriptors, dict(os.environ), model, settings))
        self.process.start()
        os.close(stdout)
        os.close(errors)

    def _read(self, logged):
        with os.fdopen(logged, errors="replace") as lines:
            self._errors += lines

    def ready(self):
        """Wait for the ready line; the server's address."""
        line = self.stdout.readline()
        assert line, self.end()
        self.ready_line = line
        return line.split(" at ")[1].split()[0]

    def signal(self, number=signal.SIGTERM):
        os.kill(self.process.pid, number)

    def signal_all(self, number):
        """As a terminal or a supervisor does: the engine's process gets it too."""
        os.killpg(self.process.pid, number)

    def engine_pid(self):
        (child,) = psutil.Process(self.process.pid).children()
        return child.pid

    def end(self, seconds=20):
        """(exit code, what it wrote to stderr, if that is no file)."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "the server has not ended"
        self._reader.join(seconds)
        return self.process.exitcode, "".join(self._errors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.join()
        self._reader.join()
        self.stdout.close()


def serve_here(stdout, stderr, env, model, settings):
    """Be `gradus serve`, in a forked process."""
    os.setsid()
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)
    begin_anew(ROOT, env)
    try:
        sys.exit(serve(ServerConfig(model=model, **settings), loader="tests.server.scripted"))
    except GradusError as error:
        print(f"gradus: {error}", file=sys.stderr)
        sys.exit(2)
