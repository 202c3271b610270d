"""Results on their way to a client that reads at its own pace."""

import asyncio
import json
import socket
from functools import partial

import pytest

from gradus.engine.logprobs import NO_LOGPROBS, PAIR, Logprobs
from gradus.server.api.frames import event
from gradus.server.api.generate import GenerateEncoder, frame, plain_event
from gradus.server.failures import ClientGone
from gradus.server.measures import Counts
from gradus.server.results import Stream, merged
from gradus.text.completion import Delta
from tests.server.conftest import eventually
from tests.server.scripted import ScriptedCore


def delta(text, *tokens, index=0, logprobs=NO_LOGPROBS, completion=None):
    return Delta("gen-1", 0, index, text, tokens, logprobs, completion)


def stream(samples=1):
    return Stream(["gen-1"], [1], samples, lambda stream, error: None, Counts())


def test_the_pieces_of_each_sample_become_one():
    told = [Logprobs((PAIR.pack(token, -1.0),)) for token in range(4)]
    pieces = [
        delta("a", 1, logprobs=told[0]),
        delta("x", 7, index=1),
        delta("b", 2, 3, logprobs=Logprobs((*told[1].packed, *told[2].packed))),
        delta("", 4, logprobs=told[3], completion="the end"),
    ]
    assert merged(pieces) == [
        delta("ab", 1, 2, 3, 4, logprobs=Logprobs(tuple(each.packed[0] for each in told)), completion="the end"),
        delta("x", 7, index=1),
    ]


def test_a_reader_that_lags_gets_everything_in_fewer_pieces_and_that_is_counted():
    async def read():
        slow = stream()
        for token in range(5):
            slow.push(delta(str(token), token))
            slow.deliver()
        assert slow.buffered == 5
        assert await slow.receive() == [delta("01234", 0, 1, 2, 3, 4)]
        assert slow.buffered == 0 and slow._counts.merged == 4

    asyncio.run(read())


def test_a_sink_is_offered_everything_in_order_except_the_end():
    async def read():
        taken, room = [], True
        one = stream()
        one.sink = lambda deltas: room and (taken.extend(deltas) or True)
        one.push(delta("a", 1))
        one.deliver()
        room = False
        one.push(delta("b", 2))
        one.deliver()
        room = True
        one.push(delta("c", 3))
        one.deliver()
        one.push(delta("d", 4, completion="the end"))
        one.deliver()
        assert [each.text for each in taken] == ["a", "b", "c"] and one.buffered == 1
        assert [each.text for each in await one.receive()] == ["d"] and one.done

    asyncio.run(read())


def test_what_several_reports_brought_is_offered_as_it_came_and_the_end_alone_waits():
    async def read():
        taken, one = [], stream(samples=2)
        one.sink = lambda deltas: taken.append([each.text for each in deltas]) or True
        for each in (delta("a", 1), delta("x", 7, index=1), delta("b", 2, completion="the end")):
            one.push(each)
        one.deliver()
        for each in (delta("y", 8, index=1), delta("z", 9, index=1), delta("", index=1, completion="the end")):
            one.push(each)
        one.deliver()
        assert taken == [["a", "x", "b"], ["y", "z"]] and one.buffered == 0
        assert [each.text for each in await one.receive()] == [""] and one.done

    asyncio.run(read())


def test_who_wants_whole_answers_is_woken_by_endings_alone():
    async def read():
        one = stream(samples=2)
        waiting = asyncio.create_task(one.completions())
        await asyncio.sleep(0)
        one.push(delta("a", 1))
        one.deliver()
        assert one.buffered == 0 and not one._news.is_set()
        for index in (1, 0):
            one.push(Delta("gen-1", 0, index, "b", (2,), NO_LOGPROBS, f"the end of {index}"))
            one.deliver()
        assert await waiting == ["the end of 0", "the end of 1"]

    asyncio.run(read())


def test_an_error_comes_instead_of_what_was_not_read():
    async def read():
        one = stream()
        one.push(delta("a", 1))
        one.fail(ClientGone("gone"))
        with pytest.raises(ClientGone):
            await one.receive()

    asyncio.run(read())


@pytest.mark.parametrize(
    "text", ["", " a", 'say "no"\\', "\n\r\t\x00\x1f\x7f", "ü→🙂", "\u0085\u2028\u2029", "</script>"]
)
@pytest.mark.parametrize("tokens", [(), (5,), (5, 6, 7)])
def test_a_prepared_frame_is_the_frame_of_the_general_way(text, tokens):
    one = delta(text, *tokens, index=3)
    assert plain_event(one) == event(frame(one, wants_logprobs=False))


def test_a_client_that_pauses_gets_every_token_once_and_in_order(serving):
    """64 KiB a token: the connection is full after some; what comes then waits, and is merged."""
    server = serving(partial(ScriptedCore, step_s=0.001, piece="x" * 65536 + " "), write_timeout=20)
    connection = server.connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    body = b'{"prompt": "a", "max_tokens": 300, "stream": true}'
    connection.sendall(
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    assert eventually(lambda: server.stats()["generated_tokens"] == 300)
    frames = frames_of(unchunked(connection))
    connection.close()
    assert [token for each in frames for token in each["token_ids"]] == list(range(300))
    assert "".join(each["text"] for each in frames).split() == [f"{token}" + "x" * 65536 for token in range(300)]
    assert len(frames) < 300 and server.stats()["merged"] == 300 - len(frames)


def unchunked(connection):
    """Read a chunked body to its end, by the letter of HTTP/1.1."""
    with connection.makefile("rb") as file:
        while file.readline() != b"\r\n":  # the headers
            pass
        body = b""
        while size := int(file.readline(), 16):
            body += file.read(size)
            assert file.readline() == b"\r\n"
        return body


def frames_of(body):
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line.startswith(b"data: ")]
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


def test_a_client_of_http_1_0_gets_its_stream_without_chunks(serving):
    server = serving()
    with server.connect() as connection:
        body = b'{"prompt": "a", "max_tokens": 20, "stream": true}'
        connection.sendall(
            b"POST /generate HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        received = b""
        while more := connection.recv(1 << 16):
            received += more
    frames = frames_of(received.split(b"\r\n\r\n", 1)[1])
    assert [token for each in frames for token in each["token_ids"]] == list(range(20))


def test_an_encoder_that_breaks_ends_its_own_answer_alone(serving, monkeypatch, caplog):
    frames = GenerateEncoder.frames

    def broken(self, deltas):
        if self._params.seed == 13 and any(3 in each.token_ids for each in deltas):
            raise ZeroDivisionError("secret detail")
        return frames(self, deltas)

    monkeypatch.setattr(GenerateEncoder, "frames", broken)
    monkeypatch.setattr(GenerateEncoder, "template", lambda self, delta: None)  # so that `frames` sees every delta
    server = serving(partial(ScriptedCore, step_s=0.01))
    neighbor = server.send(b'{"prompt": "a", "max_tokens": 30, "stream": true}')
    answer = server.generate(prompt="a", max_tokens=30, stream=True, seed=13)
    assert '"type":"internal_error"' in answer.text and "secret detail" not in answer.text
    assert "secret detail" in caplog.text
    frames_read = frames_of(unchunked(neighbor))
    assert [token for each in frames_read for token in each["token_ids"]] == list(range(30))
    assert eventually(server.idle)
