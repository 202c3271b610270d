"""The front passes bytes on between a client and a scripted replica, whatever happens to either."""

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gradus.deploy import front
from gradus.deploy.answer import BrokenAnswer, Chunks, Head
from gradus.deploy.front import Admitted, Front
from gradus.server.config import ServerConfig
from gradus.server.failures import Unavailable
from gradus.server.http.keys import Key, digest_of, new_key, write_keys

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
PASSED = HEAD.replace(b"connection: close\r\n", b"")
EVENTS = b"9\r\ndata: 1\n\n\r\n" + b"a;x=y\r\ndata: 22\n\n\r\n"
LAST = b"0\r\n\r\n"
QUESTION = b"POST /generate?a=b HTTP/1.1\r\nHost: here\r\nX-Mine: yes\r\nContent-Length: 2\r\n\r\n{}"


class Scene:
    """A front, and one replica. script: answers a request, by its connection's writer."""

    def __init__(self, script, **settings):
        self.script, self.requests, self.admissions = script, [], []
        self.full = None
        self.front = Front(ServerConfig(**settings), b"secret", self.admit)

    async def admit(self, hashes):
        if self.full is not None:
            raise self.full
        number = len(self.admissions)
        self.admissions.append("given")
        try:
            yield Admitted("127.0.0.1", self.replica.sockets[0].getsockname()[1], f"ticket{number}")
            self.admissions[number] = "used"
        finally:
            if self.admissions[number] == "given":
                self.admissions[number] = "given up"

    async def answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: ")), 0)
        self.requests.append(head + await reader.readexactly(length))
        await self.script(writer, reader)
        writer.close()

    async def client(self):
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def asked(self, request=QUESTION):
        """Send a request, and read until the connection is closed."""
        reader, writer = await self.client()
        writer.write(request)
        try:
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def staged(script, **settings):
    scene = Scene(script, **settings)
    scene.replica = await asyncio.start_server(scene.answer, "127.0.0.1", 0)
    listening = socket.create_server(("127.0.0.1", 0))
    scene.port = listening.getsockname()[1]
    await scene.front.start(listening)
    try:
        async with asyncio.timeout(20):
            yield scene
    finally:
        await scene.front.close(0.0)
        scene.replica.close()


def says(*pieces):
    async def script(writer, reader):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return script


def run(story, *given, **settings):
    async def told():
        async with staged(*given, **settings) as scene:
            await story(scene)

    asyncio.run(told())


WHOLE = HEAD + EVENTS + LAST


@pytest.mark.parametrize("cut", [1, 17, len(HEAD) - 2, len(HEAD), len(HEAD) + 1, len(HEAD) + 7, len(WHOLE) - 3])
def test_an_answer_passes_as_it_is_however_it_is_cut_and_the_connection_serves_again(cut):
    async def story(scene):
        reader, writer = await scene.client()
        for _ in range(2):
            writer.write(QUESTION)
            assert await reader.readexactly(len(PASSED + EVENTS + LAST)) == PASSED + EVENTS + LAST
        assert scene.admissions[0] == "used"
        writer.close()

    run(story, says(WHOLE[:cut], WHOLE[cut:]))


def test_requests_that_are_sent_together_are_answered_in_order():
    async def story(scene):
        asked = [QUESTION.replace(b"a=b", b"a=%d" % number) for number in range(3)]
        last = asked[-1].replace(b"X-Mine: yes", b"Connection: close")
        answers = await scene.asked(b"".join([*asked[:-1], last]))
        assert answers.count(EVENTS + LAST) == 3
        assert [request.split(b" ")[1] for request in scene.requests] == [b"/generate?a=%d" % n for n in range(3)]

    run(story, says(WHOLE))


