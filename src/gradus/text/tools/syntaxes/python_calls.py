"""Calls in Python's syntax: [f(a=1, b="x"), g()], or one call a line."""

import json
from collections.abc import Callable

from gradus.text.tools.calls import LONGEST_KEY, NAME, Calls, Syntax
from gradus.text.tools.reader import END, Malformed, Parsing
from gradus.text.tools.syntaxes.json_calls import closed, json_calls, rest_of_list
from gradus.text.tools.syntaxes.python_text import copy_literal
from gradus.text.tools.tool import MAX_NAME


def python_list(calls: Calls) -> Parsing[None]:
    """Read calls in Python's syntax behind the opening bracket of a list, and the closing one."""
    reader = calls.reader
    while True:
        yield from reader.blanks()
        yield from python_call(calls)
        char = yield from reader.blanks()
        if char == ",":
            reader.take()
            char = yield from reader.blanks()
        elif char != "]" and char is not END:
            raise Malformed("neither a comma nor the end of the list")
        if char == "]" or char is END:
            reader.take()
            reader.forget()
            return


def python_fence(calls: Calls) -> Parsing[None]:
    """Gemma 3: a list of calls, or one call a line, in a fence of Markdown whose opening line has been read."""
    yield from _lines(calls, "`")
    if (yield from calls.reader.match(("```",))):
        calls.reader.forget()


def python_in_tags(closing: str) -> Syntax:
    """OLMo 3: one call a line, or calls as JSON, then the closing marker. A marker that is missing is forgiven."""

    def read(calls: Calls) -> Parsing[None]:
        if (yield from calls.reader.blanks()) == "{":
            yield from json_calls(calls)
        else:
            yield from _lines(calls, closing[0], _list)
        yield from closed(calls.reader, closing)

    return read


def _lines(calls: Calls, end: str, in_list: Syntax = python_list) -> Parsing[None]:
    """Read calls and lists of calls, up to a character that begins none of them."""
    reader = calls.reader
    while True:
        if (yield from reader.blanks()) == "[":
            reader.take()
            yield from in_list(calls)
        else:
            yield from python_call(calls)
        char = yield from reader.blanks()
        if not isinstance(char, str) or char == end:
            return


def _list(calls: Calls) -> Parsing[None]:
    """Read a list behind its opening bracket: in Python's syntax, or of JSON calls."""
    if (yield from calls.reader.blanks()) == "{":
        yield from rest_of_list(calls)
    else:
        yield from python_list(calls)


def python_call(calls: Calls) -> Parsing[None]:
    """Read `name(key=value, …)`. Arguments without a name are malformed: which parameter they mean is a guess."""
    reader = calls.reader
    name = calls.declared((yield from reader.word(NAME, MAX_NAME))).name
    yield from reader.expect("(")
    seen: set[str] = set()
    while (yield from reader.blanks()) != ")":
        key = yield from reader.word(NAME, LONGEST_KEY)
        yield from reader.blanks()
        yield from reader.expect("=")
        if key in seen:
            raise Malformed("an argument that came before")
        if not seen:
            calls.start(name)
        yield from copy_literal(reader, _behind((", " if seen else "{") + json.dumps(key) + ": ", calls.write))
        seen.add(key)
        char = yield from reader.blanks()
        if char == ",":
            reader.take()
        elif char != ")":
            raise Malformed("neither a comma nor the end of the call")
    reader.take()
    if not seen:
        calls.start(name)
    calls.write("}" if seen else "{}")
    calls.end()


def _behind(key: str, write: Callable[[str], None]) -> Callable[[str], None]:
    """Write a key together with the first piece of its value: what follows it may be none."""
    before = [key]

    def write_value(text: str) -> None:
        write("".join(before) + text)
        before.clear()

    return write_value
