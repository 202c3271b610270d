"""HTTP/1.1 on a connection: uvicorn's protocol over llhttp, with the limits that it lacks.

No part of HTTP that a client can repeat is without a limit. They are checked after every SLICE bytes:

    part                                                limit                  beyond it
    empty lines, request line, header fields            MAX_HEADER_BYTES,      400
                                                        `receive_timeout`      closed
    header fields, by number                            MAX_FIELDS             400
    chunk sizes and extensions, trailer fields          MAX_HEADER_BYTES and   400, or closed if the answer has begun
                                                        FRAMING times the body
    a body while its request is answered                `max_body_bytes`       413
    a body after its answer, which is not read          MAX_UNREAD_BYTES,      closed
                                                        `receive_timeout`
    requests that wait for the answer to another        MAX_PIPELINED          closed after the answers
    the body of such a request                          HIGH_WATER_LIMIT       closed after the answers
    bytes after those                                   MAX_UNREAD_BYTES       closed
    100 Continue                                        once per request
    upgrades                                            ignored
    malformed requests, in the log                      once in 10 s           counted

Trailer fields are dropped: nothing here reads them, and they must not turn into headers.
"""

import asyncio
import logging
from typing import Any, cast

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gradus.server.limits import MAX_HEADER_BYTES, MAX_HEADERS
from gradus.server.logs import Sparing
from gradus.server.writing.outbox import Behind, Outbox

SLICE = 32 * 1024  # bytes between two checks
MAX_FIELDS = 4 * MAX_HEADERS  # the application refuses MAX_HEADERS with a better answer
FRAMING = 5  # bytes of framing for each byte of a body: what a chunk of one byte needs
MAX_PIPELINED = 8
MAX_UNREAD_BYTES = 1 << 20

MALFORMED = "Invalid HTTP request received."
TOO_LONG = f"The request line, headers and trailers may have at most {MAX_HEADER_BYTES} bytes."
TOO_MANY = f"A request may have at most {MAX_HEADERS} headers."
TOO_EAGER = f"At most {MAX_PIPELINED} small requests may wait for the answer to another one on their connection."
TOO_LATE = f"At most {MAX_UNREAD_BYTES} bytes may follow an answer to a request that does not need them."
ONE_HOST = "A request must have one Host header."
NO_PATH = "A request's target must be a path."
NO_VERSION = "This server knows versions 1.0 and 1.1 of HTTP."

log = Sparing(logging.getLogger(__name__))


class DeadlineProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with limits in size, number and time: on its own it has none.

    It also gives the application two shortcuts: `scope["state"]["abort_connection"]` cuts the connection, and
    `scope["state"]["pieces"]` (`http.streaming.Pieces`) writes pieces of a stream.

    seconds: the time for headers, for a body after its answer, and for a client to read its last bytes.
    outbox: gathers pieces of many connections. number, under_way: as in its `Connection`.
    """

    seconds: float
    outbox: Outbox
    number = 0
    under_way = False
    _deadline: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None  # the request being answered, or the last one that was
    _in_body = False  # True from the end of a request's headers to its own end
    _replaying = False  # True while a parser reads framing that another one has read before
    _surplus = 0  # bytes of the present request that are no part of a body, less what the body excuses
    _unread = 0  # bytes that nothing will read
    _deaf = False  # True once no further request will be read
    _refusal = MALFORMED  # why the parser was stopped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort_connection": transport.abort, "pieces": self}
        self._direct = transport
        self._plain = transport.get_extra_info("sslcontext") is None
        self.transport = cast(asyncio.Transport, Behind(transport, self, self.outbox))
        self._close_later()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        for at in range(0, len(data), SLICE):
            if self._deaf:
                self._ignore(len(data) - at)
                break
            self._read(data[at : at + SLICE])
            if self.transport.is_closing():
                return
        # While the application waits for a body, it limits the time itself. Otherwise the client is sending bytes
        # not read yet (headers), or no longer needed (a body whose answer has been sent).
        if self.cycle is None or self.cycle.response_complete:
            self._close_later()
        else:
            self._relax()

    def _read(self, data: bytes) -> None:
        self._surplus += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        self._surplus = max(self._surplus, 0)
        if self._surplus > MAX_HEADER_BYTES:
            self._refuse(TOO_LONG)

    def _parse(self, data: bytes) -> None:
        """Parse bytes, and ignore any upgrade that they ask for.

        llhttp takes all that follows such headers for another protocol's. (Java's client, for one, asks for HTTP/2 with
        each first request, and takes an answer in HTTP/1.1 as well.) So a new parser reads the body, by the framing of
        those headers.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            framing = [b"%b: %b\r\n" % field for field in self.headers if field[0] in FRAMED_BY]
            self._replaying = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))

    def _ignore(self, count: int) -> None:
        """Drop bytes that follow the last request to be answered. They are received to notice a client that leaves."""
        self._unread += count
        if self._unread > MAX_UNREAD_BYTES:
            self.transport.abort()

    # -- the parser's callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._replaying:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # a trailer, or a field read before
            return
        if len(self.headers) >= MAX_FIELDS:
            self._stop_parser(TOO_MANY)
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        if self._replaying:
            self._replaying = False
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._stop_parser(NO_VERSION)
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self._stop_parser(ONE_HOST)
        elif not self.url.startswith((b"/", b"*")):
            self._stop_parser(NO_PATH)
        elif len(self.pipeline) >= MAX_PIPELINED:
            self._stop_parser(TOO_EAGER)
        super().on_headers_complete()
        self._in_body = True
        if self.pipeline:  # uvicorn has paused reading, and a client that leaves would not be noticed
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._surplus -= (1 + FRAMING) * len(body)
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > MAX_UNREAD_BYTES:
                self._stop_parser(TOO_LATE)
        elif self.cycle is not self._running and len(self.cycle.body) + len(body) > HIGH_WATER_LIMIT:
            self._stop_parser(TOO_EAGER)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():  # the body is still to come
            return
        self._in_body = False
        self._surplus = self._unread = 0
        super().on_message_complete()

    def _stop_parser(self, why: str) -> None:
        self._refusal = why
        raise httptools.HttpParserError(why)

    # -- refusing ------------------------------------------------------------------------------------------------------

    def _refuse(self, why: str) -> None:
        """Refuse bytes, and read no further ones. Requests before them are still answered."""
        log.warning(f"refused bytes of {self.client[0] if self.client else 'a client'}: {why}")
        self._deaf = True
        running = self._running
        if running is None or running.response_complete:
            if self._in_body:  # its answer has been sent
                self.transport.close()
            else:
                self.send_400_response(why)
        elif running is not self.cycle or not self._in_body:
            self._close_after_answers(running)
        elif running.response_started:
            self.transport.abort()  # in the middle of an answer
        else:
            self.send_400_response(why)
        if self.transport.is_closing():
            self._close_later()

    def _close_after_answers(self, running: RequestResponseCycle) -> None:
        if self._in_body:
            self.pipeline.popleft()  # the newest, which has not arrived
        self.cycle = self.pipeline[0][0] if self.pipeline else running
        self.cycle.keep_alive = False

    # -- answering -----------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] != "1.1":
            app = ended_by_closing(cycle, app)
        super()._start_asgi_task(cycle, app)

    @property
    def has_room(self) -> bool:
        return not self.flow.write_paused and not self._direct.is_closing()

    def write_piece(self, data: bytes) -> None:
        piece = b"%x\r\n%b\r\n" % (len(data), data)
        if self.outbox.gathering and self._plain and not self._direct.get_write_buffer_size():
            self.outbox.put(self, piece)
        else:
            self.transport.write(piece)

    # -- for the outbox ------------------------------------------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        return cast(int, self._direct.get_extra_info("socket").fileno())

    def write_now(self, data: bytes) -> None:
        if not self._direct.is_closing():
            self._direct.write(data)

    def cut(self) -> None:
        self._direct.abort()

    # -- the end -------------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._close_later()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._close_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let every request notice that its client has left: uvicorn itself would only let the newest."""
        self._relax()
        self.outbox.forget(self)
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _close_later(self) -> None:
        """Cut the connection unless it closes, or a request arrives, in time."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self.transport.abort)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


FRAMED_BY = (b"content-length", b"transfer-encoding")


def protocol_with_deadline(seconds: float, outbox: Outbox) -> type[HttpToolsProtocol]:
    return type("Protocol", (DeadlineProtocol,), {"seconds": seconds, "outbox": outbox})


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
