"""Calls as tags: <function=name><parameter=key>value</parameter></function>. The schema types their raw values."""

import json
import re
from collections.abc import Callable

from gradus.text.tools.calls import LONGEST_KEY, Calls, Syntax
from gradus.text.tools.reader import END, MOST_KEPT, Malformed, Parsing, Reader, ignore
from gradus.text.tools.syntaxes.typed import is_text, kinds_of, property_schema, typed
from gradus.text.tools.tool import MAX_NAME, Tool

_TAG_NAME = re.compile(r"[^<>\n]+")


def xml_in_tags(closing: str) -> Syntax:
    """Qwen3-Coder: one or more functions in tags, then the closing marker."""

    def read(calls: Calls) -> Parsing[None]:
        tag = None
        while tag != closing:
            yield from calls.reader.blanks()
            if tag is None:
                yield from calls.reader.expect("<function=")
            yield from _function(calls)
            char = yield from calls.reader.blanks()
            if char is END:
                return
            tag = yield from calls.reader.marker((closing, "<function="))
            if tag is None:
                raise Malformed("neither a function nor the closing tag")
        calls.reader.forget()

    return read


def _function(calls: Calls) -> Parsing[None]:
    reader = calls.reader
    tool = calls.declared((yield from reader.word(_TAG_NAME, MAX_NAME)).strip())
    yield from reader.expect(">")
    seen: set[str] = set()
    while (yield from _next_parameter(reader)):
        if not seen:
            calls.start(tool.name)
        yield from _parameter(calls, tool, seen)
    if not seen:
        calls.start(tool.name)
    calls.write("}" if seen else "{}")
    calls.end()


def _next_parameter(reader: Reader) -> Parsing[bool]:
    """Read the tag before a parameter, or the function's end. Returns whether a parameter follows."""
    yield from reader.blanks()
    tag = yield from reader.match(("<parameter=", "</function>"))
    if tag is None:
        raise Malformed("neither a parameter nor the end of the function")
    return tag == "<parameter="


def _parameter(calls: Calls, tool: Tool, seen: set[str]) -> Parsing[None]:
    """Read a parameter's name and value. A name that came before is read and dropped."""
    reader = calls.reader
    key = (yield from reader.word(_TAG_NAME, LONGEST_KEY)).strip()
    yield from reader.expect(">")
    write = ignore if key in seen else calls.write
    write((", " if seen else "{") + json.dumps(key, ensure_ascii=False) + ": ")
    seen.add(key)
    kinds = kinds_of(property_schema(tool.schema, key), tool.schema)
    if is_text(kinds):
        write('"')
        yield from _raw_value(reader, lambda text: write(_quoted(text)))
        write('"')
    else:
        parts: list[str] = []
        yield from _raw_value(reader, parts.append)
        value = typed(text := "".join(parts), kinds)
        write(f'"{_quoted(text)}"' if value is None else value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


_VALUE_RUN = re.compile(r"[^<\n]+")
_VALUE_END = "</parameter>"


def _raw_value(reader: Reader, write: Callable[[str], None]) -> Parsing[None]:
    """Read a raw value and its closing tag. Exactly one line break is dropped on each side: the rest is the value's.

    A value ends at the first closing tag, as it does for the models that write them.
    """
    if (yield from reader.peek()) == "\n":
        reader.take()
    size, newline = 0, ""  # newline: the last character, if it is a line break that may be the last one
    while True:
        char = yield from reader.peek()
        if not isinstance(char, str):
            raise Malformed("a value without an end")
        if text := reader.span(_VALUE_RUN):
            pass
        elif char == "\n":
            reader.take()
            text = "\n"
        elif (text := (yield from _tag_or_text(reader))) == _VALUE_END:
            return
        if newline:
            text = newline + text
        newline = "\n" if text[-1:] == "\n" else ""
        text = text[: len(text) - len(newline)]
        size += len(text)
        if size > MOST_KEPT:
            raise Malformed("a value that is too long")
        if text:
            write(text)


def _tag_or_text(reader: Reader) -> Parsing[str]:
    """Take the closing tag of a value, or the characters that looked like its beginning. Returns what was taken."""
    size = 0
    while size < len(_VALUE_END):
        char = yield from reader.peek()
        if char != _VALUE_END[size]:
            break
        reader.take()
        size += 1
    return _VALUE_END[:size]
