"""How deep JSON nests, without parsing it: parsers recurse, and a hostile text would exhaust their stack."""

import re

# A string up to its closing quote, or to the end of the text: because it always matches, the scan stays linear.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_KEEP_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def deeper_than(text: bytes, depth: int) -> bool:
    """Peel off the innermost brackets once per level: if any remain after `depth` rounds, the text is nested deeper.

    Each round is one pass in C, so a hostile text costs milliseconds. A Python loop over it would block
    every other request on a server's event loop.
    """
    if text.count(b"[") + text.count(b"{") <= depth:
        return False
    brackets = _STRING.sub(b"", text).translate(_KEEP_BRACKETS, _NOT_BRACKETS)
    for _ in range(depth):
        peeled = brackets.replace(b"[]", b"")
        if len(peeled) == len(brackets):
            break
        brackets = peeled
    return b"[" in brackets
