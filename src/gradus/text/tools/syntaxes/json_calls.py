"""Calls as JSON: {"name": …, "arguments": {…}}, and Mistral's name[ARGS]{…}.

Models write JSON calls in more ways than they were taught. Where only one reading is possible it is read:

    members               name; arguments, or parameters, args or input; function in the place of name
    a wrapper             {"type": "function", "function": {…}} around the call
    arguments             an object, a string that holds one, null or nothing
    braces                {{ … }}, as templates show a call; a last one that is missing
    around calls          a list, a fence of Markdown
    values                what json_text.py mends
"""

import json
import re
from collections.abc import Callable

from gradus.text.tools.calls import LONGEST_KEY, NAME, Calls, Syntax
from gradus.text.tools.reader import Malformed, Parsing, Piece, Reader, ignore, read_all
from gradus.text.tools.syntaxes.json_text import copy_string, copy_value, open_braces
from gradus.text.tools.tool import MAX_NAME

_HALF_PAIR = re.compile("[\ud800-\udfff]")  # of a surrogate pair: no text can be encoded with it
_MEMBERS = {
    "name": "name",
    "function": "function",
    "arguments": "arguments",
    "parameters": "arguments",
    "args": "arguments",
    "input": "arguments",
    "type": "aside",
    "id": "aside",
    "call_id": "aside",
}  # fmt: skip
"""The members of a JSON call, each with its part in the call; those aside say nothing new."""


