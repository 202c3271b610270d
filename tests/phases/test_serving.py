"""p13's server over real sockets: what a client gets, and what becomes of those that leave, wait, or come too late.

A scripted engine says when things happen. The engines of the phases run at the end, with a tiny model.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gradus.engine.request import Request, SamplingParams
from gradus.loading import Tokenizer
from phases.p13_serving.local import local
from phases.p13_serving.server import Server
from tests.phases.conftest import build_engine, limits_of, of
from tests.phases.drive import run
from tests.ports import free_port
from tests.repository.test_layout import ROOT
from tests.server.conftest import eventually
from tests.server.scripted import ScriptedCore

PLACES = 4


@dataclass
class Running:
    """A server in a thread of this process. engine: what it owns."""

    http: httpx.Client
    port: int
    engine: Any
    server: Server

    def generate(self, **body):
        return self.http.post("/generate", json=body)

    def connect(self, **body):
        """Send a request on a connection of its own, and read nothing."""
        content = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        return connection

    @property
    def idle(self):
        return self.server.desk.admission.inside == 0 and not self.engine.has_work


@contextlib.contextmanager
def serving(engine=None, tokenizer=None, places=PLACES, **settings):
    engine = engine or ScriptedCore(slots=2)
    with (
        local(engine, tokenizer or engine.tokenizer, places, **settings) as (made, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as http,
    ):
        yield Running(http, port, engine, made)


@pytest.fixture(scope="module")
def shared():
    """One server for all tests that leave it idle."""
    with serving() as running:
        yield running
        assert eventually(lambda: running.idle)


def frames(response):
    """The JSON of each event; the last event must be [DONE]."""
    *found, done = [text.removeprefix("data: ") for text in response.text.split("\n\n") if text]
    assert done == "[DONE]"
    return [json.loads(frame) for frame in found]


def test_an_answer_has_the_fields_of_the_engine_s_own_server(shared):
    answer = shared.generate(prompt="ab", max_tokens=3).json()
    assert answer.pop("id").startswith("gen-")
    assert answer == {
        "index": 0,
        "text": "0 1 2 ",
        "token_ids": [0, 1, 2],
        "finish_reason": "length",
        "stop_reason": None,
        "model": "local",
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    }


@pytest.mark.parametrize("stop", [None, "3 4", ["9", "2 3"]])
def test_a_stream_put_together_is_the_whole_answer(shared, stop):
    body = {"prompt": [1, 2], "max_tokens": 8, "stop": stop}
    whole, parts = shared.generate(**body).json(), frames(shared.generate(**body, stream=True))
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]
    assert all("finish_reason" not in part for part in parts[:-1])
    last = parts[-1] | {"text": whole["text"], "token_ids": whole["token_ids"], "id": whole["id"]}
    assert last == whole and (whole["finish_reason"] == "length") == (stop is None)


def test_a_stop_string_ends_the_request_in_the_engine_too(shared):
    answer = shared.generate(prompt="a", max_tokens=1000, stop="5 6").json()
    assert (answer["text"], answer["stop_reason"]) == ("0 1 2 3 4 ", "5 6")
    assert eventually(lambda: shared.idle)
    assert (answer["id"], None, "cancelled") in shared.engine.cancelled


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"max_tokens": 3}, "prompt", "prompt must be text or a list of token ids"),
        ({"prompt": "a", "max_token": 3}, "max_token", "unknown field 'max_token'"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens must be"),
        ({"prompt": [5000]}, "prompt", "between 0 and 999"),
        ([], "prompt", "prompt must be text"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_in_one_line(shared, body, param, says):
    response = shared.http.post("/generate", json=body)
    error = response.json()["error"]
    assert response.status_code == error["code"] == 400 and error["param"] == param
    assert says in error["message"] and "\n" not in error["message"]


@pytest.mark.parametrize(("content", "status"), [(b"{", 400), (b"\xff", 400), (b"[" * 9999, 400), (b" " * 2**21, 413)])
def test_bytes_that_are_no_request_are_refused(shared, content, status):
    assert shared.http.post("/generate", content=content).status_code == status


def test_health_says_ready_and_live(shared):
    assert [shared.http.get(path).status_code for path in ("/health", "/health/live")] == [200, 200]


def test_a_client_that_leaves_frees_its_place_and_the_engine(shared):
    for streaming in (True, False):
        cancelled = len(shared.engine.cancelled)
        connection = shared.connect(prompt="a", max_tokens=3000, stream=streaming)
        assert eventually(lambda: shared.engine.has_work)
        connection.close()
        assert eventually(lambda: shared.idle)
        assert len(shared.engine.cancelled) > cancelled


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_no_trace(shared, caplog):
    connection = socket.create_connection(("127.0.0.1", shared.port), timeout=20)
    connection.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
    time.sleep(0.05)
    connection.close()
    time.sleep(0.05)
    assert shared.generate(prompt="a", max_tokens=1).status_code == 200
    assert shared.idle and not caplog.records


@pytest.fixture
def slow():
    """A server whose engine takes 20 ms for a step, and runs 2 requests at once; 2 more may wait."""
    with serving(ScriptedCore(slots=2, step_s=0.02), drain_timeout=0.3) as running:
        yield running


def test_beyond_its_places_it_refuses_at_once_and_says_when_to_come_back(slow):
    inside = [slow.connect(prompt="a", max_tokens=1000, stream=True) for _ in range(PLACES)]
    assert eventually(lambda: slow.server.desk.admission.inside == PLACES)
    response = slow.generate(prompt="a", max_tokens=1)
    assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "overloaded"
    inside.pop().close()
    assert eventually(lambda: slow.server.desk.admission.inside == PLACES - 1)
    waiting = slow.connect(prompt="a", max_tokens=1, stream=True)
    assert eventually(lambda: slow.server.desk.admission.inside == PLACES)
    for connection in (*inside, waiting):
        connection.close()


def test_drain_refuses_new_requests_lets_the_short_one_end_and_cuts_the_long_one_off_with_a_frame(slow):
    with httpx.Client(base_url=slow.http.base_url, timeout=20, trust_env=False) as other:
        answers = {}

        def ask(name, **body):
            answers[name] = frames(other.post("/generate", json={"prompt": "a", "stream": True, **body}))

        threads = [threading.Thread(target=ask, args=("short",), kwargs={"max_tokens": 5}),
                   threading.Thread(target=ask, args=("long",), kwargs={"max_tokens": 1000})]  # fmt: skip
        for thread in threads:
            thread.start()
        assert eventually(lambda: len(slow.engine.running) == 2)
        slow.server.handle_exit(signal.SIGTERM, None)
        assert eventually(lambda: slow.http.get("/health").status_code == 503)
        assert slow.http.get("/health/live").status_code == 200
        refused = slow.generate(prompt="a")
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "draining"
        for thread in threads:
            thread.join(10)
    assert [answers[name][-1]["finish_reason"] for name in ("short", "long")] == ["length", "cancelled"]


def test_a_request_that_takes_too_long_ends_with_what_there_is():
    with serving(ScriptedCore(step_s=0.02), request_timeout=0.1) as running:
        whole = running.generate(prompt="a", max_tokens=1000)
        assert (whole.status_code, whole.json()["error"]["type"]) == (504, "timeout")
        parts = frames(running.generate(prompt="a", max_tokens=1000, stream=True))
        assert parts[-1]["finish_reason"] == "timeout" and len(parts) > 1


def test_an_engine_that_fails_ends_all_requests_and_says_so_ever_after():
    with serving(ScriptedCore(faults={3: RuntimeError("secret")})) as running:
        parts = frames(running.generate(prompt="a", max_tokens=9, stream=True))
        assert parts[-1]["finish_reason"] == "error" and running.server.desk.admission.inside == 0
        assert [running.http.get(path).status_code for path in ("/health", "/health/live")] == [503, 503]
        response = running.generate(prompt="a")
        assert response.status_code == 503 and "secret" not in response.text


def test_a_reader_that_stops_reading_delays_no_other():
    with serving(ScriptedCore(slots=2, piece=" " * 4000), places=2) as running:
        stalled = running.connect(prompt="a", max_tokens=2000, stream=True)
        assert eventually(lambda: running.engine.running)
        start = time.monotonic()
        assert len(running.generate(prompt="a", max_tokens=50).json()["token_ids"]) == 50
        assert time.monotonic() - start < 5
        assert eventually(lambda: running.server.desk.admission.inside == 0)  # the engine does not wait for it either
        stalled.close()


def test_sigterm_ends_the_process_after_the_answers():
    """Of a process of its own: there the signal's handler is the real one."""
    code = (
        "import asyncio\n"
        "from gradus.server.config import ServerConfig\n"
        "from phases.p13_serving.server import Server\n"
        "from tests.server.scripted import ScriptedCore\n"
        f"core, settings = ScriptedCore(step_s=0.02), ServerConfig(port={(port := free_port())})\n"
        "async def main():\n"
        "    await Server(core, core.tokenizer, 'scripted', 4, settings).serve()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT}/src"})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as http:
            assert eventually(lambda: answers(http), 20)
            with http.stream("POST", "/generate", json={"prompt": "a", "max_tokens": 20, "stream": True}) as response:
                process.send_signal(signal.SIGTERM)
                text = response.read().decode()
        assert '"finish_reason":"length"' in text and text.endswith("data: [DONE]\n\n")
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def answers(http):
    try:
        return http.get("/health").status_code == 200
    except httpx.ConnectError:
        return False


SHAPE = "tiny-llama"
PROMPTS = [[5, 6, 7], [8] * 9, [1, 2]]


@of("p00", "p03", "p08", "p10", "p11")
def test_any_engine_serves_and_says_the_same_as_without_a_server(phase):
    params = SamplingParams(max_tokens=6)
    requests = [Request.create(f"r{i}", ids, params, limits_of(SHAPE)) for i, ids in enumerate(PROMPTS)]
    expected = run(build_engine(phase, SHAPE), requests)
    with serving(build_engine(phase, SHAPE), Tokenizer.of_bytes()) as running:
        found: dict[int, list[int]] = {}

        def ask(number):
            found[number] = running.generate(prompt=PROMPTS[number], max_tokens=6).json()["token_ids"]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert found == {i: list(expected[f"r{i}", 0].tokens) for i in range(len(PROMPTS))}
