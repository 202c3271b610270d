"""The log, on stderr, as text or as JSON. No line holds a prompt, an answer or an API key.

Texts that come from clients (a path, an unknown field's name) are shortened, and hold no control characters.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from gradus.server.config import ServerConfig

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Sparing:
    """Logs what clients can cause at will: one line in `every_s` seconds, which counts the lines left out before it."""

    def __init__(self, log: logging.Logger, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._every_s, self._clock = log, every_s, clock
        self._next = 0.0
        self._left_out = 0

    def warning(self, message: str) -> None:
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        self._log.warning("%s%s", message, f" (and {self._left_out} more before it)" if self._left_out else "")
        self._next, self._left_out = now + self._every_s, 0


class JsonLines(logging.Formatter):
    """Formats a line as an object. A record's `fields` (see `gradus.server.http.record`) become its members."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        content |= {"message": record.getMessage()} if fields is None else {"event": "request", **fields}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


def utc(seconds: float) -> str:
    """Write seconds of `time.time` as a date and a time in UTC, to the millisecond."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{at}.{int(seconds % 1 * 1000):03d}Z"


def printable(text: str, most: int) -> str:
    """Shorten a client's text to `most` characters in one line without control characters."""
    shown = "".join([char if char.isprintable() else "\ufffd" for char in text[: most + 1]])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def announce(config: ServerConfig, text: str, stream: TextIO) -> None:
    """Print a line that is no part of the log, such as the one that says where the server is. It has the log's format,
    whatever its level. A stream that cannot be written ends nothing."""
    if config.log_format == "json":
        record = logging.LogRecord("gradus.server", logging.INFO, "", 0, text, None, None)
        text = JsonLines().format(record)
    with suppress(OSError):
        print(text, file=stream, flush=True)


def set_up(config: ServerConfig) -> None:
    """Send all lines to stderr: uvicorn's own only when debugging, and its access log, which has URLs, never."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if config.log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel("DEBUG" if config.log_level == "debug" else "WARNING")
