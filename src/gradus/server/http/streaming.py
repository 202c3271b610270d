"""Server-sent events: each result is sent as soon as it exists, and no client can delay another.

A client can fail in three ways:
    it leaves           `http.disconnect` arrives, and its request is cancelled before the engine's next step;
    it vanishes         nothing arrives; comments probe an idle connection, and the request's timeout ends it;
    it stops reading    backpressure: the kernel's buffers fill, then sending blocks, and the connection is cut after
                        write_timeout. max_buffered bounds the results that gather meanwhile.

While a client reads, its results are written on delivery, without waking its task (`Stream.sink`): waking it would cost
several times as much as writing a token. Otherwise, the task writes them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gradus.engine.logprobs import NO_LOGPROBS
from gradus.errors import GradusError
from gradus.server.api.frames import PING, comment
from gradus.server.config import ServerConfig
from gradus.server.exchange import Encoder, Templated
from gradus.server.failures import ClientGone
from gradus.server.http.slices import cut, left, slices
from gradus.server.results import Lane, Stream
from gradus.text.completion import Delta

STAGE_S = 1.0  # between two comments on the stages of a load


class Pieces(Protocol):
    """A connection that accepts an answer's pieces (HTTP/1.1 chunks) once the headers have been sent."""

    @property
    def has_room(self) -> bool:
        """Whether the connection is open, and its client keeps up."""

    def write_piece(self, data: bytes) -> None:
        """Write at once, or as soon as the event loop can."""


class Cancellable(Protocol):
    def cancel(self) -> object: ...


@asynccontextmanager
async def cancelled_with_client(receive: Receive, stream: Cancellable) -> AsyncIterator[None]:
    """Within the block, cancel the stream (or a job) if the client leaves, or if the block raises an exception."""
    watcher = asyncio.create_task(_cancel_on_disconnect(receive, stream))
    try:
        yield
    except BaseException:
        stream.cancel()
        raise
    finally:
        watcher.cancel()


async def _cancel_on_disconnect(receive: Receive, stream: Cancellable) -> None:
    await left(receive)
    stream.cancel()


class EventStream(Response):
    """The answer to a streaming request. `stream` must have been accepted, because the status sent is 200, or wait for
    an engine that wakes.

    stage: says what an engine that wakes is at, for comments to a client that waits; "" once it is awake.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        stream: Stream,
        encoder: Encoder,
        config: ServerConfig,
        headers: Mapping[str, str],
        stage: Callable[[], str] = lambda: "",
    ) -> None:
        # without these two, proxies gather small pieces into large ones, and tokens arrive in bursts
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self.stream = stream
        self.encoder = encoder
        self.config = config
        self.stage = stage
        self._templated = encoder if isinstance(encoder, Templated) else None
        self._pieces: Pieces | None = None
        self._busy = False  # True while the task writes
        self._wrote = False  # True if the sink has written since the last check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_with_client(receive, self.stream):
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                if scope["http_version"] == "1.1":
                    self._pieces = scope.get("state", {}).get("pieces")
                await self._write(send, await self._send_results(send), more=False)
            except ClientGone as gone:
                gone.__traceback__ = None  # the stream has the error, and its frames have the stream
            except TimeoutError:
                cut(scope)
                self.stream.stall()
            finally:  # without cycles, a request and its prompt are freed now, and not when the collector looks
                self.stream.sink = self.stream.lane_sink = None

    async def _send_results(self, send: Send) -> bytes:
        """Send results as they arrive. Returns the last frames."""
        if stage := self.stage():
            await self._write(send, comment(stage))
        if opening := self.encoder.begin():
            await self._write(send, opening)
        if self._pieces is not None:
            self.stream.sink, self.stream.lane_sink = self._sink, self._lane_sink
        self.stream.deliver()  # what has come by now; `receive` would join it
        while not self.stream.done:
            stage = self.stage()
            try:
                deltas = await self.stream.receive(timeout=STAGE_S if stage else self.config.ping_interval)
            except ClientGone:
                raise
            except GradusError as error:  # too late for a status, so the last frame carries the error
                return self.encoder.failed(error)
            quiet, self._wrote = not self._wrote, False
            if deltas:
                await self._write(send, await self._all_but_last(send, self.encoder.frames(deltas)))
            elif quiet:
                await self._write(send, comment(stage) if stage else PING)
        return await self._all_but_last(send, self.encoder.end())

    def _sink(self, deltas: Sequence[Delta]) -> bool:
        """Write results at once, if the connection has room and the task has no earlier ones to write.

        Log-probabilities of a prompt may be many, so the task writes them, slice by slice.
        """
        if self._busy or self._pieces is None or not self._pieces.has_room:
            return False
        if deltas[0].prompt_logprobs is not NO_LOGPROBS:
            return False
        if frames := b"".join(self.encoder.frames(deltas)):
            self._pieces.write_piece(frames)
            self._wrote = True
        if self._templated is not None and len(self.stream.templates) < self.stream.samples:
            self._keep_templates(self._templated, deltas)
        return True

    def _keep_templates(self, encoder: Templated, deltas: Sequence[Delta]) -> None:
        """Let the plain tokens that follow these deltas take the short way."""
        for delta in deltas:
            if delta.completion is None and (template := encoder.template(delta)) is not None:
                self.stream.templates[delta.prompt_index, delta.index] = template

    def _lane_sink(self, lanes: Sequence[Lane]) -> bool:
        """Write frames of plain tokens at once, under the same conditions."""
        if self._busy or self._pieces is None or not self._pieces.has_room:
            return False
        frames = lanes[0].frames()
        for lane in lanes[1:]:
            frames += lane.frames()
        self._pieces.write_piece(b"".join(frames))
        self._wrote = True
        return True

    async def _all_but_last(self, send: Send, frames: Iterable[bytes]) -> bytes:
        """Write frames slice by slice. Returns the last slice, for a message that may say that it is the last."""
        last = b""
        self._busy = True
        async for data in slices(frames):
            await self._write(send, last)
            self._busy, last = True, data
        return last

    async def _write(self, send: Send, data: bytes, more: bool = True) -> None:
        """Send data. Raises TimeoutError if the client does not read in time."""
        self._busy = True
        if data or not more:
            room = self._pieces is not None and self._pieces.has_room  # then nothing waits
            async with nullcontext() if room else asyncio.timeout(self.config.write_timeout):
                await send({"type": "http.response.body", "body": data, "more_body": more})
        self._busy = False
