"""Connections: every part that a client can repeat has a limit, and a client that leaves is noticed at any point."""

import contextlib
import functools
import gc
import logging
import time
from weakref import WeakSet

import psutil
import pytest

from gradus.server.http.protocol import MAX_PIPELINED, MAX_UNREAD_BYTES
from gradus.server.logs import Sparing
from gradus.server.results import Stream
from tests.server.conftest import eventually, running
from tests.server.scripted import ScriptedCore
from tests.server.test_protocol import BODY, post, sent, statuses

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = GET + b"Transfer-Encoding: chunked\r\n\r\n"
LONG = b'{"prompt": "a", "max_tokens": 3000}'
SLOW = b'{"prompt": "a", "max_tokens": 3000, "stream": true}'


@pytest.fixture(scope="module")
def server():
    with running(functools.partial(ScriptedCore, step_s=0.002), receive_timeout=3) as server:
        yield server


@pytest.fixture
def logged(caplog):
    """Lines that a test must not cause, whatever its clients do."""
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def accepted_bytes(server, first, endless, most=64 << 20):
    """The number of bytes that the server takes of something endless before it closes the connection."""
    taken = 0
    with server.connect() as connection:
        connection.sendall(first)
        try:
            while taken < most:
                connection.sendall(endless)
                taken += len(endless)
        except OSError:
            pass
    return taken


ENDLESS = {
    "empty lines": (b"", b"\r\n" * 20_000),
    "a request line": (b"GET /", b"a" * 40_000),
    "a header": (GET + b"X-A: ", b"a" * 40_000),
    "headers": (GET, b"a:b\r\n" * 10_000),
    "a chunk's size": (CHUNKED + b"00", b"0" * 40_000),
    "a chunk's extension": (CHUNKED + b"1;", b"a" * 40_000),
    "extensions of small chunks": (CHUNKED, b"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\na\r\n" * 1000),
    "a trailer": (CHUNKED + b"0\r\nX-A: ", b"a" * 40_000),
    "trailers": (CHUNKED + b"1\r\n{\r\n0\r\n", b"a:b\r\n" * 10_000),
    "a body that is not read": (CHUNKED, b"8000\r\n" + b"a" * 0x8000 + b"\r\n"),
    "a body behind an answer": (GET + b"Content-Length: 99999999999\r\n\r\n", b"a" * 40_000),
    "trailers of a request that is read": (
        post(b"", "Transfer-Encoding: chunked", length=False) + b"1\r\n{\r\n0\r\n",
        b"a:b\r\n" * 10_000,
    ),
    "requests behind one that runs": (post(SLOW), post(BODY) * 100),
    "requests that nothing answers": (post(SLOW) * (MAX_PIPELINED + 2), b"a" * 40_000),
    "the body of one behind another": (post(SLOW) + post(b"", "Content-Length: 99999999", length=False), b" " * 40_000),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_nothing_that_a_client_repeats_is_taken_without_end(server, logged, name):
    """Sockets hold a few MB themselves, and the server's side of them reads less than that."""
    before = psutil.Process().memory_info().rss
    began, pause = time.monotonic(), LongestPause(server)
    taken = accepted_bytes(server, *ENDLESS[name])
    assert taken <= MAX_UNREAD_BYTES + (12 << 20)
    assert time.monotonic() - began < 4
    assert pause.end() < 0.5
    assert psutil.Process().memory_info().rss < before + (24 << 20)
    assert eventually(server.idle)
    assert server.health() == 200


class LongestPause:
    """The longest time, in seconds, between two turns of a server's event loop."""

    def __init__(self, server):
        self._server, self._longest, self._last, self._over = server, 0.0, None, False
        server.on_loop(self._turn)

    def _turn(self):
        now = time.monotonic()
        self._longest = max(self._longest, now - (self._last or now))
        self._last = now
        if not self._over:
            self._server.server.loop.call_later(0.002, self._turn)

    def end(self):
        self._over = True
        return self._longest


def test_small_chunks_are_within_the_limit(server):
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY + b" " * 50_000)
    found = sent(
        server, post(b"", "Transfer-Encoding: chunked", "Connection: close", length=False) + chunks + b"0\r\n\r\n"
    )
    assert statuses(found) == [200]


def test_trailers_do_not_become_headers(server):
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
    trailers = b"Host: evil.com\r\nX-Request-Id: evil\r\n\r\n"
    head = post(b"", "Transfer-Encoding: chunked", length=False)
    assert statuses(sent(server, head + chunk + trailers + post(BODY, "Connection: close"))) == [200, 200]


