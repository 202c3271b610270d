"""A server whose every delay is known: an asyncio server that reads requests, and answers as a function says."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gradus.load.asking.target import Target

Write = Callable[[bytes], Awaitable[None]]
Says = Callable[[dict[str, Any], int, Write], Awaitable[None]]
"""(the request's body, its number, how to write) → what the server does; a ConnectionError closes the connection."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Scripted:
    """what it was asked: bodies and heads in the order in which they came. most: requests under way at one time."""

    says: Says
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    now: int = 0
    most: int = 0
    target: Target | None = None

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            async for head, body in requests(reader):
                number = len(self.bodies)
                self.heads.append(head)
                self.bodies.append(body)
                self.now += 1
                self.most = max(self.most, self.now)
                try:
                    await self.says(body, number, write)
                finally:
                    self.now -= 1
        with contextlib.suppress(ConnectionError):
            writer.close()


async def requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        yield head, json.loads(await reader.readexactly(int(fields["content-length"])))


@contextlib.contextmanager
def scripted(says: Says) -> Iterator[Scripted]:
    """Run a server in a thread within the block."""
    server, loop, ready = Scripted(says), asyncio.new_event_loop(), threading.Event()

    kept: list[asyncio.Server] = []

    async def serve() -> None:
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        kept.append(listening)
        server.target = Target("127.0.0.1", listening.sockets[0].getsockname()[1])
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.create_task(serve())
        loop.run_forever()
        kept[0].close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def chunk(content: Any) -> bytes:
    event = content if isinstance(content, bytes) else b"data: " + json.dumps(content).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def token(number: int) -> bytes:
    """An event of /v1/completions with one token."""
    return chunk({"id": "cmpl-1", "choices": [{"index": 0, "text": f"t{number}"}]})


def ending(tokens: int, prompt: int = 3) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
    return chunk({"id": "cmpl-1", "choices": [], "usage": usage}) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def answer(tokens: int, reported: int | None = None) -> bytes:
    """A whole stream of /v1/completions as vLLM writes it: an event a token, the usage, the end."""
    return HEAD + b"".join(map(token, range(tokens))) + ending(tokens if reported is None else reported)


def refusal(status: int, message: str, *headers: str) -> bytes:
    body = json.dumps({"error": {"message": message}}).encode()
    lines = [f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def paced(first: float, gap: float) -> Says:
    """Answer whatever is asked: the first token after `first` seconds, the others every `gap`."""

    async def says(body: dict[str, Any], number: int, write: Write) -> None:
        await asyncio.sleep(first)
        await write(HEAD + token(0))
        for each in range(1, body["max_tokens"]):
            await asyncio.sleep(gap)
            await write(token(each))
        await write(ending(body["max_tokens"]))

    return says
