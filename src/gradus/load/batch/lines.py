"""The lines of a batch: requests in, answers out, in OpenAI's form; and how an output that was cut off goes on.

In: {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}
Out: {"id": …, "custom_id": …, "response": {"status_code": …, "request_id": …, "body": {…}}, "error": null}

A line that is no request gets one line of output, without custom_id, whose error names the line's number.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from gradus.errors import ConfigError

INVALID = "invalid_line"
LONGEST_ID = 512
MOST_LINE = 64 << 20  # bytes
_PATH = re.compile(r"/(?:v1/[\w/.-]+|generate)")


@dataclass(frozen=True, slots=True)
class Asked:
    """A line that is a request."""

    number: int
    custom_id: str
    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Invalid:
    """A line that is none, and why."""

    number: int
    why: str


def read(file: Path) -> Iterator[Asked | Invalid]:
    """Read the requests of a file, in order; empty lines are left out. A custom_id's second line is invalid.

    Raises ConfigError if the file cannot be read.
    """
    first: dict[str, int] = {}
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _read(line, number, first)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error


def _read(line: bytes, number: int, first: dict[str, int]) -> Asked | Invalid:
    try:
        row = json.loads(line) if len(line) <= MOST_LINE else None
    except (ValueError, RecursionError) as error:
        return Invalid(number, f"is not JSON: {error}")
    if row is None and len(line) > MOST_LINE:
        return Invalid(number, f"has {len(line):,} bytes, at most {MOST_LINE:,} are read")
    if not isinstance(row, dict):
        return Invalid(number, f"must be a JSON object, got {type(row).__name__}")
    if why := _wrong(row):
        return Invalid(number, why)
    if (before := first.setdefault(row["custom_id"], number)) != number:
        return Invalid(number, f"custom_id {row['custom_id']!r} is already that of line {before}")
    return Asked(number, row["custom_id"], row["url"], row["body"])


def _wrong(row: dict[str, Any]) -> str:
    """Say why a row is no request; "" if it is one."""
    name, url, body = row.get("custom_id"), row.get("url"), row.get("body")
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_ID:
        return f"custom_id must be a text of 1 to {LONGEST_ID} characters, got {_short(name)}"
    if row.get("method", "POST") != "POST":
        return f"method must be POST, got {_short(row['method'])}"
    if not isinstance(url, str) or not _PATH.fullmatch(url):
        return f"url must be a path such as /v1/chat/completions or /generate, got {_short(url)}"
    if not isinstance(body, dict):
        return f"body must be a JSON object, got {_short(body)}"
    if body.get("stream"):
        return "body.stream must be false: an answer is one line"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


@dataclass(slots=True)
class Output:
    """The lines that an output holds already.

    done: custom_ids that have a line. succeeded: how many of them have status 200. invalid: numbers of lines that were
    no request.
    """

    succeeded: int = 0
    done: set[str] = field(default_factory=set)
    invalid: set[int] = field(default_factory=set)

    def without(self, lines: Iterator[Asked | Invalid]) -> Iterator[Asked | Invalid]:
        """The lines that it has no line for."""
        for line in lines:
            has = line.number in self.invalid if isinstance(line, Invalid) else line.custom_id in self.done
            if not has:
                yield line


def resume(file: Path) -> Output:
    """Read what an earlier run has written, and cut off a last line that it did not finish.

    Raises ConfigError if the file holds something else than a batch's output: it is then left as it is.
    """
    found, whole = Output(), 0
    if not file.exists():
        return found
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break  # a run that ended while it wrote
                _note(found, line, f"{file}, line {number}")
                whole += len(line)
        if whole < file.stat().st_size:
            os.truncate(file, whole)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read and written: {error.strerror or error}") from error
    return found


def _note(found: Output, line: bytes, where: str) -> None:
    try:
        row = json.loads(line)
        name, error = row["custom_id"], row["error"]
        if name is None:
            found.invalid.add(error["line"])
        else:
            found.done.add(name)
            found.succeeded += row["response"]["status_code"] == 200
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: is no line of a batch's output; name another file, or remove it") from error


def answered(asked: Asked, status: int, request_id: str, body: Any) -> bytes:
    """Write the line of an answer, whatever its status."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line({"id": _new_id(), "custom_id": asked.custom_id, "response": response, "error": None})


def refused(line: Invalid) -> bytes:
    """Write the line of a line that is no request."""
    error = {"code": INVALID, "message": f"line {line.number} {line.why}", "line": line.number}
    return _line({"id": _new_id(), "custom_id": None, "response": None, "error": error})


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _new_id() -> str:
    return f"batch_req_{uuid4().hex}"
