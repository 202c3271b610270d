"""JSON as it arrives: checked character by character and passed on, so that every piece of it can be sent at once.

The output is strict JSON. What models write instead is mended on the way where it has one meaning and no other:

    a raw line break or tab in a string       the character
    an escaped apostrophe                     the apostrophe
    a backslash that begins no escape         a backslash: models write the pattern \\d+ and the path C:\\users with one
    'a string in single quotes'               Python's string
    True, False, None                         true, false, null
    {{ … }}                                   { … }: templates that show a call double its braces
    a comma before a closing bracket          nothing
"""

import json
import re

from gradus.text.tools.reader import DEEPEST, HEX, LONGEST_WORD, WORD, Malformed, Parsing, Reader, Write
from gradus.text.tools.syntaxes.python_text import copy_string as copy_python_string

_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|true|false|null", re.ASCII)
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')


def copy_value(reader: Reader, write: Write) -> Parsing[None]:
    """Read one JSON value and write it. Raises Malformed where it is none, or nests deeper than DEEPEST.

    Nothing of an object or a list is written before it has begun as one.
    """
    opened: list[str] = []  # what closes each bracket; a list, because a hostile text nests as deep as it likes
    while True:
        char = yield from reader.blanks()
        if char == "{" or char == "[":
            empty = yield from _open(reader, write, char, opened)
            if not empty:
                continue
        elif char == '"' or char == "'":
            yield from copy_string(reader, write)
        else:
            word = yield from reader.word(WORD, LONGEST_WORD)
            word = _PYTHON.get(word, word)
            if not _SCALAR.fullmatch(word):
                raise Malformed("not a JSON value")
            write(word)
        if not (yield from _after_value(reader, write, opened)):
            return


def open_braces(reader: Reader) -> Parsing[str]:
    """Take the opening brace of an object, or two. Returns what closes it."""
    yield from reader.expect("{")
    if (yield from reader.peek()) != "{":
        return "}"
    reader.take()
    return "}}"


def _open(reader: Reader, write: Write, bracket: str, opened: list[str]) -> Parsing[bool]:
    """Read an opening bracket, and the first key of an object. Returns whether the bracket is closed again already."""
    if bracket == "[":
        reader.take()
        closing = "]"
    else:
        closing = yield from open_braces(reader)
    opened.append(closing)
    if len(opened) > DEEPEST:
        raise Malformed("nested too deep")
    char = yield from reader.blanks()
    if bracket == "{" and not (isinstance(char, str) and char in "\"'}"):
        raise Malformed("an object that does not begin with a key")
    write(bracket)
    if char == closing[0]:
        yield from _close(reader, write, opened)
        return True
    if bracket == "{":
        yield from _key(reader, write)
    return False


def _close(reader: Reader, write: Write, opened: list[str]) -> Parsing[None]:
    closing = opened.pop()
    yield from reader.expect(closing)
    write(closing[0])


def _after_value(reader: Reader, write: Write, opened: list[str]) -> Parsing[bool]:
    """Read commas and closing brackets behind a value. Returns whether another value is to come."""
    while opened:
        char = yield from reader.blanks()
        comma = char == ","
        if comma:
            reader.take()
            char = yield from reader.blanks()
        if char == opened[-1][0]:
            yield from _close(reader, write, opened)
        elif comma:
            write(", ")
            if opened[-1] != "]":
                yield from _key(reader, write)
            return True
        else:
            raise Malformed("neither a comma nor a closing bracket")
    return False


def _key(reader: Reader, write: Write) -> Parsing[None]:
    yield from reader.blanks()
    yield from copy_string(reader, write)
    yield from reader.blanks()
    yield from reader.expect(":")
    write(": ")


def copy_string(reader: Reader, write: Write) -> Parsing[None]:
    """Read a string and write it as JSON."""
    if (yield from reader.peek()) == "'":
        yield from copy_python_string(reader, write)
        return
    yield from reader.expect('"')
    write('"')
    while (char := (yield from reader.peek())) != '"':
        if not isinstance(char, str):
            raise Malformed("a string without an end")
        if char == "\\":
            write((yield from _escape(reader)))
        elif plain := reader.span(_PLAIN):
            write(plain)
        else:  # a control character
            reader.take()
            write(json.dumps(char)[1:-1])
    reader.take()
    write('"')


def _escape(reader: Reader) -> Parsing[str]:
    """Read a backslash and what belongs to it. Without an escape of JSON behind it, it is a backslash of the text."""
    reader.take()
    char = yield from reader.peek()
    if not isinstance(char, str):
        raise Malformed("a string without an end")
    if char not in "'\"\\/bfnrtu":
        return "\\\\"  # the next character is read like any other
    reader.take()
    if char == "u":
        digits = yield from _up_to_four_digits(reader)
        return ("\\u" if len(digits) == 4 else "\\\\u") + digits
    return "'" if char == "'" else "\\" + char


def _up_to_four_digits(reader: Reader) -> Parsing[str]:
    found = ""
    while len(found) < 4:
        char = yield from reader.peek()
        if not isinstance(char, str):
            raise Malformed("a string without an end")
        if not HEX.match(char):
            break
        reader.take()
        found += char
    return found
