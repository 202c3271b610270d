"""One request through an ASGI application, as plain messages that another process can forward.

The body arrives whole; the answer leaves as it is made. Messages that wait together leave together: Ray's cost is per
item, and under load an item then has the tokens of several steps.
"""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

from starlette.types import ASGIApp

Message = MutableMapping[str, Any]

SCOPE_KEYS = (
    "type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers", "client",
    "server",
)  # fmt: skip
"""What a scope has as plain values; the rest belongs to one process's server."""

FAREWELL_S = 5.0  # for an application to end after its client has left


def plain_scope(scope: Message) -> dict[str, Any]:
    return {key: scope[key] for key in SCOPE_KEYS if key in scope}


async def relayed(app: ASGIApp, scope: dict[str, Any], body: bytes) -> AsyncGenerator[list[Message], None]:
    """Run the application on one request, and yield its messages in order, in lists.

    Closing the generator early tells the application that its client has left. Raises what the application raises.
    """
    left, told = asyncio.Event(), False
    waiting: list[Message] = []
    news = asyncio.Event()

    async def receive() -> Message:
        nonlocal told
        if not told:
            told = True
            return {"type": "http.request", "body": body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        waiting.append(message)
        news.set()

    async def run() -> None:
        await app(scope | {"state": {}, "extensions": {}}, receive, send)

    running = asyncio.create_task(run())
    running.add_done_callback(lambda _: news.set())
    try:
        while not running.done() or waiting:
            await news.wait()
            news.clear()
            if waiting:
                batch, waiting[:] = list(waiting), []
                yield batch
        await running
    finally:
        left.set()
        if not running.done():
            await asyncio.wait([running], timeout=FAREWELL_S)
            running.cancel()
