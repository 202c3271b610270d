"""An HTTP/1.1 answer as bytes that pass through: where its headers end, and where its body does.

Nothing is decoded: a chunk's length is read, and its data is skipped. So a token's event costs microseconds.
"""

from collections.abc import Iterable

HEAD_ENDS = b"\r\n\r\n"
MOST_HEAD_BYTES = 64 << 10
LONGEST_SIZE = 64  # bytes of a chunk's first line
LAST_CHUNK = b"0\r\n\r\n"

Header = tuple[bytes, bytes]


class BrokenAnswer(ValueError):
    """Bytes that are no HTTP answer."""


class Head:
    """The beginning of an answer: status and headers. names in lower case."""

    def __init__(self, data: bytes) -> None:
        """data: without the empty line at the end. Raises BrokenAnswer."""
        self.line, *lines = data.split(b"\r\n")
        version, _, rest = self.line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise BrokenAnswer(f"an answer begins with {self.line[:40]!r}")
        self.status = int(rest[:3])
        pairs = [line.partition(b":") for line in lines]
        self.headers: list[Header] = [(name.strip().lower(), value.strip()) for name, _, value in pairs]

    def __getitem__(self, wanted: bytes) -> bytes:
        return next((value for name, value in self.headers if name == wanted), b"")

    @property
    def is_event_stream(self) -> bool:
        return self[b"content-type"].startswith(b"text/event-stream")

    def with_connection(self, close: bool) -> bytes:
        """Return the head for another connection, which is closed afterwards or not."""
        kept = [header for header in self.headers if header[0] not in (b"connection", b"keep-alive")]
        return written(self.line, [*kept, *([(b"connection", b"close")] if close else [])])


def written(line: bytes, headers: Iterable[Header]) -> bytes:
    """Write a request's or an answer's head."""
    return b"\r\n".join([line, *(name + b": " + value for name, value in headers)]) + HEAD_ENDS


class Chunks:
    """Follows a body in chunks, without trailers."""

    ends_with_connection = False

    def __init__(self) -> None:
        self.ended = False
        self._last = False
        self._skip = 0  # bytes of the current chunk that have not come yet, its line break included
        self._line = b""  # the part of a chunk's first line that has come

    @property
    def at_boundary(self) -> bool:
        """Whether all that has come are whole chunks."""
        return not self._skip and not self._line

    def feed(self, data: bytes) -> None:
        """Take more of the body. Raises BrokenAnswer."""
        at = 0
        while at < len(data) and not self.ended:
            if self._skip:
                taken = min(self._skip, len(data) - at)
                self._skip -= taken
                at += taken
                if self._last and not self._skip:
                    self.ended = True
                continue
            end = data.find(b"\n", at)
            self._line += data[at:] if end < 0 else data[at : end + 1]
            if len(self._line) > LONGEST_SIZE:
                raise BrokenAnswer("a chunk has no length")
            if end < 0:
                return
            try:
                size = int(self._line.partition(b";")[0], 16)
            except ValueError as error:
                raise BrokenAnswer(f"a chunk begins with {self._line!r}") from error
            self._line, self._skip, at = b"", size + 2, end + 1
            self._last = not size


class Length:
    """Follows a body of a known length; None: it ends with the connection."""

    at_boundary = False

    def __init__(self, length: int | None) -> None:
        self._left = length

    @property
    def ended(self) -> bool:
        return self._left == 0

    @property
    def ends_with_connection(self) -> bool:
        return self._left is None

    def feed(self, data: bytes) -> None:
        if self._left is not None:
            self._left = max(0, self._left - len(data))


def body_of(head: Head, method: str) -> Chunks | Length:
    """Choose how the body is followed. method: of the request. Raises BrokenAnswer."""
    if method == "HEAD" or head.status in (204, 304):
        return Length(0)
    if b"chunked" in head[b"transfer-encoding"].lower():
        return Chunks()
    length = head[b"content-length"]
    if length and not length.isdigit():
        raise BrokenAnswer(f"an answer's length is {length[:40]!r}")
    return Length(int(length) if length else None)