def test_a_request_keeps_its_headers_and_gets_a_ticket_and_a_length():
    chunked = b"POST /generate HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"

    async def story(scene):
        answer = await scene.asked(chunked + b"X-Gradus-Ticket: forged\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
        assert answer == HEAD + EVENTS + LAST, "the client is told that its connection ends"
        head, _, body = scene.requests[0].partition(b"\r\n\r\n")
        assert body == b"{}"
        line, *headers = head.split(b"\r\n")
        assert line == b"POST /generate HTTP/1.1"
        assert {*headers} == {b"host: here", b"connection: close", b"content-length: 2", b"x-gradus-ticket: ticket0"}
        assert len(headers) == 4

    run(story, says(WHOLE))


def test_a_replica_lost_before_its_answer_gives_a_503():
    async def story(scene):
        answer = await scene.asked()
        assert answer.startswith(b"HTTP/1.1 503 ") and b"replica_lost" in answer and b"connection: close" in answer

    run(story, says())


def test_a_replica_that_cannot_be_reached_gives_a_503_too():
    async def story(scene):
        scene.replica.close()
        await scene.replica.wait_closed()
        reader, writer = await scene.client()
        writer.write(QUESTION)
        assert b"replica_lost" in await reader.readuntil(b"}}")
        writer.close()
        await asyncio.sleep(0.05)
        assert scene.admissions == ["given up"]

    run(story, says())


def test_a_replica_lost_within_a_stream_gives_an_error_as_the_last_event():
    async def story(scene):
        answer = await scene.asked()
        assert answer.startswith(PASSED + EVENTS) and answer.endswith(b"\n\n\r\n" + LAST)
        last = answer.removeprefix(PASSED + EVENTS)
        size, _, event = last.partition(b"\r\n")
        assert event[: int(size, 16)].startswith(b"event: error\ndata: {") and b"replica_lost" in event

    run(story, says(HEAD + EVENTS))


@pytest.mark.parametrize(
    "sent", [HEAD + EVENTS[:-4], b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ncontent-type: application/json\r\n\r\n{"]
)
def test_an_answer_that_breaks_off_elsewhere_is_cut(sent):
    async def story(scene):
        with pytest.raises((ConnectionError, AssertionError)):
            assert (await scene.asked()).endswith(LAST)

    run(story, says(sent))


def test_full_replicas_give_their_reason_and_the_connection_stays():
    async def story(scene):
        scene.full = Unavailable("all replicas are full", "overloaded", 1)
        reader, writer = await scene.client()
        for _ in range(2):
            writer.write(QUESTION)
            assert b"overloaded" in await reader.readuntil(b"}}")
        writer.close()

    run(story, says())


def test_a_client_that_leaves_is_gone_for_the_replica_too():
    left = asyncio.Event()

    async def script(writer, reader):
        writer.write(HEAD + EVENTS)
        assert await reader.read() == b""
        left.set()

    async def story(scene):
        reader, writer = await scene.client()
        writer.write(QUESTION)
        await reader.readuntil(b"22\n\n")
        writer.close()
        await left.wait()
        while scene.admissions != ["given up"]:
            await asyncio.sleep(0.01)

    run(story, script)


def test_a_client_that_does_not_read_holds_the_replica_up():
    async def script(writer, reader):
        writer.write(HEAD)
        for sent in range(1, 1000):
            writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            try:
                await asyncio.wait_for(writer.drain(), 0.3)
            except TimeoutError:
                script.sent = sent
                return

    async def story(scene):
        _, writer = await scene.client()
        writer.write(QUESTION)
        while not hasattr(script, "sent"):
            await asyncio.sleep(0.05)
        writer.close()

    run(story, script)
    assert script.sent < 900, "64 MB went somewhere"


def test_a_body_of_a_sender_without_a_key_is_refused_unread(monkeypatch):
    monkeypatch.setenv("GRADUS_API_KEY", "the-key-of-this-test")

    async def story(scene):
        for body in (b"Length: 2000000", b"Length: 2", b"Type: a\r\nTransfer-Encoding: chunked"):
            answer = await scene.asked(QUESTION.replace(b"Length: 2", body))
            assert answer.startswith(b"HTTP/1.1 401 ") and b"an API key is needed" in answer
            assert b"connection: close" in answer
        assert not scene.admissions
        await scene.asked(QUESTION.replace(b"X-Mine: yes", b"Connection: close\r\nX-Api-Key: the-key-of-this-test"))
        assert scene.requests[0].endswith(b"\r\n\r\n{}")

    run(story, says(WHOLE))


@pytest.mark.parametrize("body", [b"", b"Content-Length: 0\r\n"])
def test_a_request_without_a_body_needs_no_key_here_because_its_path_may_be_public(monkeypatch, body):
    monkeypatch.setenv("GRADUS_API_KEY", "the-key-of-this-test")

    async def story(scene):
        await scene.asked(b"GET /health HTTP/1.1\r\nHost: here\r\n" + body + b"\r\n")
        assert scene.requests[0].startswith(b"GET /health ")

    run(story, says(WHOLE))


def test_keys_that_are_added_changed_or_removed_count_here_too(monkeypatch, tmp_path):
    monkeypatch.setattr("gradus.server.http.keys.REFRESH_S", 0.0)
    file, (first, later) = tmp_path / "keys.yaml", (new_key(), new_key())
    alice, bob = Key("alice", digest_of(first)), Key("bob", digest_of(later))
    write_keys(file, {"alice": alice})

    async def story(scene):
        async def passed(key):
            before = len(scene.requests)
            head = b"Connection: close\r\nX-Api-Key: " + key.encode()
            answer = await scene.asked(QUESTION.replace(b"X-Mine: yes", head))
            if len(scene.requests) == before:
                assert answer.startswith(b"HTTP/1.1 401 ") and b"this API key is not valid" in answer
                return False
            assert scene.requests[-1].endswith(b"\r\n\r\n{}")
            return True

        assert await passed(first) and not await passed(later)
        write_keys(file, {"alice": alice, "bob": bob})
        assert await passed(first) and await passed(later)
        write_keys(file, {"bob": replace(bob, role="monitor")})  # the replica decides about roles
        assert await passed(later) and not await passed(first)

    run(story, says(WHOLE), api_keys=str(file))


@pytest.mark.parametrize(
    ("request_", "status"),
    [(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n123456789", 413), (b"nonsense\r\n\r\n", 400)],
)
def test_what_no_replica_would_take_is_refused_here(request_, status):
    async def story(scene):
        answer = await scene.asked(request_)
        assert answer.startswith(b"HTTP/1.1 %d " % status) and not scene.admissions

    run(story, says(WHOLE), max_body_bytes=8)


def test_a_request_that_does_not_end_is_cut():
    async def story(scene):
        reader, writer = await scene.client()
        writer.write(QUESTION[:20])
        for byte in QUESTION[20:-1]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
            if reader.at_eof() or reader.exception():
                break
        with pytest.raises(ConnectionError):
            await writer.drain()
            await reader.read()
            raise ConnectionError

    run(story, says(WHOLE), receive_timeout=0.5)


def test_an_idle_connection_is_closed(monkeypatch):
    monkeypatch.setattr(front, "IDLE_S", 0.1)

    async def story(scene):
        reader, _ = await scene.client()
        with pytest.raises(ConnectionError):
            await reader.read()
            raise ConnectionError

    run(story, says(WHOLE))


def test_an_answer_without_a_length_ends_with_the_connection():
    plain = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"

    async def story(scene):
        answer = await scene.asked(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert answer == plain.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"all of it"
        assert scene.requests[0].startswith(b"GET /metrics HTTP/1.0\r\n")

    run(story, says(plain + b"all", b" of it"))


def test_the_end_waits_for_answers_under_way_and_for_nothing_else():
    go = asyncio.Event()

    async def script(writer, reader):
        writer.write(HEAD)
        await go.wait()
        writer.write(EVENTS + LAST)

    async def story(scene):
        idle, _ = await scene.client()
        reader, writer = await scene.client()
        writer.write(QUESTION)
        await reader.readexactly(len(PASSED))
        closing = asyncio.create_task(scene.front.close(10.0))
        assert await idle.read() == b""
        with pytest.raises(ConnectionError):
            await scene.client()
        go.set()
        assert await reader.read() == EVENTS + LAST
        await asyncio.wait_for(closing, 1.0)

    run(story, script)


def test_a_request_that_has_begun_to_come_is_answered_at_the_end_too():
    async def story(scene):
        reader, writer = await scene.client()
        writer.write(QUESTION[:30])
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(scene.front.close(10.0))
        await asyncio.sleep(0.05)
        writer.write(QUESTION[30:])
        assert await reader.read() == HEAD + EVENTS + LAST
        await asyncio.wait_for(closing, 1.0)

    run(story, says(WHOLE))


def test_chunks_are_followed_byte_by_byte():
    body, chunks = EVENTS + LAST, Chunks()
    edges = [0, 14, len(EVENTS)]
    for at, byte in enumerate(body):
        assert chunks.at_boundary == (at in edges) and not chunks.ended
        chunks.feed(bytes([byte]))
    assert chunks.ended


@pytest.mark.parametrize("body", [b"xyz\r\n", b"1" * 100])
def test_what_are_no_chunks_is_noticed(body):
    with pytest.raises(BrokenAnswer):
        Chunks().feed(body)


def test_what_is_no_answer_is_noticed():
    with pytest.raises(BrokenAnswer, match="nonsense"):
        Head(b"nonsense")
