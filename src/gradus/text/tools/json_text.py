"""JSON as it arrives: checked character by character and passed on, so that every piece of it can be sent at once.

The output is strict JSON. Three faults are mended on the way, because models often make them and their meaning is
plain: a raw line break or tab in a string, an escaped apostrophe, and a backslash that begins no escape of JSON. Models
write the pattern \\d+ and the path C:\\users with one backslash where JSON needs two.
"""

import json
import re

from gradus.text.tools.reader import Malformed, Parsing, Reader, Write

DEEPEST = 64
LONGEST_WORD = 512  # characters of a number

WORD = re.compile(r"[-+.\w]+", re.ASCII)
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|true|false|null", re.ASCII)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = re.compile(r"[0-9A-Fa-f]")
_CLOSING = {"{": "}", "[": "]"}


def copy_value(reader: Reader, write: Write) -> Parsing[None]:
    """Read one JSON value and write it. Raises Malformed where it is none, or nests deeper than DEEPEST."""
    opened: list[str] = []  # brackets, not recursion: a hostile text nests as deep as it likes
    while True:
        char = yield from reader.blanks()
        if char == "{" or char == "[":
            empty = yield from _open(reader, write, char, opened)
            if not empty:
                continue
        elif char == '"':
            yield from copy_string(reader, write)
        else:
            word = yield from reader.word(WORD, LONGEST_WORD)
            if not _SCALAR.fullmatch(word):
                raise Malformed("not a JSON value")
            write(word)
        if not (yield from _after_value(reader, write, opened)):
            return


def _open(reader: Reader, write: Write, bracket: str, opened: list[str]) -> Parsing[bool]:
    """Read an opening bracket, and the first key of an object. Returns whether the bracket is closed again already."""
    reader.take()
    write(bracket)
    if (yield from reader.blanks()) == _CLOSING[bracket]:
        reader.take()
        write(_CLOSING[bracket])
        return True
    opened.append(bracket)
    if len(opened) > DEEPEST:
        raise Malformed("nested too deep")
    if bracket == "{":
        yield from _key(reader, write)
    return False


def _after_value(reader: Reader, write: Write, opened: list[str]) -> Parsing[bool]:
    """Read commas and closing brackets behind a value. Returns whether another value is to come."""
    while opened:
        char = yield from reader.blanks()
        if char == ",":
            reader.take()
            write(", ")
            if opened[-1] == "{":
                yield from _key(reader, write)
            return True
        if char != _CLOSING[opened[-1]]:
            raise Malformed("neither a comma nor a closing bracket")
        reader.take()
        write(_CLOSING[opened.pop()])
    return False


def _key(reader: Reader, write: Write) -> Parsing[None]:
    yield from reader.blanks()
    yield from copy_string(reader, write)
    yield from reader.blanks()
    yield from reader.expect(":")
    write(": ")


def copy_string(reader: Reader, write: Write) -> Parsing[None]:
    """Read a JSON string and write it."""
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
        if not _HEX.match(char):
            break
        reader.take()
        found += char
    return found


def hexadecimal(reader: Reader, digits: int) -> Parsing[str]:
    """Take this many hexadecimal digits."""
    found = ""
    while len(found) < digits:
        char = yield from reader.peek()
        if not isinstance(char, str) or not _HEX.match(char):
            raise Malformed("not a hexadecimal digit")
        reader.take()
        found += char
    return found
