"""A request through an application, as messages: in order, as they are made, and ended with the client."""

import asyncio
from contextlib import aclosing

import pytest

from gradus.deploy.ingress import Forwarded, joined
from gradus.deploy.relay import relayed
from gradus.server.results import Unavailable

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def piece(text, more=True):
    return {"type": "http.response.body", "body": text, "more_body": more}


def test_messages_leave_as_they_are_made_and_waiting_ones_together():
    async def run():
        turn = asyncio.Event()

        async def app(scope, receive, send):
            assert await receive() == {"type": "http.request", "body": b"question", "more_body": False}
            await send(START)
            await turn.wait()
            await send(piece(b"a"))
            await send(piece(b"b", more=False))

        batches = relayed(app, {"type": "http"}, b"question")
        assert await anext(batches) == [START]
        turn.set()
        assert [batch async for batch in batches] == [[piece(b"a"), piece(b"b", more=False)]]

    asyncio.run(run())


def test_an_application_learns_that_its_client_has_left():
    async def run():
        heard = []

        async def app(scope, receive, send):
            await receive()
            await send(START)
            heard.append(await receive())

        async with aclosing(relayed(app, {"type": "http"}, b"")) as batches:
            await anext(batches)
        assert heard == [{"type": "http.disconnect"}]

    asyncio.run(run())


def test_an_exception_of_the_application_is_raised_after_what_it_has_sent():
    async def run():
        async def app(scope, receive, send):
            await send(START)
            raise ValueError("a bug")

        seen = []
        with pytest.raises(ValueError, match="a bug"):
            async for batch in relayed(app, {"type": "http"}, b""):
                seen.extend(batch)
        assert seen == [START]

    asyncio.run(run())


def test_pieces_that_follow_one_another_are_joined():
    assert joined([START, piece(b"a"), piece(b"b"), piece(b"c", more=False)]) == [START, piece(b"abc", more=False)]


async def forward(batches, error, path="/generate"):
    async def messages():
        for batch in batches:
            yield batch
        if error is not None:
            raise error

    sent = []

    async def send(message):
        sent.append(message)

    await Forwarded(path, messages())({"type": "http"}, None, send)
    return sent


def test_a_replica_lost_before_its_answer_gives_a_503():
    start, body = asyncio.run(forward([], ConnectionError()))
    assert start["status"] == 503 and b"replica_lost" in body["body"]


def test_a_replica_lost_within_a_stream_gives_an_error_as_the_last_event():
    *_, last = asyncio.run(forward([[START], [piece(b"data: 1\n\n")]], ConnectionError()))
    assert last["body"].startswith(b"event: error\ndata: {") and not last["more_body"]


def test_full_replicas_give_their_reason():
    start, body = asyncio.run(forward([], Unavailable("all replicas are full", "overloaded", 1)))
    assert start["status"] == 503 and b"overloaded" in body["body"]


def test_an_answer_that_is_whole_gets_nothing_after_it():
    assert len(asyncio.run(forward([[START, piece(b"x", more=False)]], ConnectionError()))) == 2


def test_a_whole_answer_that_breaks_off_is_cut():
    plain = START | {"headers": [(b"content-type", b"application/json")]}
    with pytest.raises(ConnectionError):
        asyncio.run(forward([[plain, piece(b"{")]], ConnectionError()))
