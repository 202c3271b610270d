"""Calls in Python's syntax: [f(a=1, b="x"), g()], or one call a line."""

import json
from collections.abc import Callable

from gradus.text.tools.calls import LONGEST_KEY, NAME, Calls
from gradus.text.tools.reader import END, Malformed, Parsing
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
    """Gemma: a list of calls, or one call a line, in a fence of Markdown whose opening line has been read."""
    reader = calls.reader
    while True:
        char = yield from reader.blanks()
        if char == "[":
            reader.take()
            yield from python_list(calls)
        else:
            yield from python_call(calls)
        char = yield from reader.blanks()
        if not isinstance(char, str) or char == "`":
            break
    if (yield from reader.match(("```",))):
        reader.forget()


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
