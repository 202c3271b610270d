"""Arguments of a call as an object, or its complete members if max_tokens cut the call off.

A model wrote them: they are valid JSON, but may hold numbers and characters that cannot be written again.
"""

import json
import math
import re
from typing import Any

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*(?P<end>"?)|[^\s"\[\]{},:]+|[\[\]{},:]', re.DOTALL)


def whole_members(text: str) -> dict[str, Any]:
    """Parse an object, or the beginning of one, without its unfinished member. Returns {} if there is no object."""
    try:
        value = _parsed(text)
    except ValueError:
        value = _parsed(_closed(text))
    return value if isinstance(value, dict) else {}


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text, parse_int=_int, parse_float=_float)
    except RecursionError:  # nested deeper than any call that a stream of tokens yields
        return {}
    if "\\u" in text:  # half a surrogate pair can be parsed, but not encoded
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _int(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:  # more digits than Python converts
        return digits


def _float(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else digits


def _closed(text: str) -> str:
    """Cut after the last value that is certainly complete, and close the brackets that are still open."""
    open_brackets: list[str] = []
    kept, closing = 0, "{}"
    key = False  # whether a string here is a key
    for token in _TOKENS.finditer(text):
        first, end = token[0][0], token.end()
        if first in "{[":
            open_brackets.append("}" if first == "{" else "]")
            key = first == "{"
        elif first in "}]":
            open_brackets.pop()
        elif first == ",":
            key = open_brackets[-1] == "}"
            end = token.start()  # a value before a comma is complete
        elif first == ":":
            key = False
        if first in "{[}]," or (token["end"] and not key):
            kept, closing = end, "".join(reversed(open_brackets))
    return text[:kept] + closing
