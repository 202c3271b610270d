"""Clients that only count: they miss no event and no token, however a stream is cut, and accept no short one."""

import asyncio
import json

import pytest

from gradus.load.answer import Answer
from gradus.load.asking.routes import CHAT, COMPLETIONS, GENERATE, ROUTES, Writing, route_at
from gradus.load.asking.wire import Connection
from gradus.load.jobs.job import Job
from tests.load.server import HEAD, answer, chunk, ending, refusal, token


class Wire(asyncio.Transport):
    """The other end of a connection: keeps what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.aborted = False

    def write(self, data) -> None:
        self.sent.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True


def read(pieces: list[bytes], *, tokens: int, exact: bool = True, path: str = COMPLETIONS, requests: int = 1):
    """Feed bytes to a connection. Returns the answers, the connection and its other end."""

    async def feed() -> tuple[list[Answer], Connection, Wire]:
        connection, wire, answers = Connection(ROUTES[path], exact), Wire(), []
        connection.connection_made(wire)
        left = list(pieces)
        for number in range(requests):
            answers.append(Answer(number, 0.0))
            asking = asyncio.create_task(connection.ask(b"request", tokens, answers[-1], 60.0))
            await asyncio.sleep(0)
            while left and not asking.done():
                connection.data_received(left.pop(0))
                await asyncio.sleep(0)
            if not asking.done() and not answers[-1].last:
                connection.connection_lost(None)
            await asking
        return answers, connection, wire

    return asyncio.run(feed())


def test_no_event_is_missed_however_the_stream_is_cut():
    whole = answer(5)
    for cut in range(1, len(whole)):
        ((found,), *_) = read([whole[:cut], whole[cut:]], tokens=5)
        assert (found.events, found.tokens, found.prompt_tokens, found.error) == (5, 5, 3, "")
    ((found,), *_) = read([whole[at : at + 1] for at in range(len(whole))], tokens=5)
    assert found.events == 5 and len(found.gaps) == 4 and not found.error


def test_chunks_may_end_anywhere_in_an_event_as_behind_a_proxy():
    events = b"".join(
        b"data: " + json.dumps({"choices": [{"text": f"t{n}"}]}, separators=(",", ":")).encode() + b"\n\n"
        for n in range(4)
    )
    events += b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\ndata: [DONE]\n\n'
    for size in (1, 2, 3, 7, 50):
        chunks = b"".join(chunk(events[at : at + size]) for at in range(0, len(events), size))
        ((found,), *_) = read([HEAD + chunks + b"0\r\nTrailer: x\r\n\r\n"], tokens=4)
        assert (found.events, found.tokens, found.prompt_tokens, found.error) == (4, 4, 9, "")


def test_the_first_token_is_timed_when_its_event_comes_and_not_with_the_head():
    ((found,), *_) = read([HEAD, token(0)[:20], token(0)[20:], token(1) + ending(2)], tokens=2)
    assert 0 < found.first <= found.last and found.events == 2


def test_a_connection_is_used_again_after_an_answer_and_not_after_one_that_closes():
    answers, connection, wire = read([answer(2), answer(2)], tokens=2, requests=2)
    assert [one.events for one in answers] == [2, 2] and len(wire.sent) == 2 and connection.open
    closing = answer(2).replace(b"Transfer", b"Connection: close\r\nTransfer")
    _, connection, wire = read([closing], tokens=2)
    assert not connection.open and wire.aborted


@pytest.mark.parametrize(
    ("wire", "error", "detail"),
    [
        (refusal(503, "full", "Retry-After: 7"), "503", "full"),
        (refusal(429, "slow \\u0061"), "429", "slow"),
        (refusal(400, "wrong"), "400", "wrong"),
        (b"HTTP/1.1 502 Bad\r\n\r\nno gateway", "502", "no gateway"),
        (answer(4, reported=3), "short", "4 tokens were asked for, and 3 came"),
        (answer(4)[:-9], "connection", "the connection was lost"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "connection", "no HTTP response"),
        (HEAD + b"zz\r\n", "connection", "no size of a chunk"),
        (HEAD + token(0) + chunk({"error": {"message": "ran out"}}) + b"0\r\n\r\n", "stream", "ran out"),
        (HEAD + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n", "stream", "no event with a token"),
        (HEAD[:-4] + b"x" * 70_000, "connection", "no end of its head"),
    ],
)
def test_refusals_short_answers_and_cut_ones_are_errors_by_kind(wire, error, detail):
    ((found,), *_) = read([wire], tokens=4)
    assert found.error == error and detail in found.detail
    assert found.again == (7.0 if b"Retry-After" in wire else 0.0)


def test_an_answer_that_may_end_early_may_be_short():
    ((found,), *_) = read([answer(4, reported=3)], tokens=9, exact=False)
    assert not found.error and found.tokens == 3


def test_without_a_usage_events_are_tokens():
    ((found,), *_) = read([HEAD + token(0) + token(1) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"], tokens=2)
    assert not found.error and found.tokens == 2


def test_a_text_that_looks_like_an_event_is_none():
    """Quotes in a JSON text are escaped."""
    tricky = {"choices": [{"index": 0, "text": 'data: {"choices":[{"text":"x"}],"token_ids":[1],"content":"y"}\n\n'}]}
    ((found,), *_) = read([HEAD + chunk(tricky) + ending(1)], tokens=1)
    assert found.events == 1 and not found.error


def test_a_chats_first_and_last_events_hold_no_token():
    deltas = [{"role": "assistant", "content": ""}, {"content": "Hi"}, {"reasoning_content": "so"}, {}]
    events = [chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas]
    ((found,), *_) = read([HEAD + b"".join(events) + ending(2)], tokens=2, path=CHAT)
    assert found.events == 2 and not found.error


def test_our_own_routes_events_are_counted():
    events = [chunk({"index": 0, "text": "a", "token_ids": [1]}), chunk({"index": 0, "text": "b", "token_ids": [2, 3]})]
    last = chunk({"index": 0, "text": "", "token_ids": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}})
    ((found,), *_) = read([HEAD + b"".join(events) + last + b"0\r\n\r\n"], tokens=3, path=GENERATE)
    assert (found.events, found.tokens, found.error) == (2, 3, "")


def test_a_request_asks_for_the_usage_where_it_does_not_come_by_itself():
    job = Job(0.0, (1, 2), 7)
    asked = {"max_tokens": 7, "temperature": 0.5, "stream": True, "ignore_eos": True}
    more = {"model": "m", "stream_options": {"include_usage": True}}
    for path, others in (
        (GENERATE, {"prompt": [1, 2]}),
        (COMPLETIONS, more | {"prompt": [1, 2]}),
        ("/proxy" + CHAT, more | {"messages": [{"role": "user", "content": "of and"}]}),
    ):
        head, _, body = Writing(path, "m", 0.5).request(job).partition(b"\r\n\r\n")
        assert head.startswith(f"POST {path} HTTP/1.1".encode()) and f"Content-Length: {len(body)}".encode() in head
        assert json.loads(body) == asked | others
    assert json.loads(Writing(GENERATE, text=True).request(job).partition(b"\r\n\r\n")[2])["prompt"] == "of and"
    assert "ignore_eos" not in Writing(GENERATE, exact=False).body(job)


def test_an_unknown_route_is_refused():
    from gradus.errors import ConfigError

    with pytest.raises(ConfigError, match="--endpoint must be"):
        route_at("/v1/embeddings")
