"""An HTTP/1.1 response read as its bytes come, and the connection that asks: they count events, and parse none.

The number of tokens is what the server's own usage says at the end of a stream; without one, it is the number of
events.
"""

import asyncio
import re
import time
from collections.abc import Callable

from gradus.load.answer import UNFINISHED, Answer
from gradus.load.asking.routes import Route

HEAD_END = b"\r\n\r\n"
MOST_HEAD = 64 * 1024
KEPT = 4096  # bytes of a stream's end: more than its last event; and of a refusal
USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
PROMPT_USAGE = re.compile(rb'"prompt_tokens": ?(\d+)')
FAULT = re.compile(rb'^(?:event: error|data: ?\{"error": ?\{).*', re.MULTILINE)
MESSAGE = re.compile(rb'"message": ?"((?:[^"\\]|\\.){0,300})')


class Broken(Exception):
    """Bytes that are no HTTP response."""


class Response:
    """One response. status: 0 until its head is there. done: the body is complete."""

    def __init__(self) -> None:
        self.status, self.done, self.reusable = 0, False, True
        self.headers: dict[bytes, bytes] = {}
        self._head, self._rest = b"", b""
        self._left = 0  # bytes that the chunk, or the body, still has; -1: the line end after a chunk
        self._chunked = self._ending = self._until_close = False

    def feed(self, data: bytes) -> bytes:
        """Read further bytes. Returns those of the body. Raises Broken."""
        if not self.status:
            self._head += data
            head, found, data = self._head.partition(HEAD_END)
            if not found:
                if len(self._head) > MOST_HEAD:
                    raise Broken("the response has no end of its head")
                return b""
            self._begin(head)
        if self._chunked:
            return self._chunks(data)
        if self._until_close:
            return data
        self._left -= len(data)
        self.done = self._left <= 0
        return data

    def _begin(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        try:
            self.status = int(first.split(b" ")[1])
        except (IndexError, ValueError):
            raise Broken(f"this is no HTTP response: {first[:60]!r}") from None
        pairs = (line.partition(b":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.reusable = self.headers.get(b"connection", b"").lower() != b"close" and first.startswith(b"HTTP/1.1")
        self._chunked = self.headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        length = self.headers.get(b"content-length", b"")
        self._left = int(length) if length.isdigit() and not self._chunked else 0
        self._until_close = not self._chunked and not length.isdigit()

    def closed(self) -> None:
        """The server has closed the connection: that ends a body without a length."""
        self.reusable = False
        self.done = self.done or (self.status > 0 and self._until_close)

    def _chunks(self, data: bytes) -> bytes:
        data, at, pieces = self._rest + data, 0, []
        self._rest = b""
        while True:
            if self._left > 0:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._left = -1
            end = data.find(b"\r\n", at)
            if end < 0:
                self._rest = data[at:]
                break
            line, at = data[at:end], end + 2
            if self._left == -1:
                self._left = 0
            elif self._ending:
                if not line:
                    self.done = True
                    break
            else:
                self._left = _size(line)
                self._ending = self._left == 0
        return b"".join(pieces)


def _size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise Broken(f"this is no size of a chunk: {line[:40]!r}") from None


class Connection(asyncio.Protocol):
    """A connection that sends one request after the other."""

    def __init__(self, route: Route, exact: bool) -> None:
        self._route, self._exact = route, exact
        self._waiting: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.open = transport, True

    async def ask(
        self, request: bytes, output: int, answer: Answer, timeout: float, on_first: Callable[[], None] = lambda: None
    ) -> None:
        """Send a request and fill its answer in: times, tokens, or the error. on_first: called at the first token."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._answer, self._output, self._response, self._on_first = answer, output, Response(), on_first
        self._line, self._end, self._before = b"", b"", 0.0
        self._waiting = loop.create_future()
        limit = loop.call_later(timeout, self.give_up, "timeout", f"no answer within {timeout:g} s")
        self._transport.write(request)
        try:
            await self._waiting
        finally:
            limit.cancel()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            return self.close()
        try:
            body = self._response.feed(data)
        except Broken as broken:
            return self.give_up("connection", str(broken))
        if self._response.status == 200:
            self._count(body)
        elif body:
            self._end = (self._end + body)[:KEPT]
        if self._response.done:
            self._finish()
        return None

    def _count(self, body: bytes) -> None:
        """Count the events with tokens among the lines that are complete."""
        cut = body.rfind(b"\n") + 1
        if not cut:
            self._line += body
            return
        lines, self._line = self._line + body[:cut], body[cut:]
        self._end = (self._end + lines)[-KEPT:]
        found = len(self._route.token.findall(lines))
        if not found:
            return
        now, answer = time.monotonic(), self._answer
        if answer.events:
            answer.gaps.append(now - self._before)
        else:
            answer.first = now
            self._on_first()
        for _ in range(found - 1):
            answer.gaps.append(0.0)
        answer.events += found
        self._before = now

    def _finish(self) -> None:
        answer, response = self._answer, self._response
        end = self._end + self._line
        if response.status != 200:
            return self._ended(str(response.status), _message(end), _seconds(response.headers.get(b"retry-after", b"")))
        if fault := FAULT.search(end):
            return self._ended("stream", _message(fault[0]))
        used, read = USAGE.findall(end), PROMPT_USAGE.findall(end)
        answer.tokens = int(used[-1]) if used else answer.events
        answer.prompt_tokens = int(read[-1]) if read else 0
        if not answer.events:
            return self._ended("stream", f"no event with a token: {end[:200]!r}")
        if self._exact and answer.tokens != self._output:
            return self._ended("short", f"{self._output} tokens were asked for, and {answer.tokens} came")
        return self._ended("", "")

    def _ended(self, error: str, detail: str, again: float = 0.0) -> None:
        answer = self._answer
        answer.last, answer.error, answer.detail, answer.again = time.monotonic(), error, detail, again
        waiting, self._waiting = self._waiting, None
        if not self._response.reusable or not self._response.done:
            self.close()
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def give_up(self, error: str = UNFINISHED, detail: str = "") -> None:
        """End the request that is under way, and the connection with it."""
        if self._waiting is not None:
            self._ended(error, detail)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._waiting is None:
            return
        self._response.closed()
        if self._response.done:
            self._finish()
        else:
            self._ended("connection", f"the connection was lost: {exc or 'the server closed it'}")

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()


def _message(body: bytes) -> str:
    found = MESSAGE.search(body)
    return (found[1] if found else body[:200]).decode("utf-8", "replace")


def _seconds(text: bytes) -> float:
    try:
        return min(max(float(text), 0.0), 3600.0)
    except ValueError:
        return 0.0
