"""p13: answers over HTTP, written as they are made; a bound on what is inside; clients that leave.

The program steps by itself, one step every PACE_MS at the most, so that "while it runs" means the same on any machine.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any

from gradus.course.foreign.drive import Bench, agreeing, require
from gradus.course.foreign.oracle import Oracle, Question, oracle_of
from gradus.course.foreign.program import Http, Program
from gradus.course.foreign.report import Garbage, shown

PACE_MS = 20
TOKENS = 16
ENDLESS = 400  # tokens of an answer that takes 8 s
TO_NOTICE_S = 3.0
"""Seconds in which a server must notice that a client has left: a request to it would take longer to end by itself."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream. at: seconds, when it was read."""

    at: float
    tokens: tuple[int, ...]
    finish_reason: str | None


@dataclass
class Served:
    """A program that serves. Raises Fault where it does not answer, and Garbage for what is not a stream."""

    program: Program
    http: Http
    oracle: Oracle

    @contextmanager
    def response(self, body: object, *, path: str = "/generate", method: str = "POST") -> Iterator[HTTPResponse]:
        try:
            with self.http.request(method, path, body, self.program.seconds) as response:
                yield response
        except (OSError, HTTPException) as error:
            what = f"{method} {path} had no whole answer: {type(error).__name__}: {error}"
            raise self.program.fault(what) from None

    def status(self, body: object) -> int:
        with self.response(body) as response:
            return response.status

    def stream(self, question: Question) -> list[Event]:
        """Ask, read the stream to its end, and judge the tokens."""
        with self.response(asking(question)) as response:
            require(response.status == 200, f"POST /generate is answered with {response.status}, not 200")
            found = list(events(response, self.program.seconds))
        require(bool(found), "the stream ended without an event")
        tokens = [token for event in found for token in event.tokens]
        self.judge(question, tokens, found[-1].finish_reason)
        return found

    def judge(self, question: Question, tokens: list[int], finish_reason: str | None) -> None:
        right = list(self.oracle.answer(question))
        what = f"the answer to a prompt of {len(question.prompt)} tokens"
        for place, (mine, wanted) in enumerate(zip(tokens, right, strict=False)):
            require(mine == wanted, f"{what}: token {place + 1} is {mine}, the oracle's is {wanted}; {agreeing(place)}")
        require(len(tokens) == len(right), f"{what} has {len(right)} tokens, yours {len(tokens)}")
        require(finish_reason == "length", f"{what} ends with finish_reason 'length', yours with {finish_reason!r}")


def asking(question: Question) -> dict[str, Any]:
    return {"prompt": list(question.prompt), "max_tokens": question.max_tokens, "stream": True}


def events(response: HTTPResponse, seconds: float) -> Iterator[Event]:
    """Read server-sent events up to `data: [DONE]`. Raises Garbage for a stream that ends without it, or late."""
    until = time.monotonic() + seconds
    for line in response:
        if time.monotonic() > until:
            raise Garbage(f"the stream had not ended after {seconds:g} s")
        text = line.decode(errors="replace").rstrip("\r\n")
        if not text or text.startswith(":"):
            continue
        if not text.startswith("data:"):
            raise Garbage(f"a stream's lines begin with 'data:', got {shown(text)}")
        content = text.removeprefix("data:").strip()
        if content == "[DONE]":
            return
        event = as_object(content.encode())
        ids = event.get("token_ids")
        if not isinstance(ids, list):
            raise Garbage(f"an event has token_ids, a list; got {shown(content)}")
        yield Event(time.monotonic(), tuple(ids), event.get("finish_reason"))
    raise Garbage("the stream ended without 'data: [DONE]'")


def as_object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Garbage(f"an answer must be a JSON object, got {shown(text.decode(errors='replace')) or 'nothing'}")
    return found


def served(bench: Bench, places: int = 4) -> Served:
    """Let the program serve. Raises Broken if the command named no port."""
    http = bench.program.http
    require(http is not None, "p13 is about HTTP: name {port} in the command, and listen there")
    assert http is not None
    settings = {"sequences": 3, "pages": 0, "page_size": 0, "sharing": False, "token_budget": 0, "drafts": 0}
    bench.configure(settings | {"places": places, "pace_ms": PACE_MS})
    return Served(bench.program, http, oracle_of(bench.models.meant()))


