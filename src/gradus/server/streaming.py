"""Server-sent events: each result leaves as soon as it is there, and no client can hold up another.

Three ways for a client to be bad at reading, and what each costs us:
    it leaves           `http.disconnect` comes, and the engine request is cancelled before its next step;
    it vanishes         nothing comes; comments probe for it while there is nothing to send, and its timeout ends it;
    it stops reading    the kernel's buffers fill, then sending blocks: after write_timeout the connection is cut. The
                        results that gather meanwhile are bounded by max_buffered.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gradus.errors import GradusError
from gradus.server.config import ServerConfig
from gradus.server.results import ClientGone, Stream
from gradus.server.schemas import encode, error_of, frame, usage
from gradus.text.completion import Completion

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def cancelled_with_client(receive: Receive, stream: Stream) -> AsyncIterator[None]:
    """While the block runs, a client that leaves cancels the stream, and so does an exception out of the block."""
    watcher = asyncio.create_task(_cancel_on_disconnect(receive, stream))
    try:
        yield
    except BaseException:
        stream.cancel()
        raise
    finally:
        watcher.cancel()


async def _cancel_on_disconnect(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()


class EventStream(Response):
    """The answer to a streaming request. `stream` must have been accepted: from here on the status is 200."""

    media_type = "text/event-stream"

    def __init__(self, stream: Stream, model: str, config: ServerConfig) -> None:
        # without these two, proxies gather small pieces into large ones, and tokens arrive in bursts
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.stream = stream
        self.model = model
        self.config = config
        self._completions: list[Completion] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_with_client(receive, self.stream):
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await self._send_results(send)
                await self._write(send, DONE, more=False)
            except ClientGone:
                pass
            except TimeoutError:
                _abort(scope)
                self.stream.cancel()

    async def _send_results(self, send: Send) -> None:
        while not self.stream.done:
            try:
                deltas = await self.stream.receive(timeout=self.config.ping_interval)
            except ClientGone:
                raise
            except GradusError as error:  # too late for a status: the last frame says it
                await self._write(send, event(error_of(error)[1]))
                return
            news = [delta for delta in deltas if delta.token_ids or delta.completion]  # part of a prompt is no news
            events = []
            for delta in news:
                content = frame(delta, wants_logprobs=self.stream.params.logprobs is not None)
                if delta.completion is not None:
                    self._completions.append(delta.completion)
                if len(self._completions) == self.stream.params.n:
                    content |= {"model": self.model, "usage": usage(self._completions)}
                events.append(event(content))
            if events or not deltas:
                await self._write(send, b"".join(events) or PING)

    async def _write(self, send: Send, data: bytes, more: bool = True) -> None:
        """Raises TimeoutError when the client has not made room for `data` in time."""
        async with asyncio.timeout(self.config.write_timeout):
            await send({"type": "http.response.body", "body": data, "more_body": more})


def event(content: dict[str, Any]) -> bytes:
    """JSON escapes line breaks, so one `data:` line always holds it."""
    return b"data: " + encode(content) + b"\n\n"


def _abort(scope: Scope) -> None:
    """Cut the connection. Closing it politely would wait for the client to read what it does not read."""
    if abort := scope.get("state", {}).get("abort_connection"):
        abort()
