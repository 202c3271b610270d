"""HTTP/1.1 byte by byte: what other parsers have been fooled by, and what ordinary clients do."""

import contextlib
import socket
import time

import pytest

from tests.server.conftest import eventually, running

BODY = b'{"prompt": "a", "max_tokens": 3}'
STREAMED = b'{"prompt": "a", "max_tokens": 3, "stream": true}'


@pytest.fixture(scope="module")
def server():
    with running(receive_timeout=1) as server:
        yield server


def post(body=BODY, *headers, version="1.1", length=True):
    lines = [f"POST /generate HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers]
    lines += [f"Content-Length: {len(body)}"] if length else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def sent(server, raw, wait=5.0):
    """All that comes back until the server closes, or says nothing for `wait` seconds."""
    found = b""
    with server.connect() as connection:
        connection.settimeout(wait)
        try:
            connection.sendall(raw)
            while data := connection.recv(1 << 16):
                found += data
        except OSError:
            pass
    return found


def statuses(found):
    return [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    "raw",
    [
        post(BODY, "Transfer-Encoding: chunked"),
        post(BODY, "Content-Length: 5"),
        post(BODY, "Content-Length: +5", length=False),
        post(BODY, "Transfer-Encoding: chunked, identity", length=False),
        post(b"-1\r\n\r\n", "Transfer-Encoding: chunked", length=False),
        post(b"1_0\r\n\r\n", "Transfer-Encoding: chunked", length=False),
        post(b"fffffffffffffffff\r\n\r\n", "Transfer-Encoding: chunked", length=False),
        post(BODY, "X-A: one\r\n two"),
        post(BODY, "X-A : one"),
        post(BODY, "X-A: a\x00b"),
        post(BODY, "X A: one"),
        post(BODY, version="2.0"),
        post(BODY).replace(b"POST", b"P@ST"),
    ],
)
def test_ambiguous_requests_get_one_400_and_a_closed_connection(server, raw):
    smuggled = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert statuses(sent(server, raw + smuggled, wait=3)) == [400]


def test_requests_may_follow_each_other_without_waiting(server):
    last = post(BODY, "Connection: close")
    assert statuses(sent(server, post() + post(STREAMED) + last)) == [200, 200, 200]


def test_a_body_may_wait_for_100_continue(server):
    head, body = post(BODY, "Expect: 100-continue").split(b"\r\n\r\n")
    with server.connect() as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("wanted", ["h2c", "websocket"])
def test_an_upgrade_is_ignored(server, wanted):
    asking = post(BODY, "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {wanted}", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
    assert statuses(sent(server, asking + post(BODY, "Connection: close"))) == [200, 200]


@pytest.mark.parametrize("at", range(60, 200, 7))
def test_an_upgrade_is_ignored_wherever_its_request_is_cut_in_two(server, at):
    asking = post(BODY, "Connection: Upgrade", "Upgrade: h2c") + post(BODY, "Connection: close")
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(asking[:at])
        time.sleep(0.01)
        connection.sendall(asking[at:])
        found = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert statuses(found) == [200, 200]


def test_an_upgrade_with_a_chunked_body_is_ignored(server):
    chunked = post(b"", "Connection: Upgrade", "Upgrade: h2c", "Transfer-Encoding: chunked", length=False)
    chunked += b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert statuses(sent(server, post(STREAMED) + chunked + post(BODY, "Connection: close"))) == [200, 200, 200]


def test_a_stream_in_http_1_0_ends_with_the_connection(server):
    head, _, body = sent(server, post(STREAMED, version="1.0")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"chunked" not in head.lower()
    assert body.startswith(b"data: ") and body.endswith(b"\n\n")
    whole = sent(server, post(version="1.0"))
    assert statuses(whole) == [200] and b"content-length" in whole.lower()


@pytest.mark.parametrize("size", [40_000, 4_000_000])
def test_headers_that_do_not_end_are_cut_at_a_size(server, size):
    found = sent(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * size, wait=0.8)
    assert statuses(found) in ([400], [])  # a reset may overtake the answer
    assert server.health() == 200


UNFINISHED = b"", b"\r\n", b"GET /health HTT", post() + b"GET /hea"


def test_headers_that_do_not_end_are_cut_after_a_time(server):
    """Four connections at once: each is waited for, and the times run side by side."""
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(4)]
        for connection, first in zip(connections, UNFINISHED, strict=True):
            connection.settimeout(10)
            connection.sendall(first)
        for connection in connections:
            try:
                while connection.recv(1 << 16):
                    pass
            except ConnectionError:  # cut by a reset
                pass
    assert time.monotonic() - start < 8
    assert eventually(server.idle)


def test_a_chunked_body_that_breaks_while_its_answer_streams_ends_the_connection(server):
    with server.connect() as connection:
        connection.sendall(post(b"", "Transfer-Encoding: chunked", length=False))
        connection.sendall(b"%x\r\n%b\r\n" % (len(BODY), BODY) + b"zz\r\n")
        assert statuses(connection.recv(1 << 16)) == [400]
    assert eventually(server.idle)
