"""Every field of a request through the front of two replicas with other settings: either answers as the reference."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import fields
from itertools import cycle

from gradus import LLM
from gradus.deploy.front import Admitted, Front
from gradus.engine.structured import Structured
from gradus.server.config import ServerConfig
from tests.capabilities.answers import reference
from tests.capabilities.table import LAZY, MANY, Asked, asked, settings_of
from tests.server.conftest import running

REPLICAS = [("speculate", "token_budget", "page_size"), ("prefix_cache", "cache_tokens", "policy")]


def body_of(request: Asked) -> dict:
    """Write a request as JSON, without what has its default value."""
    prompt, *parts = request
    body = {"prompt": prompt}
    for part in parts:
        for each in fields(part):
            value = getattr(part, each.name)
            if value != (each.default_factory() if callable(each.default_factory) else each.default):
                body[each.name] = {value.kind: value.text} if isinstance(value, Structured) else value
    return body


@asynccontextmanager
async def front_of(ports):
    """A front that asks the replicas in turns. Yields its port."""
    turns = cycle(ports)

    async def admit(hashes):
        yield Admitted("127.0.0.1", next(turns), "ticket")

    front, listening = Front(ServerConfig(), b"secret", admit), socket.create_server(("127.0.0.1", 0))
    await front.start(listening)
    try:
        yield listening.getsockname()[1]
    finally:
        await front.close(0.0)


async def answer_to(port: int, body: dict) -> dict:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
    status, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert status.startswith(b"HTTP/1.1 200"), (body, answer)
    return json.loads(answer)


async def answers_through_a_front(ports, bodies):
    async with front_of(ports) as port, asyncio.timeout(100):
        return await asyncio.gather(*[answer_to(port, body) for body in bodies])


def test_any_field_gives_the_same_answer_from_any_replica():
    many = zip(asked()[: len(MANY)], reference(numbers=MANY), strict=True)
    pairs = [pair for pair in many if pair[0][1].structured != LAZY]  # which no client can ask for
    requests, right = [request for request, _ in pairs], [answer for _, answer in pairs]
    loads = [lambda names=names: LLM(**settings_of(*names)) for names in REPLICAS]
    with running(loads[0]) as one, running(loads[1]) as other:
        found = asyncio.run(answers_through_a_front([one.port, other.port], map(body_of, requests)))
        assert min(server.stats()["completed"] for server in (one, other)) > len(requests) / 3
    for answer, wanted, request in zip(found, right, requests, strict=True):
        samples = answer.get("choices", [answer])
        assert [tuple(each["token_ids"]) for each in samples] == [each["tokens"] for each in wanted], request
        assert [each["text"] for each in samples] == [each["text"] for each in wanted], request
