"""JSON and server-sent events as bytes."""

import secrets
from typing import Any

import msgspec

LINE_ENDS = ("\u0085", "\u2028", "\u2029")
"""Characters that JSON does not escape. They end no line of a stream, but a client that splits lines as Python does
splits at them."""

_ENDS = [(end.encode(), b"\\u%04x" % ord(end)) for end in LINE_ENDS]
_json = msgspec.json.Encoder().encode

HOLE = f"hole-{secrets.token_hex(16)}"
"""The placeholder for the changing text in the content of `event_around`."""

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def encode(content: Any) -> bytes:
    """Encode JSON on one line: escape every character that some client takes for a line end.

    A number that is not finite, which JSON cannot say, becomes null.
    """
    text = _json(content)
    if not text.isascii():
        for end, escaped in _ENDS:  # only strings can hold one
            text = text.replace(end, escaped)
    return text


def event(content: Any, name: str | None = None) -> bytes:
    """Format an event. JSON escapes line breaks, so one `data:` line always suffices."""
    data = b"data: " + encode(content) + b"\n\n"
    return data if name is None else b"event: " + name.encode() + b"\n" + data


def event_around(content: Any) -> tuple[bytes, bytes]:
    """Format an event whose content holds HOLE. Returns the bytes before and after the text that replaces it.

    Most events of a stream differ in one text; writing only that takes a fraction of the time.
    """
    before, after = event(content).split(encode(HOLE))
    return before, after
