"""docs/operations.md, "Faults": each row of its table is read, its fault is provoked, and a client sees what it says.

A cell names a status and a state ("503 `restarting`"), quotes a message, or says in words that requests go on. Numbers
in messages are examples. The servers are processes of their own, stopped, killed and filled up as in real life.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import httpx
import pytest

from gradus.server.config import ServerConfig
from tests.ports import free_port
from tests.server.conftest import PLAIN, Process, eventually
from tests.server.scripted import KILL, RAISE
from tests.server.test_operations_page import section

SERVED = re.compile(r"accepted(?!, then)|go on|finish|held")
STATES = re.compile(r"`([a-z_]+)`")
LONG = {"prompt": "a", "max_tokens": 4000}


def table():
    """The rows: first cell → (health, running requests, new requests)."""
    lines = [line for line in section("Faults").splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = {first: tuple(others) for first, *others in rows}
    assert len(found) == len(rows)
    return found


ROWS = table()
KILLED = "the engine is killed or a step raises"


@dataclass
class Answer:
    """One answer as its client sees it. status: 0 for a connection that was closed."""

    status: int
    kind: str = ""
    message: str = ""
    headers: dict = field(default_factory=dict)

    @classmethod
    def of(cls, response):
        error = response.json().get("error") or {}
        kind = error.get("type") or response.json().get("status") or ""
        said = error.get("message") or response.json().get("reason") or ""
        return cls(response.status_code, kind, said, dict(response.headers))


@dataclass
class Seen:
    """What clients saw of a fault, by column."""

    health: list = field(default_factory=list)
    running: list = field(default_factory=list)
    new: list = field(default_factory=list)


def meant(cell, column):
    """A cell as it is meant: some refer to the row of a kill."""
    if cell.startswith("as after a kill"):
        return ROWS[KILLED][column]
    return cell.replace("then as after a kill", f"then {ROWS[KILLED][column]}")


def check(cell, column, answers):
    """Compare the answers with a cell."""
    cell = meant(cell, column)
    if cell == "–":
        assert not answers
        return
    quoted = [text for text in re.findall(r"`([^`]+)`", cell) if " " in text]
    bare = re.sub(r"`([^`]+)`", lambda found: "" if " " in found[1] else found[0], cell)
    statuses = {int(found) for found in re.findall(r"\b([1-5]\d\d)\b(?! s)", bare)}
    if SERVED.search(bare):
        statuses.add(200)
    if "cut" in bare or "ends before" in bare:
        statuses.add(0)
    assert statuses and {answer.status for answer in answers} == statuses, (cell, answers)
    kinds = {answer.kind for answer in answers}
    settings = set(ServerConfig.__dataclass_fields__)
    for state in set(STATES.findall(bare)) - settings:
        assert state in kinds, (cell, answers)
    for message in quoted:
        pattern = re.sub(r"\\?\d+(\\\.\d+)?", r"\\d+(\\.\\d+)?", re.escape(message))
        if message.startswith("Retry-After"):
            assert any(answer.headers.get("retry-after") == message.split()[-1] for answer in answers)
        else:
            assert any(re.search(pattern, answer.message) for answer in answers), (message, answers)


class Client:
    """Requests to one server, also several at a time."""

    def __init__(self, url):
        self.url = url
        self.port = int(url.rsplit(":")[-1])
        alone = httpx.Limits(max_keepalive_connections=0)  # a connection for each request
        self._http = httpx.Client(base_url=url, timeout=60, limits=alone, **PLAIN)

    def get(self, path="/health"):
        return Answer.of(self._http.get(path))

    @contextlib.contextmanager
    def kept(self):
        """Ask /health on one connection, again and again: no further descriptor is needed."""
        with httpx.Client(base_url=self.url, timeout=30, **PLAIN) as http:
            yield lambda: Answer.of(http.get("/health"))

    def stats(self):
        return self._http.get("/stats").json()

    def post(self, **body):
        response = self._http.post("/generate", json=body)
        return Answer.of(response) if response.status_code != 200 else Answer(200, response.json()["finish_reason"])

    def later(self, **body):
        """Ask on a thread; call the result for the answer."""
        box = []
        thread = threading.Thread(target=lambda: box.append(self.post(**body)))
        thread.start()

        def result():
            thread.join(60)
            return box[0]

        return result

    def running(self, count=1, **body):
        """Requests that run; their results."""
        results = [self.later(**(LONG | body)) for _ in range(count)]
        assert eventually(lambda: self.stats()["active"] == count)
        return results

    def open(self, **body):
        """A request as bytes on a connection of its own."""
        content = json.dumps(LONG | body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        connection.sendall(f"{head}{len(content)}\r\n\r\n".encode() + content)
        return connection


@contextlib.contextmanager
def serving(engine="DeadlyCore(step_s=0.01)", **settings):
    """A server in a process of its own, and a client."""
    with Process(engine, port=0, **settings) as server:
        yield server, Client(server.ready())


@contextlib.contextmanager
def real(*options):
    """`gradus serve` with the final engine."""
    command = [sys.executable, "-m", "gradus", "serve", "--model", "random:tiny-llama", "--dtype", "float32"]
    child = subprocess.Popen(
        [*command, "--device", "cpu", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            line = child.stdout.readline()
            assert line, child.stderr.read()
            yield child, Client(line.split(" at ")[1].split()[0])
        finally:
            child.kill()


# -- the faults --------------------------------------------------------------------------------------------------------


def while_it_loads(tmp_path):
    port = free_port()
    with Process("time.sleep(4) or ScriptedCore()", port=port):
        client = Client(f"http://127.0.0.1:{port}")

        def listens():
            with contextlib.suppress(httpx.ConnectError):
                return client.get()

        return Seen([eventually(listens)], [], [client.post(prompt="a")])


def after_a_kill(tmp_path):
    seen = Seen()
    with serving() as (server, client):
        for fault in ("SIGKILL", "raise"):
            results = client.running(2)
            began = time.monotonic()
            if fault == "SIGKILL":
                os.kill(server.engine_pid(), signal.SIGKILL)
            else:
                client.post(prompt=[RAISE])
            seen.running += [result() for result in results]
            assert time.monotonic() - began < 3  # "within a second", on a busy machine
            seen.health.append(client.get())
            seen.new.append(client.post(prompt="a"))
            assert int(seen.new[-1].headers["retry-after"]) >= 1
            assert eventually(lambda: client.get().status == 200, 20)
    return seen


def while_a_step_hangs(tmp_path):
    with serving(step_timeout=5.0) as (server, client):
        (result,) = client.running()
        began = time.monotonic()
        os.kill(server.engine_pid(), signal.SIGSTOP)
        assert eventually(lambda: client.get().status == 503)
        health, stalled = client.get(), time.monotonic() - began
        assert 1.5 < stalled < 4.5, stalled
        held = client.later(prompt="a", max_tokens=1)
        running, waited = result(), held()
        assert time.monotonic() - began > 5 and "hangs" in waited.message
        refused = client.post(prompt="a", max_tokens=1)
        assert eventually(lambda: client.get().status == 200, 20)
        return Seen([health], [running], [waited, refused])


def without_memory(tmp_path):
    """The final engine. One of its steps asks the system for more memory than any has."""
    with serving("disturbed_llm(100, starve)") as (_, client):
        results = [client.later(prompt="a", max_tokens=400, ignore_eos=True) for _ in range(2)]
        answers = [result() for result in results]
        seen = Seen([client.get()], answers, [client.post(prompt="a")])
        assert all("--max-sequences" in answer.message for answer in answers), answers  # "naming the settings to lower"
        assert eventually(lambda: client.get().status == 200, 30)
        return seen


def after_the_fourth_failure(tmp_path):
    soon = "setattr(__import__('gradus.server.supervisor').server.supervisor.Restarts, 'FIRST_DELAY_S', 0.01)"
    with serving(f"({soon}, DeadlyCore(step_s=0.01))[1]", on_failure="retry") as (_, client):
        for _ in range(3):
            client.post(prompt=[KILL])
            assert eventually(lambda: client.get().status == 200, 30)
        results = client.running()
        client.post(prompt=[KILL])
        answers = [result() for result in results]
        assert client.get("/health/live").status == 503
        return Seen([client.get(), client.get("/health/live")], answers, [client.post(prompt="a")])


def asleep(tmp_path):
    with serving("ScriptedCore()", sleep_after=0.3) as (_, client):
        assert eventually(lambda: client.stats()["state"] == "asleep")
        sleeping = client.get()
        result = client.later(prompt="a", max_tokens=3)
        assert eventually(lambda: client.stats()["state"] != "asleep")
        return Seen([sleeping, client.get()], [], [result()])


def draining(tmp_path):
    with serving(drain_timeout=30) as (server, client):
        results = client.running(2, max_tokens=150)
        server.signal()
        assert eventually(lambda: client.get().status == 503)
        seen = Seen([client.get()], [], [client.post(prompt="a")])
        assert int(seen.new[0].headers["retry-after"]) >= 1
        seen.running = [result() for result in results]
        assert server.end()[0] == 0
        return seen


def with_a_full_queue(tmp_path):
    with serving("ScriptedCore(slots=1, step_s=0.01)", max_waiting=2) as (_, client):
        results = client.running(1, max_tokens=100)
        results += [client.later(prompt="a", max_tokens=2) for _ in range(2)]
        assert eventually(lambda: client.stats()["waiting"] == 2)
        new = client.post(prompt="a")
        return Seen([client.get()], [result() for result in results], [new])


def too_long(tmp_path):
    with serving() as (_, client):
        neighbor, slow = client.later(prompt="a", max_tokens=100), client.later(**LONG, timeout=0.3)
        assert slow().headers["x-should-retry"] == "false"
        assert neighbor().status == 200
        return Seen([client.get()], [slow()], [client.post(prompt="a", max_tokens=1)])


def failing_inside(tmp_path):
    with serving("ScriptedCore(step_s=0.01, poison=13)") as (server, client):
        neighbor = client.later(prompt="a", max_tokens=100)
        failed = client.post(prompt=[13])
        assert failed.headers["x-should-retry"] == "false" and neighbor().status == 200
        seen = Seen([client.get()], [failed], [client.post(prompt="a", max_tokens=1)])
        server.signal()
        _, errors = server.end()
        assert f"request {failed.headers['x-request-id']}" in errors and "secret detail" in errors
    seen.running += with_numbers_that_are_not_finite()
    return seen


def with_numbers_that_are_not_finite():
    """The final engine, with NaN in one of three requests' pages. Only that one fails, and the page is clean again."""
    with serving("disturbed_llm(30, spoil, running=3)") as (server, client):
        asked = [{"prompt": [number, 7, 9], "temperature": 0, "ignore_eos": True} for number in range(40, 43)]
        results = [client.later(**one, max_tokens=400) for one in asked]
        answers = [result() for result in results]
        assert sorted(answer.status for answer in answers) == [200, 200, 500], answers
        again = [client.later(**one, max_tokens=200) for one in asked]
        assert [one().status for one in again] == [200, 200, 200]
        server.signal()
        code, errors = server.end()
        assert code == 0 and "finite" in errors
        return [answer for answer in answers if answer.status != 200]


