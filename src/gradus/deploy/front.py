"""The front: clients connect to it, and it passes their requests to replicas, and the replicas' bytes back.

Ray chooses a replica and counts the request there, but no token passes through Ray: its cost is per item, and at many
tokens per second one process of Ray's would be busy with nothing else. The front reads a request whole, and then copies
bytes from one connection to the other.

The replica checks everything, as the same application does behind `gradus serve`. The front reads at most as much as
the replica would accept. Where keys are needed, it refuses a body from a sender without one before reading it, and
passes on only requests without a body, which may be for a public path.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

import h11

from gradus.deploy.answer import HEAD_ENDS, LAST_CHUNK, MOST_HEAD_BYTES, BrokenAnswer, Head, body_of, written
from gradus.deploy.prefixes import prompt_hashes
from gradus.errors import GradusError
from gradus.server.api.errors import Problem, problem_of, shape_of
from gradus.server.api.frames import encode
from gradus.server.config import ServerConfig
from gradus.server.http.access import credentials, unknown_sender
from gradus.server.http.answers import problem_response
from gradus.server.http.keys import Keys
from gradus.server.limits import MAX_HEADER_BYTES

log = logging.getLogger(__name__)

LARGEST_BODY = 64 << 20
"""Most bytes of a body where the configuration names no limit; the replica, which knows the context, accepts less."""
IDLE_S = 5.0  # for which a connection without a request stays open
CONNECT_S = 5.0
BACKLOG = 2048
TICKET = b"x-gradus-ticket"
OF_A_CONNECTION = {b"connection", b"keep-alive", b"content-length", b"transfer-encoding", b"expect", b"upgrade", TICKET}
"""Headers that are not passed on: the front's own connection has its own."""

LOST = Problem(503, "replica_lost", "the replica that served this request has stopped", retry_after=1)


class Admitted(NamedTuple):
    """A replica's promise to answer one request: at this address, with this ticket."""

    host: str
    port: int
    ticket: str


Admit = Callable[[tuple[int, ...]], AsyncGenerator[Admitted, None]]
"""Has a replica admit a request with these hashes of its prompt's beginning. Yields once, and ends with the request."""


