"""A watcher's events as server-sent events. A client that does not read gets fewer, and is cut off in the end."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gradus.server.http.slices import cut, left
from gradus.server.xray.watchers import Watcher, Watchers

LONGEST_S = 600.0  # then a client has to come again, with a key that is still valid


@contextmanager
def watching(watchers: Watchers, key: str) -> Iterator[Watcher]:
    """Watch within the block. Raises Unavailable if too many do."""
    watcher = watchers.add(key)
    try:
        yield watcher
    finally:
        watchers.remove(watcher)


class WatchStream(Response):
    """The answer to a client that watches, until it leaves, the server ends, or LONGEST_S are over. timeout: seconds to
    read an event."""

    media_type = "text/event-stream"

    def __init__(self, watchers: Watchers, watcher: Watcher, timeout: float) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._watchers = watchers
        self._watcher = watcher
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(left(receive))
        gone.add_done_callback(lambda _: self._watcher.leave())
        ends = time.monotonic() + LONGEST_S
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while "gradus.head" not in scope and (event := await self._watcher.next()) is not None:
                await self._write(send, b"data: " + event + b"\n\n")
                if time.monotonic() >= ends:
                    break
            if not gone.done():
                await self._write(send, b"", more=False)
        except TimeoutError:
            cut(scope)
        finally:
            gone.cancel()
            self._watchers.remove(self._watcher)

    async def _write(self, send: Send, data: bytes, more: bool = True) -> None:
        async with asyncio.timeout(self._timeout):
            await send({"type": "http.response.body", "body": data, "more_body": more})
