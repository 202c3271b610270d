"""Server-sent events: messages framed as lines of text, on a response that stays open.

data: {"text": " sea"}      an event is one or more lines that begin with "data:" ...
                            ... and ends at an empty line
: still here                a line that begins with a colon is a comment
"""

import json
from typing import Any

LINE_ENDS = ("\u0085", "\u2028", "\u2029")
"""Characters that end no line of an event stream, and that JSON leaves unescaped. But a client that splits lines as
Python's `splitlines` does cuts the event here."""


def encode(content: dict[str, Any]) -> str:
    """Format JSON on one line, for every client's notion of a line end. Raises ValueError for NaN."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for end in LINE_ENDS:
        text = text.replace(end, f"\\u{ord(end):04x}")
    return text


def event(message: str) -> bytes:
    """Frame a message. A stream's lines end with \\r\\n, \\r or \\n: a message with any becomes several lines."""
    lines = message.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "".join(f"data: {line}\n" for line in lines).encode() + b"\n"


DONE = event("[DONE]")
