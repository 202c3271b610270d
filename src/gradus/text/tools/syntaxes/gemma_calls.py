"""Calls as Gemma 4 writes them: call:name{key:<|"|>text<|"|>,list:[1,true],object:{key:null}}.

Keys are bare. A token encloses each string, so no character inside needs an escape. Models deviate from that, and what
has one reading is read:

    "text", 'text'                a string in JSON's or Python's quotes
    text<|"|>                     a string without its opening token
    text                          neither token, where the schema says that the value is a string
    print(<|"|>hi<|"|>)           the token for a quote inside a string: a string ends where the arguments go on
    <|"|>key<|"|>:, "key":        a key in quotes
    :name{…}                      without the word in front
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gradus.text.tools.calls import LONGEST_KEY, NAME, AnswerOver, Calls
from gradus.text.tools.reader import DEEPEST, END, MOST_KEPT, Malformed, Mark, Parsing, Piece, Reader
from gradus.text.tools.syntaxes.json_calls import closed
from gradus.text.tools.syntaxes.json_text import copy_string
from gradus.text.tools.syntaxes.typed import followed, kinds_of, property_schema, scalar
from gradus.text.tools.tool import MAX_NAME, Tool

OPENING, CLOSING, QUOTE, RESULT = "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>"
LONGEST_LOOK = 128  # characters behind a quote that show whether a string ends there

_KEY = re.compile(r"""[^:,{}\[\]<>()"'\n]*""")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_TEXT_RUN = re.compile(r"[^<]+")
_BARE_RUN = re.compile(r"[^,}\]<]+")
_STRING = frozenset(("string",))


def gemma(calls: Calls) -> Parsing[None]:
    """Read a call behind its opening token. The token of a result ends the answer: results come from outside."""
    reader = calls.reader
    if (yield from reader.blanks()) != ":":
        yield from reader.expect("call")
    yield from reader.expect(":")
    tool = calls.declared((yield from reader.word(NAME, MAX_NAME)))
    yield from reader.blanks()
    yield from reader.expect("{")
    calls.start(tool.name)
    yield from _Arguments(calls, tool).members(tool.schema)
    calls.end()
    yield from closed(reader, CLOSING)
    if _named((yield from reader.peek()), RESULT):
        raise AnswerOver


class _Open(NamedTuple):
    """An object or a list that is being read. closing: its bracket. schema: of the object."""

    closing: str
    schema: Mapping[str, Any]


