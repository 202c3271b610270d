"""Clients that leave, stall or dawdle: their memory is freed, and other clients notice nothing."""

import contextlib
import os
import time
from functools import partial

import pytest

from gradus.engine.sequence import Output
from tests.server.conftest import events, eventually, read_answer
from tests.server.scripted import ScriptedCore

SLOW = partial(ScriptedCore, step_s=0.01)
ENDLESS = b'{"prompt": "a", "max_tokens": 4000}'
ENDLESS_STREAM = b'{"prompt": "a", "max_tokens": 4000, "stream": true}'


@pytest.mark.parametrize("body", [ENDLESS, ENDLESS_STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
def test_a_client_that_leaves_frees_the_engine_at_once(serving, body, reset):
    server = serving(SLOW)
    connection = server.send(body)
    assert eventually(lambda: server.engine.running)
    start = time.monotonic()
    server.leave(connection, reset)
    assert eventually(server.idle)
    assert time.monotonic() - start < 2  # 0.3 s on an idle machine; 4,000 steps would take 40 s
    assert server.stats()["abandoned"] == 1
    assert server.stats()["cancelled"] == 1


def leaving(server, times):
    """Clients leave in every way and at every moment; afterwards nothing is held."""
    for turn in range(times):
        connection = server.send(ENDLESS_STREAM if turn % 2 else ENDLESS)
        if turn % 3 == 1:
            assert eventually(lambda: server.engine.has_work)
        elif turn % 3 == 2 and turn % 2:
            connection.recv(1000)
        server.leave(connection, reset=turn % 4 < 2)
    assert eventually(server.idle)
    assert eventually(lambda: connections(server) <= 1)
    assert server.generate(prompt="a", max_tokens=3).json()["token_ids"] == [0, 1, 2]


def connections(server):
    """Open ones; the test's own client keeps one alive."""
    return len(server.server.server_state.connections)


def open_files():
    return len(os.listdir("/dev/fd"))


def test_fifty_that_leave_leave_nothing_behind(serving):
    server = serving(SLOW)
    leaving(server, 4)
    before = open_files()
    leaving(server, 50)
    assert open_files() <= before + 1


@pytest.mark.stress
def test_a_thousand_that_leave_leave_nothing_behind(serving, process):
    server = serving(SLOW)
    leaving(server, 100)
    before, memory = open_files(), process.memory_info().rss
    leaving(server, 1000)
    assert open_files() <= before + 1
    assert process.memory_info().rss < memory + (20 << 20)


def test_others_go_on_when_one_leaves(serving):
    server = serving(SLOW)
    connection = server.send(ENDLESS_STREAM)
    assert eventually(lambda: server.engine.running)
    other = server.send(b'{"prompt": "a", "max_tokens": 50}')
    server.leave(connection, reset=True)
    status, _, body = read_answer(other)
    assert status == 200 and b'"completion_tokens":50' in body


def test_a_stream_that_nobody_reads_is_cut(serving):
    """64 KiB a token: the kernel's buffers take some megabytes, then writing blocks."""
    server = serving(partial(ScriptedCore, step_s=0.001, piece="x" * 65536), write_timeout=0.5, max_buffered=100_000)
    stalled = server.send(ENDLESS_STREAM)
    other = server.generate(prompt="a", max_tokens=20)
    assert other.status_code == 200
    assert eventually(server.idle)
    assert eventually(lambda: connections(server) <= 1)
    assert (server.stats()["stalled"], server.stats()["abandoned"]) == (1, 0)
    stalled.close()


def test_results_do_not_pile_up_without_bound(serving):
    server = serving(partial(ScriptedCore, step_s=0.001, piece="x" * 65536), write_timeout=3, max_buffered=50)
    stalled = server.send(ENDLESS_STREAM)
    start = time.monotonic()
    assert eventually(lambda: server.stats()["stalled"] == 1)
    assert time.monotonic() - start < 3
    assert eventually(server.idle)
    stalled.close()


def test_a_quiet_stream_is_kept_alive_by_comments(serving):
    server = serving(partial(ScriptedCore, slots=1, step_s=0.2), ping_interval=0.1)
    with server.http.stream("POST", "/generate", json={"prompt": "a", "max_tokens": 4, "stream": True}) as answer:
        text = answer.read().decode()
    assert ": ping\n\n" in text
    assert text.endswith("data: [DONE]\n\n")


def test_steps_that_only_advance_the_prompt_are_no_frames(serving):
    class Chunked(ScriptedCore):
        def _advance(self, sample):
            if self.totals.steps <= 3:
                return Output(sample.request.id, sample.index)
            return super()._advance(sample)

    answer = serving(Chunked).generate(prompt="a", max_tokens=2, stream=True)
    frames, done = events(answer)
    assert [token for frame in frames for token in frame["token_ids"]] == [0, 1] and done
    assert all(frame["token_ids"] for frame in frames), "on busy cores one frame may have both"
    assert ": ping" not in answer.text


def test_headers_that_never_end_are_not_waited_for(serving):
    server = serving(receive_timeout=0.5)
    connection = server.connect()
    connection.sendall(b"GET /health HTTP/1.1\r\n")
    start = time.monotonic()
    while time.monotonic() - start < 5:
        try:
            connection.sendall(b"X: y\r\n")  # one more header, again and again
        except OSError:
            break
        time.sleep(0.05)
    assert time.monotonic() - start < 2
    assert server.health() == 200


def test_a_connection_that_says_nothing_is_not_kept(serving):
    server = serving(receive_timeout=0.3)
    connection = server.connect()
    connection.settimeout(5)
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""


def test_a_body_that_never_ends_is_not_waited_for(serving):
    server = serving(receive_timeout=0.3)
    connection = server.send(b'{"prompt": ', headers=["Content-Length: 100"])
    status, headers, body = read_answer(connection)
    assert status == 408
    assert b"did not arrive within 0.3 s" in body
    assert "connection: close" in headers


def test_a_body_for_a_route_that_takes_none_is_not_waited_for(serving):
    server = serving(receive_timeout=0.3)
    connection = server.send(b"{", headers=["Content-Length: 100"], path="/health")
    assert read_answer(connection)[0] == 405
    connection.sendall(b" ")
    connection.settimeout(5)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(100):  # a connection left open would be a timeout
            pass