def answers_are_the_oracles(bench: Bench) -> None:
    server = served(bench)
    for length in (1, 12):
        server.stream(server.oracle.ask(length, 5))


def a_stream_has_each_token_when_it_is_made(bench: Bench) -> None:
    server = served(bench)
    found = server.stream(server.oracle.ask(6, TOKENS))
    took, least = 1000 * (found[-1].at - found[0].at), (TOKENS - 1) * PACE_MS // 2
    require(
        took >= least,
        f"{TOKENS} tokens are made in steps of {PACE_MS} ms or more, so the last comes {least} ms or more after the "
        f"first; yours came within {took:.0f} ms, as if the stream had waited for the whole answer",
    )


def streams_are_written_at_the_same_time(bench: Bench) -> None:
    server = served(bench)
    questions = [server.oracle.ask(length, TOKENS) for length in (4, 9, 15)]
    with ThreadPoolExecutor(len(questions)) as clients:
        found = list(clients.map(server.stream, questions))
    first_end, last_start = min(each[-1].at for each in found), max(each[0].at for each in found)
    require(
        last_start < first_end,
        "of three streams asked for at once, one began after another had ended; three sequences may run",
    )


def a_request_too_many_is_refused_with_503(bench: Bench) -> None:
    server = served(bench, places=2)
    with ExitStack() as inside:
        begin_endless(server, inside, 2)
        status = server.status(asking(Question((5,), 2)))
    require(status == 503, f"2 requests may be inside, and 2 are: a third is answered with 503, yours with {status}")


def a_client_that_leaves_makes_room(bench: Bench) -> None:
    server = served(bench, places=2)
    with ExitStack() as inside:
        begin_endless(server, inside, 1)
        with ExitStack() as leaving:
            begin_endless(server, leaving, 1)
        question, until = server.oracle.ask(5, 2), time.monotonic() + TO_NOTICE_S
        while (status := server.status(asking(question))) == 503 and time.monotonic() < until:
            time.sleep(PACE_MS / 1000)
    require(
        status == 200,
        f"one of 2 clients inside closed its connection, and {TO_NOTICE_S:g} s later another is still answered "
        f"with {status}",
    )


def begin_endless(server: Served, stack: ExitStack, count: int) -> None:
    """Begin long streams, and read one event of each; leaving the stack closes their connections."""
    for _ in range(count):
        response = stack.enter_context(server.response(asking(Question((5, 6, 7), ENDLESS))))
        require(response.status == 200, f"a stream with a place free is answered with {response.status}, not 200")
        next(events(response, server.program.seconds))


def a_request_that_cannot_be_served_is_refused_with_400(bench: Bench) -> None:
    server = served(bench)
    wrong: list[object] = [b"{not JSON", {"max_tokens": 2}, {"prompt": [], "max_tokens": 2}]
    wrong += [{"prompt": [1, 9999], "max_tokens": 2}, {"prompt": "text", "max_tokens": 2}]
    wrong += [{"prompt": [1], "max_tokens": 0}, {"prompt": [1], "max_tokens": 9999}]
    for body in wrong:
        status = server.status(body)
        said = body.decode() if isinstance(body, bytes) else json.dumps(body)
        require(status == 400, f"{said} is answered with 400, yours with {status}")
    server.stream(server.oracle.ask(3, 2))


def health_is_answered_while_a_stream_is_written(bench: Bench) -> None:
    server = served(bench)
    with ExitStack() as inside:
        begin_endless(server, inside, 1)
        with server.response(None, path="/health", method="GET") as response:
            require(response.status == 200, f"GET /health is answered with {response.status}, not 200")


P13 = (
    answers_are_the_oracles,
    a_stream_has_each_token_when_it_is_made,
    streams_are_written_at_the_same_time,
    a_request_too_many_is_refused_with_503,
    a_client_that_leaves_makes_room,
    a_request_that_cannot_be_served_is_refused_with_400,
    health_is_answered_while_a_stream_is_written,
)
