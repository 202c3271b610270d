"""JSON and server-sent events as bytes.

Small content becomes bytes at once. Content that grows with a request is described instead (`Each`, `Later`), and
written piece by piece (`pieces`): the event loop can do other work between two pieces.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

LINE_ENDS = ("\u0085", "\u2028", "\u2029")
"""Characters that JSON does not escape. They end no line of a stream, but a client that splits lines as Python does
splits at them."""

_ENDS = [(end.encode(), b"\\u%04x" % ord(end)) for end in LINE_ENDS]
_json = msgspec.json.Encoder().encode

HOLE = f"hole-{secrets.token_hex(16)}"
"""The placeholder for the changing text in the content of `event_around`."""

_HOLE_IN_JSON = _json(HOLE)

ITEMS_AT_ONCE = 8  # tokens with 20 alternatives each take a millisecond

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def comment(text: str) -> bytes:
    """Write a comment, which clients skip. text: one line."""
    return f": {text}\n\n".encode()


def encode(content: Any) -> bytes:
    """Encode JSON on one line: escape every character that some client takes for a line end.

    A number that is not finite, which JSON cannot say, becomes null.
    """
    return _on_one_line(_json(content))


def _on_one_line(text: bytes) -> bytes:
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


# -- content in pieces -------------------------------------------------------------------------------------------------


class Each:
    """A JSON array whose items are made a few at a time, when they are written. make: makes an item of one value."""

    __slots__ = ("make", "values")

    def __init__(self, make: Callable[[Any], Any], values: Iterable[Any]) -> None:
        self.make = make
        self.values = values


class Later:
    """A JSON value made when it is written, after everything before it in the text."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def pieces(content: Any) -> Iterator[bytes]:
    """Encode JSON that may hold `Each` and `Later`. The pieces join to what `encode` makes of the same values.

    A piece is as large as the content around or between those, so describe everything large by them.
    """
    return _filled(*_with_holes(content))


def event_pieces(content: Any, name: str | None = None) -> Iterator[bytes]:
    """Format an event, as `event` does, piece by piece."""
    yield b"data: " if name is None else b"event: %b\ndata: " % name.encode()
    yield from pieces(content)
    yield b"\n\n"


def _with_holes(content: Any) -> tuple[list[bytes], list[Each | Later]]:
    """Encode content around its holes. Returns the texts before, between and after them, and what belongs into them."""
    held: list[Each | Later] = []

    def hole(value: Any) -> str:
        if not isinstance(value, Each | Later):
            raise NotImplementedError(f"{type(value).__name__} is not JSON")
        held.append(value)
        return HOLE

    return _on_one_line(msgspec.json.Encoder(enc_hook=hole).encode(content)).split(_HOLE_IN_JSON), held


def _filled(texts: list[bytes], held: list[Each | Later]) -> Iterator[bytes]:
    yield texts[0]
    for value, text in zip(held, texts[1:], strict=True):
        yield from _array(value) if isinstance(value, Each) else pieces(value.make())
        yield text


def _array(each: Each) -> Iterator[bytes]:
    values, begun = iter(each.values), False
    yield b"["
    while items := [each.make(value) for value in islice(values, ITEMS_AT_ONCE)]:
        texts, held = _with_holes(items)
        texts[0] = (b"," if begun else b"") + texts[0][1:]
        texts[-1] = texts[-1][:-1]
        begun = True
        yield from _filled(texts, held)
    yield b"]"