def not_read(tmp_path):
    with serving("ScriptedCore(piece='x' * 65536)", write_timeout=0.3) as (_, client), client.open(stream=True):
        assert eventually(lambda: client.stats()["stalled"] == 1)
        assert eventually(lambda: not client.stats()["active"])
        return Seen([client.get()], [Answer(0)], [client.post(prompt="a", max_tokens=1)])


def left(tmp_path):
    with serving() as (_, client):
        for reset in (False, True):
            with client.open() as connection:
                assert eventually(lambda: client.stats()["active"] == 1)
                if reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            assert eventually(lambda: client.stats()["active"] == 0, 2)  # 4000 tokens would take 40 s
        return Seen([client.get()], [Answer(0)], [client.post(prompt="a", max_tokens=1)])


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of `size` bytes. Skips the test where nothing can be mounted."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def with_a_full_disk(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        options = ["--log-bodies", str(disk / "bodies"), "--prefix-dir", str(disk / "prefixes")]
        with real(*options, "--prefix-dir-size", "0.05") as (child, client):
            result = client.later(prompt=[5] * 300, max_tokens=100, ignore_eos=True)
            with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
                while ballast.write(b"\0" * 4096):
                    pass
            new = [client.post(prompt=[number] * 300, max_tokens=2) for number in range(20)]
            seen = Seen([client.get()], [result()], new)
            child.send_signal(signal.SIGTERM)
            errors = child.communicate(timeout=30)[1]
        assert child.returncode == 0 and "Traceback" not in errors
        assert errors.count("could not be written") == 1, errors
        return seen