class _Found:
    """A JSON object's call as far as it has been read. Arguments that come before the name wait for it."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._waiting: list[str] = []
        self.name: str | None = None
        self.has_arguments = False

    @property
    def started(self) -> bool:
        """Whether name and arguments are known."""
        return self.name is not None and self.has_arguments

    def named(self, name: str) -> None:
        self.name = self._calls.declared(name).name
        self._calls.start(self.name)
        if self.has_arguments:
            self._calls.write("".join(self._waiting))

    def arguments(self, first: Piece) -> Parsing[None]:
        """Read the arguments, which begin with this character."""
        write = self._waiting.append if self.name is None else self._calls.write
        yield from copy_arguments(self._calls.reader, first, write)
        self.has_arguments = True

    def complete(self) -> None:
        if self.name is None:
            raise Malformed("a call without a name")
        if not self.has_arguments:
            self._calls.write("{}")
        self._calls.end()


def json_object(calls: Calls) -> Parsing[None]:
    """Read one call as a JSON object, its members in any order."""
    found = _Found(calls)
    yield from _members(calls.reader, found)
    found.complete()


def _members(reader: Reader, found: _Found, wrapped: bool = False) -> Parsing[None]:
    """Read an object with the members of a call. wrapped: it is the value of a member of such an object.

    A missing last bracket is forgiven where something else follows: models that are small forget it.
    """
    yield from reader.blanks()
    closing = yield from open_braces(reader)
    closed = False
    while not closed:
        yield from reader.blanks()
        key = yield from reader.string(LONGEST_KEY)
        yield from reader.blanks()
        yield from reader.expect(":")
        first = yield from reader.blanks()
        part = _MEMBERS.get(key)
        if part == "function" and first == "{" and found.name is None and not wrapped:
            yield from _members(reader, found, wrapped=True)
        elif part in ("name", "function") and found.name is None:
            found.named((yield from reader.string(MAX_NAME * 6)))
        elif part == "arguments" and not found.has_arguments:
            yield from found.arguments(first)
        elif part == "aside" or found.started:
            yield from copy_value(reader, ignore)
        else:
            raise Malformed("a member that a call does not have")
        closed = yield from _closes(reader, closing, found.started)


def copy_arguments(reader: Reader, first: Piece, write: Callable[[str], None]) -> Parsing[None]:
    """Read the arguments that begin with this character, and write the JSON of an object. Writes nothing before it is
    certain that they begin one."""
    if first == "n" or first == "N":
        yield from reader.expect("null" if first == "n" else "None")
        write("{}")
    elif first == "{":
        yield from copy_value(reader, write)
    elif first == '"' or first == "'":
        write((yield from _object_in_string(reader)))
    else:
        raise Malformed("arguments that are no object")


def _object_in_string(reader: Reader) -> Parsing[str]:
    """Read a string that holds the JSON of an object, as OpenAI's protocol and some models write arguments.

    Only its end shows whether it does, so it is read whole. An empty one means no arguments.
    """
    parts: list[str] = []
    yield from copy_string(reader, parts.append)
    text = _HALF_PAIR.sub(lambda found: f"\\u{ord(found[0]):04x}", json.loads("".join(parts)))
    if not text.strip():
        return "{}"
    written = read_all(text, copy_value)
    if written is None or written[0] != "{":
        raise Malformed("a string that holds no object")
    return written


def _closes(reader: Reader, closing: str, started: bool) -> Parsing[bool]:
    """Read the comma before another member, or the end of the object. Returns whether it is closed.

    A doubled brace may be closed by a single one: nothing else is open that it could close.
    """
    char = yield from reader.blanks()
    comma = char == ","
    if comma:
        reader.take()
        char = yield from reader.blanks()
    if char == "}":
        reader.take()
        if closing == "}}" and (yield from reader.peek()) == "}":
            reader.take()
        return True
    if comma:
        return False
    if not started or (isinstance(char, str) and char != "<"):
        raise Malformed("an object without an end")
    return True


def json_in_tags(closing: str) -> Syntax:
    """Hermes: JSON calls, bare or in a fence, then the closing marker. A marker that is missing is forgiven."""

    def read(calls: Calls) -> Parsing[None]:
        if (yield from calls.reader.blanks()) == "`":
            yield from calls.reader.expect("```")
            yield from json_fence(calls)
        else:
            yield from json_calls(calls)
        yield from closed(calls.reader, closing)

    return read


def closed(reader: Reader, closing: str) -> Parsing[None]:
    """Take the closing marker and drop it; anything else stays."""
    yield from reader.blanks()
    if (yield from reader.marker((closing,))):
        reader.forget()


def json_calls(calls: Calls) -> Parsing[None]:
    """Read JSON objects or lists of them, with semicolons, commas or nothing between them."""
    reader = calls.reader
    while True:
        if (yield from reader.blanks()) == "[":
            reader.take()
            yield from rest_of_list(calls)
        else:
            yield from json_object(calls)
        char = yield from reader.blanks()
        if char == ";" or char == ",":
            reader.take()
            char = yield from reader.blanks()
        if char != "{" and char != "[":
            return


def json_list(calls: Calls) -> Parsing[None]:
    """Read a list of JSON calls."""
    yield from calls.reader.blanks()
    yield from calls.reader.expect("[")
    yield from rest_of_list(calls)


def json_fence(calls: Calls) -> Parsing[None]:
    """Read JSON calls in a fence of Markdown whose opening marks have been read. Its language says nothing."""
    reader = calls.reader
    char = yield from reader.peek()
    if isinstance(char, str) and NAME.match(char):
        yield from reader.word(NAME, MAX_NAME)
    yield from json_calls(calls)
    yield from closed(reader, "```")


def bare_json(*strays: str) -> Syntax:
    """Llama 3, Qwen2.5-Coder: JSON calls that begin the answer. strays: closing marks to drop, which nothing opened."""

    def read(calls: Calls) -> Parsing[None]:
        yield from json_calls(calls)
        if strays:
            yield from calls.reader.blanks()
            if (yield from calls.reader.marker(strays)):
                calls.reader.forget()

    return read


# -- Mistral -----------------------------------------------------------------------------------------------------------


def mistral(calls: Calls) -> Parsing[None]:
    """Read `[{"name": …, "arguments": {…}}, …]`, or from version 11 on `name[ARGS]{…}`."""
    char = yield from calls.reader.blanks()
    if char == "[":
        calls.reader.take()
        yield from rest_of_list(calls)
    else:
        yield from _name_and_arguments(calls)


def rest_of_list(calls: Calls) -> Parsing[None]:
    """Read a list of JSON calls behind its opening bracket."""
    reader = calls.reader
    while True:
        yield from json_object(calls)
        char = yield from reader.blanks()
        if char == "]":
            reader.take()
            reader.forget()
            return
        yield from reader.expect(",")


def _name_and_arguments(calls: Calls) -> Parsing[None]:
    reader = calls.reader
    name = calls.declared((yield from reader.word(NAME, MAX_NAME))).name
    yield from reader.blanks()
    if (yield from reader.marker(("[CALL_ID]", "[ARGS]"))) == "[CALL_ID]":
        yield from reader.word(NAME, MAX_NAME)  # the model's own invention
        yield from reader.marker(("[ARGS]",))
    first = yield from reader.blanks()
    calls.start(name)
    yield from copy_arguments(reader, first, calls.write)
    calls.end()
