"""Clients that only count: they must miss no event and no token, however a stream is cut, and accept no short one."""

import asyncio
import json

import pytest

from benchmarks.event_client import COMPLETIONS, GENERATE, Answer, Connection, request


def chunk(content) -> bytes:
    event = content if isinstance(content, bytes) else b"data: " + json.dumps(content).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def answer(tokens: int, reported: int | None = None) -> bytes:
    """A stream of /v1/completions as vLLM writes it: an event a token, the usage, the end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    events = [chunk({"id": "cmpl-1", "choices": [{"index": 0, "text": f"t{n}"}]}) for n in range(tokens)]
    usage = {"prompt_tokens": 3, "completion_tokens": tokens if reported is None else reported}
    events += [chunk({"id": "cmpl-1", "choices": [], "usage": usage}), chunk(b"data: [DONE]\n\n")]
    return head + b"".join(events) + b"0\r\n\r\n"


class Wire(asyncio.Transport):
    """The other end of a connection: keeps what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        pass


def read(pieces: list[bytes], *, tokens: int, requests: int = 1) -> list[Answer]:
    async def feed() -> list[Answer]:
        done = asyncio.get_running_loop().create_future()
        connection = Connection([b"request"] * requests, tokens, 1, done)
        wire = Wire()
        connection.connection_made(wire)
        for piece in pieces:
            connection.data_received(piece)
        connection.connection_lost(None)
        assert len(wire.sent) == requests
        return await done

    return asyncio.run(feed())


def test_no_event_is_missed_however_the_stream_is_cut():
    whole = answer(5)
    for cut in range(1, len(whole)):
        (found,) = read([whole[:cut], whole[cut:]], tokens=5)
        assert found.events == 5 and found.sent <= found.first <= found.last
    (found,) = read([whole[at : at + 1] for at in range(len(whole))], tokens=5)
    assert found.events == 5


def test_the_first_token_is_timed_when_its_event_comes_and_not_with_the_head():
    head, _, rest = answer(3).partition(b"\r\n\r\n")
    (found,) = read([head + b"\r\n\r\n", rest[:20], rest[20:]], tokens=3)
    assert found.sent < found.first <= found.last


def test_the_next_request_goes_out_when_an_answer_is_complete():
    first, second = read([answer(2), answer(2)], tokens=2, requests=2)
    assert first.last <= second.sent and (first.events, second.events) == (2, 2)


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nfull", "refused.*full"),
        (answer(4, reported=3), "4 tokens were asked for"),
        (answer(4)[:-9], "connection was lost"),
    ],
)
def test_a_refusal_a_short_answer_and_a_cut_one_are_errors(wire, why):
    with pytest.raises(RuntimeError, match=why):
        read([wire], tokens=4)


def test_a_request_asks_for_the_usage_where_it_does_not_come_by_itself():
    for path, more in ((COMPLETIONS, {"model": "m", "stream_options": {"include_usage": True}}), (GENERATE, {})):
        head, _, body = request(path, "m", [1, 2], 7, 0.5).partition(b"\r\n\r\n")
        assert head.startswith(f"POST {path} HTTP/1.1".encode()) and f"Content-Length: {len(body)}".encode() in head
        asked = {"prompt": [1, 2], "max_tokens": 7, "temperature": 0.5, "ignore_eos": True, "stream": True}
        assert json.loads(body) == asked | more