class Front:
    """Answers requests with a replica's bytes. secret: the key of the hashes, the same in all fronts."""

    def __init__(self, config: ServerConfig, secret: bytes, admit: Admit) -> None:
        self.config = config
        self.admit = admit
        self.draining = False
        self.most = config.max_body_bytes or LARGEST_BODY
        self.connections: set[Connection] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._keys = Keys.of(config)
        self._secret = secret
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), sock=listening, backlog=BACKLOG
        )

    def known(self, presented: list[str]) -> bool:
        self._keys.keep_current()
        return not self._keys or any(self._keys.find(text) for text in presented)

    def hashes(self, body: bytes, presented: list[str]) -> tuple[int, ...]:
        return prompt_hashes(body, self._secret, "\n".join(presented if self._keys else ()))

    def farewell(self, admissions: AsyncGenerator[Admitted, None], ended: bool) -> None:
        """Let an admission end in the background: with its request, or at once if that was given up."""

        async def end() -> None:
            try:
                async with aclosing(admissions):
                    while ended and await anext(admissions, None) is not None:
                        pass
            except Exception as error:
                log.info("a replica did not end its admission: %s", type(error).__name__)

        task = asyncio.create_task(end())
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def close(self, timeout: float) -> None:
        """Accept no more connections, and wait for requests under way. Each connection closes with its last answer."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        until = asyncio.get_running_loop().time() + timeout
        while self.connections and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.05)
        for connection in list(self.connections):
            connection.transport.abort()


class Connection(asyncio.Protocol):
    """A client's connection: one request after the other."""

    transport: asyncio.Transport

    def __init__(self, front: Front) -> None:
        self._front = front
        self._answering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._source: Source | None = None
        self._full = False  # the client does not read as fast as the replica writes
        self._begin(b"")

    def _begin(self, data: bytes) -> None:
        """Expect a new request, whose first bytes may have come."""
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._receiving = False
        if data:
            self._http.receive_data(data)

    # -- the transport's calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._front.connections.add(self)
        self._limit(IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit(None)
        self._front.connections.discard(self)
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        if self._answering is None:
            self._read()
        elif len(self._http.trailing_data[0]) > MAX_HEADER_BYTES:
            self.transport.pause_reading()  # the client asks for more before it has its answer

    def pause_writing(self) -> None:
        self._full = True
        if self._source is not None:
            self._source.transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if self._source is not None:
            self._source.transport.resume_reading()

    # -- a request -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read on, and answer once the request is whole."""
        try:
            self._read_events()
        except h11.RemoteProtocolError as error:
            self._refuse(Problem(error.error_status_hint, "invalid_request", f"this is no HTTP request: {error}"))

    def _read_events(self) -> None:
        while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Request):
                self._request = event
                if not self._front.known(presented := self._presented(event)):
                    # the replica, which decides, may know the key by now: never pass a request on without its body
                    return self._refuse(unknown_sender(presented)) if _has_body(event) else self._answer(close=True)
                if self._http.they_are_waiting_for_100_continue:
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._front.most:
                    problem = f"the body is larger than {self._front.most} bytes"
                    return self._refuse(Problem(413, "invalid_request", problem))
            elif isinstance(event, h11.EndOfMessage):
                assert self._request is not None
                self._answer(close=self._http.their_state is h11.MUST_CLOSE)
                return None
            else:  # the client has closed its side
                self.transport.close()
                return None
        if not self._receiving:
            self._receiving = True
            self._limit(self._front.config.receive_timeout)
        return None

    def _presented(self, request: h11.Request) -> list[str]:
        return credentials({"headers": list(request.headers)})

    def _refuse(self, problem: Problem) -> None:
        target = self._request.target.decode("latin-1") if self._request is not None else ""
        self.transport.write(plain(problem, target, close=True))
        self.transport.close()

    def _answer(self, close: bool) -> None:
        self._limit(None)
        self._answering = asyncio.create_task(self._pass_on(close))
        self._answering.add_done_callback(self._answered)

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._answering = self._source = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("an answer was not passed on", exc_info=error)
            self.transport.abort()
        if self.transport.is_closing():
            return
        rest, _ = self._http.trailing_data
        self._begin(rest)
        self.transport.resume_reading()
        self._limit(IDLE_S)
        if rest:
            self._read()

    async def _pass_on(self, close: bool) -> None:
        """Have a replica answer the request, and close the connection if nothing more may follow."""
        request = self._request
        assert request is not None
        target = request.target.decode("latin-1")
        admissions, whole = self._front.admit(self._hashes(request)), False
        try:
            admitted = await anext(admissions)
            source = await self._connect(admitted, close)
            source.transport.write(self._as_sent(request, admitted))
            whole = await source.finished
            if not whole:
                self._break_off(source, target)
        except Exception as error:  # many kinds are Ray's
            log.warning("an answer was not begun: %s", type(error).__name__)
            problem = problem_of(error) if isinstance(error, GradusError) else LOST
            self.transport.write(plain(problem, target, close))
        finally:
            if self._source is not None:
                self._source.transport.abort()
            self._front.farewell(admissions, whole)
        if close or self._front.draining:
            self.transport.close()

    def _hashes(self, request: h11.Request) -> tuple[int, ...]:
        return self._front.hashes(bytes(self._body), self._presented(request))

    async def _connect(self, admitted: Admitted, close: bool) -> "Source":
        async with asyncio.timeout(CONNECT_S):
            make = partial(Source, self, close or self._front.draining)
            _, self._source = await asyncio.get_running_loop().create_connection(make, admitted.host, admitted.port)
        if self._full:  # of an earlier answer
            self._source.transport.pause_reading()
        return self._source

    def _as_sent(self, request: h11.Request, admitted: Admitted) -> bytes:
        """Write the request for the replica, on a connection that is closed with the answer."""
        kept = [(name, value) for name, value in request.headers if name not in OF_A_CONNECTION]
        kept += [(b"connection", b"close"), (TICKET, admitted.ticket.encode())]
        if self._body or request.method not in (b"GET", b"HEAD"):
            kept.append((b"content-length", str(len(self._body)).encode()))
        line = b"%s %s HTTP/%s" % (request.method, request.target, request.http_version)
        return written(line, kept) + bytes(self._body)

    def _break_off(self, source: "Source", target: str) -> None:
        """End an answer whose replica is lost, a stream by an error event, and then the connection."""
        if not source.begun:
            self.transport.write(plain(LOST, target, close=True))
        elif source.can_end and not self._full:
            event = b"event: error\ndata: " + encode(shape_of(target)(LOST)) + b"\n\n"
            self.transport.write(b"%x\r\n%s\r\n" % (len(event), event) + LAST_CHUNK)
        else:
            self.transport.abort()
        self.transport.close()

    def method(self) -> str:
        return "" if self._request is None else self._request.method.decode("latin-1")

    def _limit(self, seconds: float | None) -> None:
        """Close the connection unless a request is whole by then. None: no limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.transport.abort)

    def close_if_idle(self) -> None:
        if self._answering is None and not self._receiving:
            self.transport.close()


class Source(asyncio.Protocol):
    """The connection to a replica, whose bytes go to a client.

    finished: whether the answer is whole, once nothing more comes. begun: whether the client has some of it.
    """

    transport: asyncio.Transport

    def __init__(self, client: Connection, close: bool) -> None:
        self.finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.begun = False
        self._client, self._close = client, close
        self._head: Head | None = None
        self._first = b""

    @property
    def can_end(self) -> bool:
        """Whether an event can follow, and then the end of the body."""
        return self._head is not None and self._head.is_event_stream and self._body.at_boundary

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            if self._head is None:
                data = self._begin(data)
            if data:
                self._body.feed(data)
                self._client.transport.write(data)
            if self._head is not None and self._body.ended:
                self._finish(True)
        except BrokenAnswer as error:
            log.error("a replica's answer is broken: %s", error)
            self._finish(False)

    def _begin(self, data: bytes) -> bytes:
        """Pass the headers on once they are whole. Returns what has come of the body."""
        self._first += data
        head, end, rest = self._first.partition(HEAD_ENDS)
        if not end:
            if len(head) > MOST_HEAD_BYTES:
                raise BrokenAnswer("its headers do not end")
            return b""
        self._head = Head(head)
        self._body = body_of(self._head, self._client.method())
        self._client.transport.write(self._head.with_connection(self._close or self._body.ends_with_connection))
        self.begun = True
        return rest

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        whole = exc is None and self._head is not None and self._body.ends_with_connection
        if whole:
            self._client.transport.close()
        self._finish(whole)

    def _finish(self, whole: bool) -> None:
        if not self.finished.done():
            self.finished.set_result(whole)
            self.transport.close()


def _has_body(request: h11.Request) -> bool:
    lengths = {b"content-length": (b"0",), b"transfer-encoding": ()}
    return any(name in lengths and value not in lengths[name] for name, value in request.headers)


def plain(problem: Problem, target: str, close: bool) -> bytes:
    """Write a problem as a whole answer."""
    answer = problem_response(problem, {"path": target.partition("?")[0]})
    headers = [header for header in answer.raw_headers if header[0] != b"connection"]
    headers += [(b"connection", b"close")] if close else []
    return written(b"HTTP/1.1 %d " % problem.status, headers) + bytes(answer.body)