def with_a_clock_that_jumps(tmp_path):
    """In both processes, each look at the clock is a day before or after the last one."""
    jumps = (
        "(setattr(time, 'time', lambda days=itertools.cycle((-1, 1)), real=time.time: real() + 86400 * next(days)), "
        "ScriptedCore(step_s=0.01))[1]"
    )
    with serving(jumps, log_format="json", request_timeout=10.0, log_requests=True) as (server, client):
        results = client.running(2, max_tokens=200)
        seen = Seen([client.get()], [result() for result in results], [client.post(prompt="a", max_tokens=1)])
        stats = client.stats()
        assert stats["timed_out"] == stats["restarts"] == 0 and 0 < stats["uptime_s"] < 60
        server.signal()
        code, errors = server.end()
        lines = [json.loads(line) for line in errors.splitlines()]
        days = {line["time"][:10] for line in lines}
        times = [line["seconds"] for line in lines if line.get("event") == "request"]
        assert code == 0 and len(days) == 2 and times and all(0 <= each < 60 for each in times)
        return seen


def without_a_collector(tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    nobody = f"http://127.0.0.1:{free_port()}"
    with serving("ScriptedCore(step_s=0.01)", otlp_traces_endpoint=nobody) as (server, client):
        (result,) = client.running(1, max_tokens=100)
        seen = Seen([client.get()], [result()], [client.post(prompt="a", max_tokens=1)])
        server.signal()
        code, errors = server.end(30)
        assert code == 0 and 1 <= errors.count("WARNING gradus.server.traces") <= 2, errors
        return seen


FAULTS = {
    "the model loads": while_it_loads,
    KILLED: after_a_kill,
    "a step hangs": while_a_step_hangs,
    "the device runs out of memory": without_memory,
    "the fourth failure in ten minutes": after_the_fourth_failure,
    "the engine sleeps or wakes": asleep,
    "SIGTERM: the server drains": draining,
    "the queue is full": with_a_full_queue,
    "a request takes too long": too_long,
    "a request fails inside": failing_inside,
    "a client does not read": not_read,
    "a client leaves": left,
    "the disk is full": with_a_full_disk,
    "the clock jumps": with_a_clock_that_jumps,
    "the traces' collector is gone": without_a_collector,
}


def test_every_row_has_its_fault():
    assert list(ROWS) == list(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_sees_what_the_page_says(fault, tmp_path):
    seen = FAULTS[fault](tmp_path)
    for column, answers in enumerate((seen.health, seen.running, seen.new)):
        check(ROWS[fault][column], column, answers)


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("503 `restarting`", [Answer(503, "failed")]),
        ("503 `restarting`", [Answer(500, "restarting")]),
        ("200", [Answer(200), Answer(503)]),
        ("accepted", [Answer(503)]),
        ("503: `the queue is full (at most 256 waiting samples)`", [Answer(503, "", "the queue is full")]),
        ("503 `loading`, `Retry-After: 1`", [Answer(503, "loading", "", {"retry-after": "2"})]),
        ("its connection is cut", [Answer(200)]),
        ("–", [Answer(200)]),
    ],
)
def test_a_cell_that_lies_is_found(cell, answers):
    with pytest.raises(AssertionError):
        check(cell, 0, answers)
