"""The process that writes for the front end: the same bytes in the same order, whatever becomes of clients or of it."""

import json
import re
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from gradus.server.api.completions import CompletionsEncoder
from gradus.server.api.generate import GenerateEncoder
from gradus.server.serve import LOOP
from gradus.server.writing.outbox import PATIENCE_S, Outbox
from tests.server.conftest import eventually, running
from tests.server.scripted import ScriptedCore
from tests.server.test_results import frames_of, unchunked

CERT, KEY = (str(Path(__file__).with_name(f"localhost.{kind}.pem")) for kind in ("cert", "key"))

BODIES = [
    ("/generate", {"prompt": "a", "max_tokens": 40}),
    ("/generate", {"prompt": "a", "max_tokens": 40, "n": 3}),
    ("/generate", {"prompt": "a", "max_tokens": 40, "stop": ["17"]}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 40}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 40, "n": 2, "echo": True}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 40, "stream_options": {"include_usage": True}}),
    (
        "/v1/completions",
        {
            "prompt": "a",
            "max_tokens": 40,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
]


@pytest.fixture
def many(monkeypatch):
    """Two streams in a step are many: the process writes for them on any machine."""
    monkeypatch.setattr("gradus.server.client.Outbox", partial(Outbox, least=2, cores=8))


def post(server, path, content, tls=None):
    """Send a streaming request on a new connection. Returns the connection, nothing read yet."""
    connection = server.connect()
    if tls is not None:
        connection = tls.wrap_socket(connection, server_hostname="localhost")
    send(connection, path, content)
    return connection


def send(connection, path, content):
    body = json.dumps({**content, "stream": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def answers(server, tls=None):
    """The bodies of all answers, which run together; without what differs from run to run."""
    connections = [post(server, path, content, tls) for path, content in BODIES]
    with ThreadPoolExecutor(len(connections)) as pool:
        found = list(pool.map(unchunked, connections))
    for connection in connections:
        connection.close()
    return [
        sorted(re.sub(rb'\d+\.\d+|"created":\d+|(gen|cmpl|chatcmpl)-\w+', b"", body).split(b"\n\n")) for body in found
    ]


def warm(server):
    """Have the process started."""
    while not server.client.outbox.ready:
        for connection in [post(server, "/generate", {"prompt": "a", "max_tokens": 20}) for _ in range(3)]:
            unchunked(connection)
            connection.close()


def engine(**settings):
    return partial(ScriptedCore, slots=64, step_s=0.002, piece='\u2028é"\n ', **settings)


@pytest.mark.parametrize("loop", ["asyncio", LOOP])
def test_answers_have_the_same_bytes_by_all_ways(many, serving, monkeypatch, loop):
    monkeypatch.setattr("gradus.server.serve.LOOP", loop)
    server = serving(engine())
    warm(server)
    batches = []
    monkeypatch.setattr(Outbox, "put", lambda self, *entry, put=Outbox.put: (batches.append(entry), put(self, *entry)))
    written = answers(server)
    assert len(batches) > 100 and server.client.outbox.ready
    monkeypatch.setattr("gradus.server.client.Outbox", Outbox)
    tls = ssl.create_default_context(cafile=CERT)
    with running(engine(), tls_cert=CERT, tls_key=KEY) as other:
        assert answers(other, tls) == written
    for encoder in (GenerateEncoder, CompletionsEncoder):
        monkeypatch.setattr(encoder, "template", lambda self, delta: None)
    assert answers(serving(engine())) == written


def test_a_client_that_pauses_gets_every_token_in_order_and_delays_no_other(many, serving):
    """16 KiB a token: the paused connection takes a part of a piece, and its transport the rest."""
    server = serving(partial(ScriptedCore, slots=8, step_s=0.001, piece="x" * 16384 + " "), write_timeout=20)
    warm(server)
    body = {"prompt": "a", "max_tokens": 300}
    paused = post(server, "/generate", body)
    paused.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    others = [post(server, "/generate", body) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(unchunked, others))
    for read in (*found, unchunked(paused)):
        frames = frames_of(read)
        assert [token for each in frames for token in each["token_ids"]] == list(range(300))
        assert "".join(each["text"] for each in frames).split() == [f"{token}" + "x" * 16384 for token in range(300)]
    assert server.client.outbox.ready
    for connection in (paused, *others):
        connection.close()


def writer_of(server):
    return psutil.Process(server.client.outbox._process.pid)


@pytest.mark.parametrize("reset", [False, True], ids=["closes", "resets"])
def test_no_stream_reaches_the_connection_that_takes_anothers_place(many, serving, reset):
    """Clients leave in the middle, and new ones get their descriptors' numbers."""
    server = serving(engine())
    warm(server)
    for round_ in range(12):
        leaving = [post(server, "/generate", {"prompt": "a", "max_tokens": 400}) for _ in range(6)]
        for connection in leaving:
            connection.recv(1 << 12)
        for connection in leaving:
            server.leave(connection, reset)
        staying = [post(server, "/generate", {"prompt": "a", "max_tokens": 30, "seed": round_}) for _ in range(6)]
        for connection in staying:
            frames = frames_of(unchunked(connection))
            connection.close()
            assert len({frame["id"] for frame in frames}) == 1
            assert [token for frame in frames for token in frame["token_ids"]] == list(range(30))
    assert eventually(server.idle)
    assert eventually(lambda: writer_of(server).num_fds() <= 8)


def test_a_connection_serves_one_stream_after_the_other(many, serving):
    server = serving(engine())
    warm(server)
    body = {"prompt": "a", "max_tokens": 5}
    connections = [post(server, "/generate", body) for _ in range(4)]
    for _ in range(10):
        for connection in connections:
            assert len(frames_of(unchunked(connection))) == 5
            send(connection, "/generate", body)
    for connection in connections:
        connection.close()


def test_without_the_process_the_event_loop_writes(many, serving, caplog):
    server = serving(engine())
    warm(server)
    running_ones = [post(server, "/generate", {"prompt": "a", "max_tokens": 200}) for _ in range(4)]
    for connection in running_ones:
        connection.recv(1 << 12)
    writer_of(server).kill()
    for connection in running_ones:  # whole, or cut in the middle: but never with a hole
        received = b""
        try:
            while more := connection.recv(1 << 16):
                received += more
                if received.endswith(b"0\r\n\r\n"):
                    break
        except OSError:
            pass
        connection.close()
        tokens = [int(token) for token in re.findall(rb'"token_ids":\[(\d+)\]', received)]
        assert tokens == list(range(tokens[0], tokens[0] + len(tokens))) if tokens else True
    assert not server.client.outbox.ready and "the event loop writes by itself" in caplog.text
    assert len(frames_of(unchunked(post(server, "/generate", {"prompt": "a", "max_tokens": 9})))) == 9
    assert server.health() == 200


def test_a_process_that_hangs_is_given_up(many, serving):
    server = serving(engine())
    warm(server)
    connections = [post(server, "/generate", {"prompt": "a", "max_tokens": 3000}) for _ in range(4)]
    for connection in connections:
        connection.recv(1 << 12)
    writer = writer_of(server)
    writer.suspend()
    assert eventually(lambda: not server.client.outbox.ready)
    assert eventually(lambda: not writer.is_running())
    for connection in connections:
        connection.close()
    assert eventually(server.idle) and server.health() == 200


@pytest.mark.parametrize("loop", ["asyncio", LOOP])
def test_an_event_loop_that_stood_still_cuts_no_connection(many, serving, monkeypatch, loop):
    """When it goes on, it reads the answer that is there before it judges how long that took."""
    monkeypatch.setattr("gradus.server.serve.LOOP", loop)
    server = serving(engine())
    warm(server)
    send_batch, pauses = Outbox._send, [PATIENCE_S + 0.2]

    def send_and_pause(outbox):
        send_batch(outbox)
        if outbox._under_way and pauses:
            time.sleep(pauses.pop())

    monkeypatch.setattr(Outbox, "_send", send_and_pause)
    connections = [post(server, "/generate", {"prompt": "a", "max_tokens": 100}) for _ in range(4)]
    texts = [unchunked(connection) for connection in connections]
    for connection in connections:
        connection.close()
    assert not pauses and server.client.outbox.ready
    assert all(b'"finish_reason":"length"' in text for text in texts)


def test_the_process_ends_with_the_server(many):
    with running(engine()) as server:
        warm(server)
        writer = writer_of(server)
    assert not writer.is_running()