class _Arguments:
    """Reads the arguments of one call, and writes them as JSON."""

    def __init__(self, calls: Calls, tool: Tool) -> None:
        self._calls, self._reader, self._root = calls, calls.reader, tool.schema
        self._open: list[_Open] = []
        self._before: list[str] = []  # brackets and keys before a value: what follows them may be none

    def _write(self, text: str) -> None:
        self._calls.write("".join(self._before) + text)
        self._before.clear()

    def _enter(self, closing: str, schema: Mapping[str, Any]) -> None:
        self._open.append(_Open(closing, schema))
        if len(self._open) > DEEPEST:
            raise Malformed("nested too deep")

    # -- objects and lists ---------------------------------------------------------------------------------------------

    def members(self, schema: Any) -> Parsing[None]:
        """Read an object behind its opening brace."""
        here = followed(schema, self._root)
        self._enter("}", here)
        self._before.append("{")
        seen: set[str] = set()
        while (yield from self._reader.blanks()) != "}":
            key = yield from self._key()
            if key in seen:
                raise Malformed("a key that came before")
            self._before.append((", " if seen else "") + json.dumps(key, ensure_ascii=False) + ": ")
            seen.add(key)
            yield from self._value(property_schema(here, key))
            yield from self._comma("}")
        self._leave()

    def _items(self, schema: Any) -> Parsing[None]:
        """Read a list behind its opening bracket."""
        items = followed(schema, self._root).get("items", {})
        self._enter("]", {})
        self._before.append("[")
        several = False
        while (yield from self._reader.blanks()) != "]":
            if several:
                self._before.append(", ")
            yield from self._value(items)
            yield from self._comma("]")
            several = True
        self._leave()

    def _comma(self, closing: str) -> Parsing[None]:
        char = yield from self._reader.blanks()
        if char == ",":
            self._reader.take()
        elif char != closing:
            raise Malformed("neither a comma nor a closing bracket")

    def _leave(self) -> None:
        self._reader.take()
        self._write(self._open.pop().closing)

    def _key(self) -> Parsing[str]:
        reader, char = self._reader, (yield from self._reader.peek())
        if (yield from _quote(reader, char)):
            key = yield from reader.word(_TEXT_RUN, LONGEST_KEY)
            if not (yield from _quote(reader, (yield from reader.peek()))):
                raise Malformed("a key without an end")
        elif char == '"' or char == "'":
            key = yield from reader.string(LONGEST_KEY)
        else:
            key = (yield from reader.word(_KEY, LONGEST_KEY)).strip()
        yield from reader.blanks()
        yield from reader.expect(":")
        return key

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, schema: Any) -> Parsing[None]:
        reader, char = self._reader, (yield from self._reader.blanks())
        kinds = kinds_of(schema, self._root)
        if (yield from _quote(reader, char)):
            yield from self._string()
        elif char == '"' or char == "'":
            yield from copy_string(reader, self._write)
        elif char == "{" and kinds != _STRING:
            reader.take()
            yield from self.members(schema)
        elif char == "[" and kinds != _STRING:
            reader.take()
            yield from self._items(schema)
        else:
            yield from self._bare(kinds)

    def _string(self) -> Parsing[None]:
        """Read a string behind its opening token. Another token is a quote in it unless the arguments go on there."""
        reader = self._reader
        self._write('"')
        while True:
            char = yield from reader.peek()
            if (yield from _quote(reader, char)):
                if (yield from self._goes_on()):
                    break
                self._write('\\"')
            elif not isinstance(char, str):
                raise Malformed("a string without an end")
            elif text := reader.span(_TEXT_RUN):
                self._write(json.dumps(text, ensure_ascii=False)[1:-1])
            else:
                reader.take()
                self._write(char)
        self._write('"')

    def _bare(self, kinds: frozenset[str]) -> Parsing[None]:
        """Read a value without quotes in front. One that can only be a string may have commas and brackets in it."""
        reader, parts, size = self._reader, list[str](), 0
        while True:
            char = yield from reader.peek()
            if (yield from _quote(reader, char)):
                self._write(json.dumps("".join(parts), ensure_ascii=False))
                return
            if not isinstance(char, str):
                raise Malformed("a value without an end")
            if char in ",}]" and (kinds != _STRING or (yield from self._goes_on())):
                break
            text = reader.span(_BARE_RUN)
            if not text:
                reader.take()
            parts.append(text or char)
            size += len(parts[-1])
            if size > MOST_KEPT:
                raise Malformed("a value that is too long")
        if not (word := "".join(parts).strip()):
            raise Malformed("no value")
        self._write(scalar(word, kinds))

    # -- where a string ends -------------------------------------------------------------------------------------------

    def _goes_on(self) -> Parsing[bool]:
        """Whether the arguments go on here as they do behind a value, or the call ends. Takes nothing."""
        found, size = None, 0
        while found is None and size < LONGEST_LOOK:
            size += 1
            found = self._continued((yield from self._reader.look(size)))
        return bool(found)

    def _continued(self, ahead: tuple[str, Piece | None]) -> bool | None:
        """Decide whether a text, and the mark behind it, continue the arguments. None: more text must come first."""
        text, behind = ahead
        rest, level = text.lstrip(), 0
        while level < len(self._open) and rest[:1] == self._open[-1 - level].closing:
            rest, level = rest[1:].lstrip(), level + 1
        over = level == len(self._open)
        if behind is None and (not rest or (over and CLOSING.startswith(rest) and rest != CLOSING)):
            return None
        if over:
            return rest.startswith(CLOSING) or (not rest and (behind is END or _named(behind, CLOSING)))
        if not rest:
            return behind is END
        if rest[0] != ",":
            return False
        here = self._open[-1 - level]
        if here.closing == "]":
            return True
        key, colon, _ = rest[1:].partition(":")
        if colon:
            declared = here.schema.get("properties")
            return (isinstance(declared, Mapping) and key.strip() in declared) or bool(_IDENTIFIER.fullmatch(key))
        if behind is not None:
            return behind is END
        return None if _KEY.fullmatch(key) else False  # a key may become longer


def _named(piece: Piece | None, name: str) -> bool:
    return isinstance(piece, Mark) and piece.name == name


def _quote(reader: Reader, char: Piece) -> Parsing[bool]:
    """Take the token around strings, or the letters that spell it, if it follows. char: the next one."""
    if isinstance(char, Mark):
        if char.name == QUOTE:
            reader.take()
        return char.name == QUOTE
    if char != "<" or (yield from reader.look(len(QUOTE)))[0] != QUOTE:
        return False
    for _ in QUOTE:
        reader.take()
    return True
