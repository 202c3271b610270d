"""The engine in a process of its own: what its end does to those that wait, and that nothing is left of it."""

import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import psutil
import pytest

from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.loading.progress import Stage
from gradus.server import supervisor
from gradus.server.engine import child
from gradus.server.engine.messages import Loading, Report, Stop, Submit
from gradus.server.engine.wire import VERSION, Hello, Load, PrivateSocket, frame, hello_and_messages
from tests.server.conftest import PLAIN, ROOT, Process, events, eventually, running
from tests.server.scripted import EXHAUST, EXIT, GARBAGE, HANG, KILL, PAUSE, RAISE, written
from tests.server.test_shutdown import SOON, get, stream_in_background


@pytest.fixture(scope="module")
def server():
    """One server for all: its engine is started again as often, and as soon, as the tests need it."""
    with running("DeadlyCore(slots=8, step_s=0.002)", step_timeout=1.6) as server:
        schedule = server.client.supervisor._schedule
        schedule.MOST, schedule.FIRST_DELAY_S = 1000, 0.0
        yield server


@pytest.fixture(autouse=True)
def ready(request):
    """Begin each test with a server that is ready, and end it with one that remembers nothing."""
    if "server" not in request.fixturenames:
        yield
        return
    server = request.getfixturevalue("server")
    assert eventually(lambda: server.health() == 200, 20)
    yield
    assert eventually(lambda: server.health() == 200, 20)
    assert eventually(server.idle)


def test_it_serves_like_a_thread(server):
    answer = server.generate(prompt="a", max_tokens=5, n=2).json()
    assert [choice["token_ids"] for choice in answer["choices"]] == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    frames, done = events(server.generate(prompt="a", max_tokens=50, stream=True))
    assert done and [token for frame in frames for token in frame["token_ids"]] == list(range(50))
    assert server.generate(prompt="a", max_tokens=10**6).json()["error"]["param"] == "max_tokens"
    assert server.stats()["turns"] > 50
    stopped = server.generate(prompt="a", max_tokens=50, stop="7 ").json()
    assert stopped["finish_reason"] == "stop" and stopped["text"] == "0 1 2 3 4 5 6 "
    assert server.generate(prompt="a", max_tokens=4000, timeout=0.1).status_code == 504
    assert eventually(lambda: server.stats()["self_checks"] > 0) and not server.stats()["failed_self_checks"]


