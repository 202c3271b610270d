"""Large answers, written slice by slice: between two slices, the event loop serves other requests.

An answer with log-probabilities may have hundreds of megabytes. Made and sent in one go, it would stop the server for
as long as that takes, and need a multiple of its size in memory.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

SLICE_BYTES = 64 * 1024
SLICE_S = 0.002
WHOLE_BYTES = 64 * 1024  # an answer up to this size is sent in one piece, with its length


async def slices(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Join pieces, which take time to make. After SLICE_S or SLICE_BYTES, yield what there is, and let others run."""
    joined: list[bytes] = []
    size, ends = 0, time.perf_counter() + SLICE_S
    for piece in pieces:
        joined.append(piece)
        size += len(piece)
        if size >= SLICE_BYTES or time.perf_counter() >= ends:
            yield b"".join(joined)
            await asyncio.sleep(0)
            joined.clear()
            size, ends = 0, time.perf_counter() + SLICE_S
    yield b"".join(joined)


class JsonInSlices(Response):
    """An answer whose JSON is made as it is sent. timeout: seconds for the client to read a slice."""

    media_type = "application/json"

    def __init__(self, pieces: Iterable[bytes], headers: Mapping[str, str], timeout: float) -> None:
        super().__init__(headers=dict(headers))
        del self.headers["content-length"]
        self._slices = slices(pieces)
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = b""
        async for data in self._slices:
            begun += data
            if len(begun) > WHOLE_BYTES:
                break
        else:
            self.headers["content-length"] = str(len(begun))
            await self._start(send)
            await send({"type": "http.response.body", "body": begun})
            return
        watcher = asyncio.create_task(left(receive))
        try:
            await self._start(send)
            await self._send(send, begun)
            async for data in self._slices:
                if watcher.done():
                    return
                await self._send(send, data)
            await self._send(send, b"", more=False)
        except TimeoutError:
            cut(scope)
        finally:
            watcher.cancel()

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    async def _send(self, send: Send, data: bytes, more: bool = True) -> None:
        async with asyncio.timeout(self._timeout):
            await send({"type": "http.response.body", "body": data, "more_body": more})


async def left(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def cut(scope: Scope) -> None:
    """Cut the connection. An orderly close would wait for the client, which does not read."""
    if abort := scope.get("state", {}).get("abort_connection"):
        abort()
