"""Strict JSON from untrusted bytes: limited in size and time, and without `json.loads`'s extensions.

`json.loads` is lenient: it accepts NaN, keeps the last of two equal keys, allows half a surrogate pair in a string,
which cannot be encoded again, and recurses as deep as the input nests. All of this has crashed or confused servers;
here each gets a 400 that names the fault.

Parsing holds the event loop up, in a thread too, because it never releases Python's lock. What takes time is making
objects: a mebibyte of nested arrays takes 0.3 s, one of text a millisecond. So they are counted before they are made,
and a body may have more than any request needs, but not many times as many.
"""

import asyncio
import json
import re
from typing import Any

from starlette.requests import ClientDisconnect, Request

from gradus.engine.structured import deeper_than
from gradus.server.failures import BodyError
from gradus.server.limits import BYTES_PER_TOKEN, MAX_JSON_CONTAINERS, MAX_JSON_DEPTH, MAX_JSON_STRINGS

LEAST_VALUES = 1 << 17
BYTES_PER_VALUE = BYTES_PER_TOKEN // 2  # twice as many values as token ids of a whole context


async def read_json(request: Request, *, max_bytes: int, timeout: float) -> Any:
    """Read the request's body as JSON. Raises BodyError (400, 408, 413, 415), or ClientDisconnect."""
    _check_headers(request, max_bytes)
    try:
        async with asyncio.timeout(timeout):
            body = await _read(request, max_bytes)
    except TimeoutError:
        raise BodyError(f"the body did not arrive within {timeout:g} s", 408, limit=f"{timeout:g} s") from None
    return strict_json(body, max(LEAST_VALUES, max_bytes // BYTES_PER_VALUE))


def _check_headers(request: Request, max_bytes: int) -> None:
    """Refuse a request by its headers, before reading a byte of the body."""
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "application/json":
        raise BodyError("Content-Type must be application/json", 415, limit="application/json", got=kind[:60])
    charset = re.search(r'charset\s*=\s*"?([^";\s]*)', parameters, re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8"):
        raise BodyError("the body must be UTF-8", 415, limit="utf-8", got=charset[1][:60])
    # a small compressed body could expand to a huge one
    coding = request.headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise BodyError("the body must not be compressed", 415, limit="no Content-Encoding", got=coding[:60])
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > max_bytes):
        raise _too_large(max_bytes, length[:20])


async def _read(request: Request, max_bytes: int) -> bytes:
    """Read the body, counting the bytes as they arrive: a chunked body announces no length."""
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect()
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes, f"more than {max_bytes}")
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(max_bytes: int, got: str) -> BodyError:
    return BodyError(
        f"the body must have at most {max_bytes} bytes, got {got}", 413, limit=f"at most {max_bytes} bytes", got=got
    )


def strict_json(body: bytes, most_values: int = LEAST_VALUES) -> Any:
    """Parse JSON (RFC 8259) without extensions. Raises BodyError with status 400."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(f"the body must be UTF-8; byte {error.start} is not", 400, limit="UTF-8") from None
    _check_counts(body, most_values)
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        message = f"the body must be JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise BodyError(message, 400, limit="JSON") from None
    except ValueError:  # an integer with more digits than Python converts (sys.get_int_max_str_digits)
        raise BodyError("a number in the body has too many digits", 400, limit="numbers of up to 4300 digits") from None
    if "\\u" in text and not _encodable(value):
        raise BodyError(r"a string in the body holds half a surrogate pair (\ud800 to \udfff)", 400, limit="Unicode")
    return value


def _check_counts(body: bytes, most_values: int) -> None:
    """Refuse JSON with too many objects of Python. Each step is a pass in C, or as long as the limits allow.

    The counts are right up to the first error, where the parser stops.
    """
    text = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # each quote now begins or ends a string
    _check_count("strings", text.count(b'"') // 2, MAX_JSON_STRINGS)
    text = b"".join(text.split(b'"')[::2])
    _check_count("arrays and objects", text.count(b"[") + text.count(b"{"), MAX_JSON_CONTAINERS)
    _check_count("values", text.count(b","), most_values)
    if deeper_than(text, MAX_JSON_DEPTH):
        limit = f"at most {MAX_JSON_DEPTH} levels"
        raise BodyError(f"the JSON must be nested at most {MAX_JSON_DEPTH} levels deep", 400, limit=limit)


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        message = f"the JSON must have at most {most} {what}, got {count}"
        raise BodyError(message, 400, limit=f"at most {most} {what}", got=count)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BodyError(f"the key {twice[:60]!r} appears twice in one object", 400, limit="unique keys", got=twice[:60])
    return content


def _no_constant(name: str) -> Any:
    raise BodyError(f"{name} is not JSON; numbers must be finite", 400, limit="finite numbers", got=name)


def _encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
