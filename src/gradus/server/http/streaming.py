"""Server-sent events: each result is sent as soon as it exists, and no client can delay another.

A client can fail in three ways:
    it leaves           `http.disconnect` arrives, and the engine's request is cancelled before its next step;
    it vanishes         nothing arrives; comments probe for it while there is nothing to send, and its timeout ends it;
    it stops reading    the kernel's buffers fill, then sending blocks: after write_timeout the connection is cut.
                        max_buffered bounds the results that gather meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gradus.errors import GradusError
from gradus.server.api.ask import Encoder
from gradus.server.api.frames import PING
from gradus.server.config import ServerConfig
from gradus.server.results import ClientGone, Stream


@asynccontextmanager
async def cancelled_with_client(receive: Receive, stream: Stream) -> AsyncIterator[None]:
    """Within the block, cancel the stream if the client leaves, or if the block raises an exception."""
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

    def __init__(self, stream: Stream, encoder: Encoder, config: ServerConfig, headers: Mapping[str, str]) -> None:
        # without these two, proxies gather small pieces into large ones, and tokens arrive in bursts
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self.stream = stream
        self.encoder = encoder
        self.config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_with_client(receive, self.stream):
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await self._write(send, await self._send_results(send), more=False)
            except ClientGone:
                pass
            except TimeoutError:
                _abort(scope)
                self.stream.cancel()

    async def _send_results(self, send: Send) -> bytes:
        """Send what arrives. Returns the last frames."""
        if opening := self.encoder.begin():
            await self._write(send, opening)
        while not self.stream.done:
            try:
                deltas = await self.stream.receive(timeout=self.config.ping_interval)
            except ClientGone:
                raise
            except GradusError as error:  # too late for a status, so the last frame carries the error
                return self.encoder.failed(error)
            if frames := self.encoder.frames(deltas) if deltas else PING:
                await self._write(send, frames)
        return self.encoder.end()

    async def _write(self, send: Send, data: bytes, more: bool = True) -> None:
        """Send data. Raises TimeoutError if the client does not make room for it in time."""
        async with asyncio.timeout(self.config.write_timeout):
            await send({"type": "http.response.body", "body": data, "more_body": more})


def _abort(scope: Scope) -> None:
    """Cut the connection. A polite close would wait for the client, which does not read."""
    if abort := scope.get("state", {}).get("abort_connection"):
        abort()