def test_a_body_that_a_route_does_not_need_is_skipped(server):
    unread = GET + b"Content-Length: 900000\r\n\r\n" + b"a" * 900_000
    assert statuses(sent(server, unread + post(BODY, "Connection: close"))) == [200, 200]


@pytest.mark.parametrize("count", [1, MAX_PIPELINED])
def test_a_few_requests_may_wait_for_an_answer(server, count):
    assert statuses(sent(server, post() * count + post(BODY, "Connection: close"))) == [200] * (count + 1)


def test_behind_too_many_waiting_requests_the_connection_is_closed_after_the_answers(server):
    found = sent(server, post() * 100)
    assert statuses(found) == [200] * (MAX_PIPELINED + 1)
    assert found.lower().count(b"connection: close") == 1


@pytest.mark.parametrize(
    "nonsense",
    [b"nonsense\r\n\r\n", GET + b"Host: evil.com\r\n\r\n", post(b"zz\r\n", "Transfer-Encoding: chunked", length=False)],
)
def test_nonsense_behind_a_request_does_not_replace_its_answer(server, nonsense):
    found = sent(server, post() + nonsense)
    assert statuses(found) == [200] and b'"token_ids":[0,1,2]' in found


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("body", [LONG, SLOW])
@pytest.mark.parametrize("behind", [1, 5, 50])
def test_a_client_that_leaves_several_requests_is_noticed(server, logged, caplog, reset, body, behind):
    """3,000 steps would take 6 s."""
    connection = server.connect()
    connection.sendall(post(body) + post(body) * behind)
    assert eventually(lambda: server.engine.running)
    caplog.clear()
    left = time.monotonic()
    server.leave(connection, reset)
    assert eventually(server.idle)
    assert time.monotonic() - left < 4
    assert not [record for record in caplog.records if "status=500" in record.getMessage()]


def test_a_client_that_leaves_while_a_large_body_waits_is_noticed(server, logged):
    connection = server.connect()
    connection.sendall(post(LONG) + post(BODY + b" " * 500_000))
    assert eventually(lambda: server.engine.running)
    left = time.monotonic()
    server.leave(connection, reset=False)
    assert eventually(server.idle)
    assert time.monotonic() - left < 4


def test_many_connections_with_many_requests_each_stay_small(server, logged):
    before = psutil.Process().memory_info().rss
    connections = [server.connect() for _ in range(50)]
    many = (GET + b"\r\n") * 20_000
    for connection in connections:
        connection.settimeout(0.05)
        with contextlib.suppress(OSError):
            connection.sendall(post(LONG) + many)
    assert psutil.Process().memory_info().rss < before + (50 << 20)
    for connection in connections:
        server.leave(connection, reset=True)
    assert eventually(server.idle)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stream_that_has_ended_is_freed_without_the_collector(server, monkeypatch, leaves):
    """Its request has a prompt, which may be large, and the collector looks rarely."""
    made, begin = WeakSet(), Stream.__init__

    def noted(self, *arguments, **options):
        made.add(self)
        begin(self, *arguments, **options)

    monkeypatch.setattr(Stream, "__init__", noted)
    gc.disable()
    try:
        for _ in range(20):
            if leaves:
                connection = server.send(SLOW)
                assert b"200 OK" in connection.recv(1000)
                server.leave(connection, reset=False)
            else:
                server.generate(prompt="a", max_tokens=3, stream=True)
        assert eventually(server.idle)
        freed = eventually(lambda: len(made) <= 1, 2)
    finally:
        gc.enable()
    assert freed


def test_malformed_requests_are_counted_in_the_log_and_not_listed(caplog):
    with caplog.at_level(logging.WARNING), running() as server:
        for _ in range(30):
            assert statuses(sent(server, b"nonsense\r\n\r\n")) == [400]
    assert len([record for record in caplog.records if "refused bytes" in record.getMessage()]) <= 2


def test_a_sparing_log_counts_what_it_leaves_out(caplog):
    times = iter((100.0, 101.0, 109.0, 110.0, 111.0))
    log = Sparing(logging.getLogger("sparing"), 10.0, lambda: next(times))
    for _ in range(5):
        log.warning("said")
    assert [record.getMessage() for record in caplog.records] == ["said", "said (and 2 more before it)"]
