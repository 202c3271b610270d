"""Messages to systemd: in which order they come from a real server, and what each state makes of the watchdog."""

import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import httpx
import pytest

from gradus.engine.metrics import Metrics
from gradus.server.notify import Manager, watchdog_s
from tests.ports import free_port
from tests.server.conftest import PLAIN, ROOT, Process, eventually
from tests.server.scripted import KILL


class Listener:
    """The manager's end of the socket: all messages so far, in order."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + path[1:] if path.startswith("@") else path)
        self.messages = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            self.messages.append(self.socket.recv(4096).decode())

    def has(self, line, after=0):
        return any(line in message.split("\n") for message in self.messages[after:])

    def statuses(self):
        lines = [line for message in self.messages for line in message.split("\n")]
        return [line.removeprefix("STATUS=") for line in lines if line.startswith("STATUS=")]


@pytest.fixture(params=["path", "abstract"])
def listener(request, tmp_path, monkeypatch):
    path = str(tmp_path / "notify") if request.param == "path" else f"@gradus-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    listener = Listener(path)
    yield listener


def test_a_server_reports_that_it_is_ready_alive_and_stopping(listener, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    with Process("ScriptedCore(step_s=0.01)", port=0) as server:
        server.ready()
        assert eventually(lambda: listener.has("READY=1"))
        assert listener.messages.index("READY=1") > 0  # it has said before that it loads
        assert "the model is loading" in listener.statuses()[0]
        assert eventually(lambda: any(text.startswith("serving scripted: 0 running") for text in listener.statuses()))
        count = len(listener.messages)
        assert eventually(lambda: listener.has("WATCHDOG=1", after=count))
        server.signal(signal.SIGTERM)
        code, _ = server.end()
        assert code == 0
    assert eventually(lambda: listener.has("STOPPING=1"))
    assert sum(message.split("\n").count("READY=1") for message in listener.messages) == 1


@pytest.mark.stress  # it starts the same server as the processes here
@pytest.mark.parametrize("listener", ["path"], indirect=True)
def test_the_command_itself_reports_a_real_model(listener):
    port = free_port()
    command = [sys.executable, "-m", "gradus", "serve", "--model", "random:tiny-llama", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            assert eventually(lambda: listener.has("READY=1") or process.poll() is not None, 120)
            assert process.poll() is None, process.stderr.read()
            body = {"prompt": "a", "max_tokens": 3}
            url = f"http://127.0.0.1:{port}/generate"
            assert httpx.post(url, json=body, timeout=60, **PLAIN).status_code == 200
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert eventually(lambda: listener.has("STOPPING=1"))


@pytest.mark.parametrize("listener", ["path"], indirect=True)
def test_the_status_names_an_engine_that_was_lost(listener):
    with Process("DeadlyCore()", port=0) as server:
        url = server.ready()
        for _ in range(2):  # after the second time, two seconds pass before the next start: twice a look's interval
            assert eventually(lambda: httpx.get(f"{url}/health", **PLAIN).status_code == 200, 20)
            httpx.post(f"{url}/generate", json={"prompt": [KILL], "max_tokens": 3}, timeout=20, **PLAIN)
        assert eventually(lambda: any("another engine is started" in text for text in listener.statuses()))
        assert eventually(lambda: listener.statuses()[-1].startswith("serving"), 30)


# -- one look ----------------------------------------------------------------------------------------------------------


class Heard(Manager):
    """A manager that keeps its messages."""

    def __init__(self, watchdog_s=0.0):
        super().__init__("@nobody", watchdog_s)
        self.heard = []

    def send(self, *lines):
        self.heard += lines


def client(state="ready", reason="", active=0):
    return SimpleNamespace(state=state, reason=reason, model="m", metrics=Metrics(active=active), waiting=2)


def test_only_a_change_is_reported():
    manager = Heard()
    for active in (1, 1, 3):
        manager.look([client(active=active)], now=0.0)
    running = [line for line in manager.heard if line.startswith("STATUS=")]
    assert running == ["STATUS=serving m: 1 running, 2 waiting", "STATUS=serving m: 3 running, 2 waiting"]


def test_progress_extends_a_start_and_nothing_extends_a_server_that_has_started():
    manager = Heard()
    for reason in ("weights 1 of 9 GB", "weights 1 of 9 GB", "weights 2 of\n9 GB"):
        manager.look([client("loading", reason)], now=0.0)
    assert manager.heard.count("EXTEND_TIMEOUT_USEC=900000000") == 2
    assert "STATUS=weights 2 of 9 GB" in manager.heard  # one line: a second would be a message of its own
    manager.ready()
    manager.heard.clear()
    manager.look([client("restarting", "another engine is started in 2 s")], now=1.0)
    assert manager.heard == ["STATUS=another engine is started in 2 s"]


def test_signs_of_life_come_at_half_the_interval_and_not_from_a_failed_engine():
    manager = Heard(watchdog_s=10.0)
    for now in (100.0, 104.0, 105.0, 109.9, 110.0):
        manager.look([client()], now)
    assert manager.heard.count("WATCHDOG=1") == 3
    manager.look([client("failed", "too often")], now=200.0)
    assert manager.heard.count("WATCHDOG=1") == 3
    manager.look([client("failed"), client()], now=300.0)  # another model is served
    assert manager.heard.count("WATCHDOG=1") == 4
    for alive in ("loading", "stalled", "restarting", "draining"):
        manager._beaten = 0.0
        manager.look([client(alive)], now=200.0)
    assert manager.heard.count("WATCHDOG=1") == 8


def test_the_environment_says_whom_to_notify():
    assert Manager.of({}) is None and Manager.of({"NOTIFY_SOCKET": "vsock:2:1234"}) is None
    assert Manager.of({"NOTIFY_SOCKET": "@a"})._address == "\0a"
    assert watchdog_s({"WATCHDOG_USEC": "2500000"}) == 2.5
    assert watchdog_s({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid())}) == 2.5
    assert watchdog_s({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid() + 1)}) == 0
    assert watchdog_s({"WATCHDOG_USEC": "soon"}) == 0 == watchdog_s({})


def test_a_manager_that_is_gone_or_does_not_read_ends_nothing(tmp_path):
    Manager(str(tmp_path / "nobody")).send("READY=1")
    path = str(tmp_path / "deaf")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(path)
        manager = Manager(path)
        for _ in range(5000):  # far more than the socket's queue: a send that waited would never return
            manager.send("STATUS=" + "x" * 200)
