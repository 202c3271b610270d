"""Bodies and answers, word for word, in a file of JSON lines: `--log-bodies`, to debug a client.

One line per POST that Access admits, once it has been answered: its body, as far as the server has read it, and its
answer. Headers are never written, so no API key is. Of a stream, the line has the end. A body or an answer beyond
LARGEST is cut, and the file is kept within LARGEST_FILE: a full one becomes FILE.1, in place of the one before. A line
that cannot be written is left out, or cut where the disk was full: no request fails because of it.
"""

import json
import logging
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradus.errors import ConfigError
from gradus.server.http.record import Record, record_of
from gradus.server.logs import Sparing, utc

log = logging.getLogger(__name__)

LARGEST = 1 << 20  # bytes of a body, or of an answer in one piece
LARGEST_END = 1 << 16  # bytes of a stream: its end
LARGEST_FILE = 64 << 20


class BodyLog:
    """The file. Only its owner can read it.

    Raises ConfigError if it cannot be opened, or is no regular file.
    """

    def __init__(self, path: str, largest: int = LARGEST_FILE) -> None:
        self.path = path
        self.largest = largest
        self._sparing = Sparing(log)
        self._cut = False  # whether the last line has no end, because the disk was full
        try:
            self._file = self._open()
        except OSError as error:
            raise ConfigError(f"log_bodies: cannot write {path}: {error.strerror or error}") from error
        log.warning("writing prompts and answers to %s (--log-bodies)", path)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self.path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError("it is no regular file")
            os.fchmod(file, 0o600)  # it may have been there before
        except BaseException:
            os.close(file)
            raise
        return file

    def write(self, line: dict[str, Any]) -> None:
        """Append a line."""
        text = (json.dumps(line, default=str) + "\n").encode()
        try:
            self._make_room(len(text))
            text = b"\n" * self._cut + text
            written = os.write(self._file, text)  # whole lines at once: other processes may append to the same file
            self._cut = written < len(text)
            if self._cut:
                raise OSError(f"a line was cut after {written} bytes")
        except OSError as error:
            self._sparing.warning(f"--log-bodies: {self.path} could not be written: {error.strerror or error}")

    def _make_room(self, size: int) -> None:
        """Begin a new file if the line would make this one too large, or if another process has begun one."""
        mine = os.fstat(self._file)
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            named = None
        if named is not None and named.st_ino == mine.st_ino and 0 < mine.st_size > self.largest - size:
            os.replace(self.path, f"{self.path}.1")
        elif named is not None and named.st_ino == mine.st_ino:
            return
        before, self._file, self._cut = self._file, self._open(), False
        os.close(before)

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True)
class Heard:
    """Bytes as they pass: the first ones, or of a stream the last ones. size: of all of them."""

    most: int = LARGEST
    ends: bool = False
    size: int = 0
    kept: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if not self.ends:
            self.kept += data[: max(0, self.most - len(self.kept))]
            return
        self.kept += data
        if len(self.kept) > 2 * self.most:
            del self.kept[: -self.most]

    def value(self) -> Any:
        """Return the JSON that came, or its text if it is none or was cut."""
        kept = bytes(self.kept[-self.most :] if self.ends else self.kept)
        if len(kept) == self.size and not self.ends:
            try:
                return json.loads(kept)
            except (ValueError, RecursionError):
                pass
        return kept.decode("utf-8", "replace")


class Bodies:
    """Writes each POST and its answer to the file."""

    def __init__(self, app: ASGIApp, file: BodyLog) -> None:
        self.app = app
        self.file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self.app(scope, receive, send)
            finally:
                self.file.close()
            return
        if scope.get("method") != "POST":
            await self.app(scope, receive, send)
            return
        body, answer = Heard(), Heard()
        # a stream's shortcut past `send` would be missed
        scope["state"] = {name: value for name, value in scope.get("state", {}).items() if name != "pieces"}

        async def heard() -> Message:
            message = await receive()
            body.add(message.get("body", b""))
            return message

        async def said(message: Message) -> None:
            if message["type"] == "http.response.start":
                kinds = [value for name, value in message.get("headers", ()) if name == b"content-type"]
                if kinds and kinds[0].startswith(b"text/event-stream"):
                    answer.most, answer.ends = LARGEST_END, True
            answer.add(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, heard, said)
        finally:
            self.file.write(line_of(record_of(scope), scope["path"], body, answer))


def line_of(record: Record, path: str, body: Heard, answer: Heard) -> dict[str, Any]:
    """Make the line. `cut` counts the bytes that are missing of each, if any are."""
    cut = {
        name: heard.size - min(heard.size, heard.most)
        for name, heard in (("request", body), ("answer", answer))
        if heard.size > heard.most
    }
    return {
        "time": utc(time.time()),
        "id": record.id,
        "key": record.key or None,
        "path": path[:200],
        "status": record.status,
        "seconds": round(time.monotonic() - record.started, 6),
        "request": body.value(),
        "answer": answer.value(),
        **({"cut": cut} if cut else {}),
    }