DEATHS = {
    "a step raises": (RAISE, "RuntimeError"),
    "no memory": (EXHAUST, "a step found no memory"),
    "SIGKILL": (KILL, "was ended by SIGKILL"),
    "exit": (EXIT, "ended with exit code 7"),
    "malformed": (GARBAGE, "did not answer|was ended by SIGKILL|exit code"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_all_that_wait_are_told_soon_and_another_engine_serves(server, capfd, death):
    token, reason = DEATHS[death]
    restarts, pid = server.client.counts.restarts, server.client._link.pid
    streams = [server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true}') for _ in range(3)]
    for stream in streams:
        assert b"200 OK" in stream.recv(1000)
    started = time.monotonic()
    answer = server.generate(prompt=[token], max_tokens=5)
    assert time.monotonic() - started < SOON
    assert answer.status_code == 503 and answer.json()["error"]["type"] == "restarting"
    assert int(answer.headers["retry-after"]) >= 1
    assert "secret detail" not in answer.text
    assert re.search(reason, answer.json()["error"]["message"])
    for stream in streams:
        assert ended(stream).endswith(b"data: [DONE]\n\n")
    assert time.monotonic() - started < SOON
    assert server.client.counts.restarts == restarts + 1
    assert eventually(lambda: server.health() == 200, 20) and gone(pid)
    assert server.generate(prompt="a", max_tokens=3).json()["token_ids"] == [0, 1, 2]
    assert server.client._link.pid != pid


def ended(connection):
    """The last bytes of a stream's body, without the marks of its pieces."""
    connection.settimeout(10)
    body = b""
    while b"\r\n0\r\n\r\n" not in body:
        received = connection.recv(1 << 16)
        assert received, body
        body = body[-2000:] + received
    return body[: body.index(b"\r\n0\r\n\r\n")]


def test_while_no_engine_is_there_requests_are_told_when_to_return(server, monkeypatch):
    monkeypatch.setattr(server.client.supervisor._schedule, "FIRST_DELAY_S", 0.7)
    monkeypatch.setattr(server.client.supervisor._schedule, "_times", [])
    assert server.generate(prompt=[KILL], max_tokens=5).status_code == 503
    health = server.http.get("/health")
    assert health.status_code == 503 and health.json()["status"] == "restarting"
    assert server.http.get("/health/live").status_code == 200
    refused = server.generate(prompt="a", max_tokens=1)
    assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) <= 10


def test_a_silent_engine_is_unready_until_it_goes_on(server, monkeypatch):
    monkeypatch.setattr(supervisor, "STALL_S", 0.3)
    box = []
    paused = threading.Thread(target=lambda: box.append(server.generate(prompt=[PAUSE], max_tokens=3)))
    started = time.monotonic()
    paused.start()
    assert eventually(lambda: server.health() == 503)
    assert 0.3 < time.monotonic() - started < SOON
    assert server.http.get("/health").json()["status"] == "stalled"
    assert server.http.get("/health/live").status_code == 200
    paused.join()
    assert box[0].status_code == 200 and server.health() == 200


def test_an_engine_that_hangs_is_killed_and_another_one_serves(server):
    pid, started = server.client._link.pid, time.monotonic()
    answer = server.generate(prompt=[HANG], max_tokens=5)
    assert 1.6 < time.monotonic() - started < SOON
    assert answer.status_code == 503 and "hangs" in answer.json()["error"]["message"]
    assert eventually(lambda: server.health() == 200, 20) and gone(pid)
    assert server.generate(prompt="a", max_tokens=2).status_code == 200


def cancel_many(server, times):
    """Clients leave at random moments, by FIN or RST, with one sample or three, streaming or not."""
    chosen = random.Random(times)
    for turn in range(times):
        samples, stream = chosen.choice((1, 3)), chosen.choice(("true", "false"))
        body = b'{"prompt": "a", "max_tokens": %d, "n": %d, "stream": %s}' % (
            chosen.choice((1, 3, 4000)),
            samples,
            stream.encode(),
        )
        connection = server.send(body)
        if turn % 4:
            time.sleep(chosen.random() * 0.004)
        server.leave(connection, reset=chosen.random() < 0.5)
    assert eventually(lambda: server.idle() and nothing_runs(server.stats()))  # the last ones may not be read yet
    stats = server.stats()
    assert server.generate(prompt="a", max_tokens=3).json()["token_ids"] == [0, 1, 2]  # another check is due
    assert eventually(lambda: server.stats()["self_checks"] > stats["self_checks"])
    assert not server.stats()["failed_self_checks"]


def nothing_runs(stats):
    return stats["active"] == stats["waiting"] == 0


def test_three_hundred_that_leave_leave_no_slot_and_no_handle_behind(server):
    cancel_many(server, 300)


@pytest.mark.stress
def test_ten_thousand_that_leave_leave_no_slot_and_no_handle_behind(server):
    cancel_many(server, 10_000)


# -- a server of its own -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["a", [HANG]], ids=["in quick steps", "in a step that hangs"])
def test_when_the_server_is_killed_its_engine_does_not_stay(prompt):
    with Process("DeadlyCore(step_s=0.01)", port=0) as server:
        url = server.ready()
        pid = server.engine_pid()
        port = int(url.rsplit(":")[-1])
        body = b'{"prompt": %s, "max_tokens": 4000}' % (b'"a"' if prompt == "a" else b"[902]")
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(
                b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            time.sleep(0.3)
            server.signal(signal.SIGKILL)
            assert eventually(lambda: gone(pid), 5)


def gone(pid):
    """Whether a process has ended; a zombie that nobody here can bury has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_drains_and_leaves_nothing(number):
    with Process("ScriptedCore(step_s=0.01)", port=0, drain_timeout=20) as server:
        url = server.ready()
        pid = server.engine_pid()
        begun, result = stream_in_background(url)
        assert begun.wait(10)
        server.signal_all(number)
        frames, done = result()
        assert done and frames[-1]["finish_reason"] == "length"
        code, errors = server.end()
        assert code == 0 and "Traceback" not in errors and gone(pid)


def test_the_engines_log_is_the_servers():
    with Process("DeadlyCore()", port=0) as server:
        url = server.ready()
        answer = httpx.post(f"{url}/generate", json={"prompt": [RAISE]}, **PLAIN)
        assert answer.status_code == 503
        assert eventually(lambda: get(url).status_code == 200, SOON)
        server.signal()
        code, errors = server.end()
        assert code == 0
        assert "ERROR gradus.server.engine.loop: the engine failed" in errors
        assert "RuntimeError: secret detail" in errors and "another engine is started in 0.5 s" in errors


def test_an_engine_that_dies_while_it_loads_is_one_line():
    with Process("os._exit(5)", port=0) as server:
        code, errors = server.end()
        assert code == 2
        assert errors == "gradus: the engine's process ended with exit code 5 before the model was loaded\n"


def test_the_front_end_of_a_final_engine_never_imports_torch():
    """A real model, prompts as text and as a grammar: the tokenizer and the checks are the front end's work."""
    source = (
        "import sys, threading, httpx\n"
        "from gradus.server.config import ServerConfig\n"
        "from gradus.server.client import EngineClient\n"
        "from gradus.server.serve import Server, bind\n"
        "config = ServerConfig(model='random:tiny-llama', device='cpu', dtype='float32', port=0)\n"
        "client = EngineClient(config)\n"
        "server, listening = Server(config, client), bind(config)\n"
        "thread = threading.Thread(target=server.run, kwargs={'sockets': [listening]})\n"
        "thread.start()\n"
        "url = f'http://127.0.0.1:{listening.getsockname()[1]}'\n"
        "with httpx.Client(trust_env=False, timeout=60) as http:\n"
        "    while client.state == 'loading': threading.Event().wait(0.05)\n"
        "    told = http.post(url + '/generate', json={'prompt': 'one', 'max_tokens': 4, 'ignore_eos': True})\n"
        "    bad = http.post(url + '/generate', json={'prompt': 'one', 'structured': {'regex': 'a('}})\n"
        "    body = {'prompt': 'x', 'structured': {'regex': 'ab'}, 'max_tokens': 9}\n"
        "    good = http.post(url + '/generate', json=body)\n"
        "    stats = http.get(url + '/stats').json()\n"
        "server.should_exit = True\n"
        "thread.join()\n"
        "print(told.json()['usage']['completion_tokens'], bad.status_code, good.json()['text'], stats['engine'])\n"
        "print('torch' in sys.modules)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.stdout.endswith("\n4 400 ab final\nFalse\n"), found.stdout + found.stderr


# -- the engine's process alone ----------------------------------------------------------------------------------------


class Peer:
    """The engine's process, with a test as its front end."""

    def __init__(self, engine="DeadlyCore()", **load):
        private = PrivateSocket()
        try:
            self.process = child.spawn(private.path)
            private.listening.setblocking(True)
            private.listening.settimeout(30)
            self.socket, _ = private.listening.accept()
        finally:
            private.close()
        self.socket.settimeout(30)
        self.frames = hello_and_messages()
        settings = {"model": written(engine)}
        self.load = Load(**{"version": VERSION, "loader": "tests.server.scripted", "settings": settings} | load)

    def messages(self, count):
        found = []
        while len(found) < count:
            received = self.socket.recv(1 << 16)
            assert received, "the engine's process has closed its socket"
            found += self.frames.feed(received)
        return found

    def send(self, *messages):
        self.socket.sendall(b"".join(map(frame, messages)))

    def __enter__(self):
        assert self.messages(1) == [Hello(VERSION, self.process.pid)]
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.process.kill()
        self.process.wait()


def request(*prompt):
    return Request.create("r", prompt, SamplingParams(max_tokens=3), ModelLimits(1000, 64))


def test_a_front_end_that_closes_its_socket_ends_the_process_even_inside_a_step():
    with Peer() as peer:
        peer.send(peer.load)
        peer.messages(2)
        peer.send(Submit.of(1, request(HANG)))
        time.sleep(0.3)
        peer.socket.close()
        assert peer.process.wait(5) == 1


def test_an_engine_that_is_stopped_is_closed_and_prints_nothing_to_stdout(capfd):
    with Peer() as peer:
        peer.send(peer.load, Stop())
        assert peer.process.wait(5) == 0
        assert capfd.readouterr() == ("", "the engine was closed\n")


def test_what_is_no_command_ends_the_process_and_is_logged(capfd):
    with Peer() as peer:
        peer.send(peer.load)
        peer.messages(2)
        peer.socket.sendall(b"\x05\x00\x00\x00hello")
        assert peer.process.wait(5) == 1
        assert "ERROR gradus.server.engine.process: the front end's connection has ended" in capfd.readouterr().err


def test_a_front_end_of_another_version_is_refused(capfd):
    with Peer(version="0 other") as peer:
        peer.send(peer.load)
        assert peer.process.wait(5) == 1
        assert f"the front end is not of version {VERSION}" in capfd.readouterr().err


def test_the_process_takes_settings_and_answers_in_messages():
    with Peer(settings={"model": written("DeadlyCore()"), "max_waiting": 3, "log_level": "debug"}) as peer:
        peer.send(peer.load)
        loading, loaded, first = peer.messages(3)
        assert (
            loading == Loading(Stage("starting the engine"))
            and loaded.info.model == "scripted"
            and first == Report(turn=1, metrics=Metrics())
        )
        peer.send(Submit.of(40, request(1)))
        reports = peer.messages(3)[:3]  # a self-check may follow at once
        assert reports[0].accepted == [40] and [report.turn for report in reports] == [2, 3, 4]
        assert reports[-1].others[0].handle == 40 and reports[-1].others[0].finish_reason == "length"


def test_a_setting_that_the_process_does_not_know_ends_it(capfd):
    with Peer(settings={"model": "m", "no_such": 1}) as peer:
        peer.send(peer.load)
        assert peer.process.wait(5) == 1


def test_modules_of_the_current_folder_are_not_imported_by_accident(tmp_path, monkeypatch):
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    with Peer():  # it has said hello
        pass
