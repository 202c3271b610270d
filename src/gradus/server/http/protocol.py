"""HTTP/1.1 on a connection: uvicorn's protocol over llhttp, with the limits that it lacks."""

import asyncio
import re
from typing import Any, cast

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gradus.server.config import MAX_HEADER_BYTES

TOO_LONG = f"The request line and headers may have at most {MAX_HEADER_BYTES} bytes."
ONE_HOST = "A request must have one Host header."
NO_PATH = "A request's target must be a path."
NO_VERSION = "This server knows versions 1.0 and 1.1 of HTTP."

UPGRADE = re.compile(rb"\nupgrade(?=[ \t]*:)", re.IGNORECASE)


class DeadlineProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with a deadline for headers, and a bound on their size: on its own it has neither.

    It also gives the application two shortcuts: `scope["state"]["abort_connection"]` cuts the connection, and
    `scope["state"]["pieces"]` (`http.streaming.Pieces`) writes pieces of a stream.

    seconds: the deadline.
    """

    seconds: float
    _deadline: asyncio.TimerHandle | None = None
    _head: int | None = 0  # bytes of the request line and headers so far; None while a body arrives
    _refusal = ""  # why the parser was stopped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort_connection": transport.abort, "pieces": self}
        self._deadline = self.loop.call_later(self.seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
            data = without_upgrade(data)
        super().data_received(data)
        if self._head is not None and self._head > MAX_HEADER_BYTES:
            self.send_400_response(TOO_LONG)
        # While the application waits for a body, it limits the time itself. Otherwise the client is sending bytes
        # not read yet (headers), or no longer needed (a body whose answer has been sent).
        if self.cycle is None or self.cycle.response_complete:
            self._deadline = self._deadline or self.loop.call_later(self.seconds, self.transport.abort)
        else:
            self._relax()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        self._head = None
        hosts = sum(name == b"host" for name, _ in self.headers)
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refusal = NO_VERSION
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refusal = ONE_HOST
        elif not self.url.startswith((b"/", b"*")):
            self._refusal = NO_PATH
        if self._refusal:
            raise httptools.HttpParserError(self._refusal)  # stops the parser
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()  # in the middle of an answer
        else:
            super().send_400_response(self._refusal or msg)

    def _unsupported_upgrade_warning(self) -> None:
        """End with the answer to a request whose upgrade `without_upgrade` has not seen: the parser has stopped."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] != "1.1":
            app = ended_by_closing(cycle, app)
        super()._start_asgi_task(cycle, app)

    @property
    def has_room(self) -> bool:
        return not self.flow.write_paused and not self.transport.is_closing()

    def write_piece(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def protocol_with_deadline(seconds: float) -> type[HttpToolsProtocol]:
    return type("Protocol", (DeadlineProtocol,), {"seconds": seconds})


def without_upgrade(data: bytes) -> bytes:
    """Rename the header that asks for another protocol, at the same length: llhttp would take the body for that one's.

    Java's client, for one, asks for HTTP/2 with each first request, and takes an answer in HTTP/1.1 as well.
    """
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    return UPGRADE.sub(b"\nx-asked", head) + data[len(head) :] if UPGRADE.search(head) else data


def ended_by_closing(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Answer HTTP/1.0, which knows no chunks: an answer of unknown length ends where the connection does."""
    whole = False

    async def send(message: Message) -> None:
        nonlocal whole
        if message["type"] == "http.response.start":
            whole = any(name.lower() == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if whole else False
        elif not whole:
            cycle.transport.write(message.get("body", b""))
            message = {**message, "body": b""}
        await cycle.send(cast(Any, message))

    async def answer(scope: Scope, receive: Receive, _: Send) -> None:
        await app(scope, receive, send)

    return answer
