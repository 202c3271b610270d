"""Regular expressions inside JSON's strings, where the library escapes characters on its own.

Where a class holds all control characters, the library allows any of JSON's escapes, \\" and \\\\ among them, even if
the class excludes the quotation mark or the backslash, as [^"] does. It does not where the class lacks one of the
control characters. So such a class loses U+0000: an answer has no NUL there, and everything else is exact.
"""

import re

from gradus.structured.library import refusal

NUL, ESCAPED = "\0", '"\\'  # ESCAPED: what a class must hold both of, if it holds all control characters
_ALL = frozenset(NUL + ESCAPED)
_WITHOUT_NUL = r"--\x00]"

_ESCAPE = r"\\(?:[pP](?:\{[^}]{0,64}\}|.)|[xuU]\{[^}]{0,8}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)"
_SPECIAL = re.compile(rf"{_ESCAPE}|\[|\x00|\(\?[a-zA-Z]*x", re.DOTALL)
_ITEM = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
_BRACKET = re.compile(r"\\.|[\[\]]", re.DOTALL)
_UNREAD = re.compile(r"\[|&&|--|~~|\\[pP]")  # parts of a class that `_members` does not read
_CONTROLS = {"a": 7, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


def exact_pattern(pattern: str) -> str:
    """Rewrite a schema's pattern so that the library keeps to it. Raises RequestError where no rewriting does."""
    pieces, position, literal = [], 0, False
    while found := _SPECIAL.search(pattern, position):
        pieces.append(pattern[position : found.start()])
        part, position = found[0], found.end()
        if part == "[":
            position = _class_end(pattern, position)
            part = pattern[found.start() : position]
            loose = _is_loose(part)
        elif part.startswith("(?"):
            raise refusal("a pattern has the flag x, which is not supported in a schema: write it without blanks")
        else:
            loose = part[:2] in (r"\p", r"\P")
            literal |= _code(part) == 0
        pieces.append(f"[{part}{_WITHOUT_NUL}" if loose else part)
    if literal and "|" in pattern:  # alternatives of one character become a class
        raise refusal("a pattern names U+0000 and has alternatives, which can't be kept exactly: leave one of them out")
    return "".join([*pieces, pattern[position:]])


def _class_end(pattern: str, start: int) -> int:
    """Find the end of a class, from behind its bracket. One without an end reaches to the pattern's: it is refused."""
    depth = 1
    start += pattern.startswith("^", start)
    start += pattern.startswith("]", start)
    for found in _BRACKET.finditer(pattern, start):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if not depth:
            return found.end()
    return len(pattern)


def _is_loose(written: str) -> bool:
    """Whether a class may hold U+0000, but not both the quotation mark and the backslash."""
    if written.endswith(_WITHOUT_NUL):
        return False
    content = written[1:-1]
    negated = content.startswith("^")
    content = content[negated:]
    if _UNREAD.search(content):
        return True
    members = _members(content)
    members = _ALL - members if negated else members
    return NUL in members and not members.issuperset(ESCAPED)


def _members(content: str) -> frozenset[str]:
    """Choose the characters of `_ALL` that a class holds. content: without brackets, negation and nested classes."""
    items = _ITEM.findall(content)
    found: set[str] = set()
    place = 0
    while place < len(items):
        item, place = items[place], place + 1
        if re.fullmatch(r"\\[dwsDWS]", item):
            found |= _ALL if item[1].isupper() else set()
            continue
        first = last = _code(item)
        if items[place : place + 1] == ["-"] and place + 1 < len(items):
            last, place = _code(items[place + 1]), place + 2
        found |= {each for each in _ALL if first <= ord(each) <= last}
    return frozenset(found)


def _code(item: str) -> int:
    """Return the code point of a character or of its escape."""
    if item[0] != "\\" or len(item) == 1:
        return ord(item)
    if item[1] in "xuU" and len(item) > 2:
        digits = item[2:].strip("{}")
        return int(digits, 16) if re.fullmatch(r"[0-9a-fA-F]{1,8}", digits) else -1
    return _CONTROLS.get(item[1], ord(item[1]))
