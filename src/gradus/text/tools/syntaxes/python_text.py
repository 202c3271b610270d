"""Python literals as they arrive, written as JSON: for models that call tools in Python's syntax.

Nothing is evaluated. Strings, numbers, True, False, None, lists and dicts with strings as keys are read by hand;
anything else, a name or a sum, is malformed.
"""

import json
import re

from gradus.text.tools.reader import DEEPEST, LONGEST_WORD, WORD, Malformed, Parsing, Piece, Reader, Write

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_PLAIN = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]+") for quote in "'\""}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_CLOSING = {"{": "}", "[": "]"}


def copy_literal(reader: Reader, write: Write) -> Parsing[None]:
    """Read one literal and write it as JSON. Raises Malformed where it is none, or nests deeper than DEEPEST."""
    opened: list[str] = []
    while True:
        char = yield from reader.blanks()
        if char == "{" or char == "[":
            reader.take()
            write(char)
            opened.append(char)
            if len(opened) > DEEPEST:
                raise Malformed("nested too deep")
            if (yield from reader.blanks()) != _CLOSING[char]:
                yield from _key(reader, write, opened)
                continue
        elif char == "'" or char == '"':
            yield from copy_string(reader, write)
        else:
            write(_scalar((yield from reader.word(WORD, LONGEST_WORD))))
        if not (yield from _after_value(reader, write, opened)):
            return


def _scalar(word: str) -> str:
    if word not in _WORDS and not _NUMBER.fullmatch(word):
        raise Malformed("neither a number nor a constant")
    return _WORDS.get(word, word)


def _after_value(reader: Reader, write: Write, opened: list[str]) -> Parsing[bool]:
    """Read commas and closing brackets behind a value. Returns whether another value is to come."""
    while opened:
        char = yield from reader.blanks()
        if char == ",":
            reader.take()
            if (yield from reader.blanks()) != _CLOSING[opened[-1]]:  # Python allows a comma at the end
                write(", ")
                yield from _key(reader, write, opened)
                return True
        elif char == _CLOSING[opened[-1]]:
            reader.take()
            write(_CLOSING[opened.pop()])
        else:
            raise Malformed("neither a comma nor a closing bracket")
    return False


def _key(reader: Reader, write: Write, opened: list[str]) -> Parsing[None]:
    """Read the key of a dict's next entry; a list has none."""
    if opened[-1] == "{":
        yield from copy_string(reader, write)
        yield from reader.blanks()
        yield from reader.expect(":")
        write(": ")


def copy_string(reader: Reader, write: Write) -> Parsing[None]:
    """Read a string in single, double or triple quotes, and write it as JSON."""
    quote = yield from reader.peek()
    if quote != "'" and quote != '"':
        raise Malformed("not a string")
    reader.take()
    write('"')
    triple = False
    if (yield from reader.peek()) == quote:
        reader.take()
        if (yield from reader.peek()) != quote:
            write('"')
            return
        reader.take()
        triple = True
    yield from _characters(reader, write, quote, triple)
    write('"')


def _characters(reader: Reader, write: Write, quote: str, triple: bool) -> Parsing[None]:
    """Read up to the closing quote or quotes, and take these."""
    while True:
        char: Piece = yield from reader.peek()
        if not isinstance(char, str):
            raise Malformed("a string without an end")
        if plain := reader.span(_PLAIN[quote]):
            write(json.dumps(plain, ensure_ascii=False)[1:-1])
            continue
        reader.take()
        if char == quote:
            count = 1
            while triple and count < 3 and (yield from reader.peek()) == quote:
                reader.take()
                count += 1
            if count == 3 or not triple:
                return
            write(json.dumps(quote * count)[1:-1])
        elif char == "\\":
            write((yield from _escape(reader)))
        else:
            write(json.dumps(char)[1:-1])


def _escape(reader: Reader) -> Parsing[str]:
    """Read what follows a backslash. Returns it as it is written inside a JSON string."""
    char = yield from reader.peek()
    if not isinstance(char, str):
        raise Malformed("a string without an end")
    reader.take()
    if char in _HEX_DIGITS:
        code = int((yield from reader.hexadecimal(_HEX_DIGITS[char])), 16)
        if code > 0x10FFFF:
            raise Malformed("not a character")
        return json.dumps(chr(code))[1:-1]  # in ASCII: two halves of a pair join in JSON
    if char in _ESCAPES:
        return json.dumps(_ESCAPES[char])[1:-1]
    return json.dumps(char if char in "\\'\"/" else "\\" + char, ensure_ascii=False)[1:-1]
