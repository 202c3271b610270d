"""The syntaxes of tool calls: each a parser that reads calls behind their opening marker and reports them.

A call is reported with the first piece of its arguments: by then its name is a declared tool's, and what has arrived of
its arguments is the beginning of an object. Until then the text is kept: if it turns out to be no call, it is shown.
After that nothing can be taken back, so a call whose arguments stop being a JSON object ends incomplete, and the text
behind is shown.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping

from gradus.text.tools.events import Event, ToolArguments, ToolEnd, ToolStart
from gradus.text.tools.json_text import copy_string, copy_value
from gradus.text.tools.python_text import copy_literal
from gradus.text.tools.reader import END, MOST_KEPT, Malformed, Mark, Parsing, Reader, read_all
from gradus.text.tools.tool import MAX_NAME, Tool
from gradus.text.tools.typed import is_text, kinds_of, property_schema, typed

LONGEST_KEY = 1024
MAX_CALLS = 128

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_TAG_NAME = re.compile(r"[^<>\n]+")
_ARGUMENTS = ("arguments", "parameters")
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # of a surrogate pair: no text can be encoded with it
_ASIDE = ("type", "id", "call_id")  # members that say nothing new


class Calls:
    """The calls of one answer: what a parser reads from, and where it reports to.

    tools: those that were declared, by name. emit: takes events. started: called before the first event of a call.
    most: calls in one answer; further ones are text.
    """

    def __init__(
        self,
        reader: Reader,
        tools: Mapping[str, Tool],
        ids: Iterator[str],
        emit: Callable[[Event], None],
        started: Callable[[], None],
        most: int = MAX_CALLS,
    ) -> None:
        self.reader = reader
        self._tools = tools
        self._ids = ids
        self._emit = emit
        self._started = started
        self._most = most
        self._count = 0
        self._open = False
        self._beginning: str | None = None  # the name of a call whose arguments have not begun

    def declared(self, name: str) -> Tool:
        """Return the tool of this name. Raises Malformed if there is none: then the text is no call."""
        if name not in self._tools or self._count == self._most:
            raise Malformed("not the name of a tool")
        return self._tools[name]

    def start(self, name: str) -> None:
        """Begin a call of a declared tool. It is reported once its arguments begin."""
        self._beginning = name

    def write(self, arguments: str) -> None:
        if self._beginning is not None:
            self._started()
            self._emit(ToolStart(self._count, next(self._ids), self._beginning))
            self._open, self._beginning = True, None
        self._emit(ToolArguments(self._count, arguments))
        self.reader.forget()

    def end(self, complete: bool = True) -> bool:
        """End the call that is open. Returns whether one was reported."""
        self._beginning = None
        if not self._open:
            return False
        self._emit(ToolEnd(self._count, complete))
        self._open = False
        self._count += 1
        if complete:
            self.reader.forget()
        return True


Syntax = Callable[[Calls], Parsing[None]]
"""Reads the calls behind an opening marker. Raises Malformed where there are none, or no more."""


# -- JSON: {"name": …, "arguments": {…}} -------------------------------------------------------------------------------


def json_object(calls: Calls) -> Parsing[None]:
    """Read one call as a JSON object, its members in any order; "parameters" is another word for "arguments".

    A missing last bracket is forgiven where something else follows: models that are small forget it.
    """
    reader, name, held = calls.reader, None, list[str]()
    started = False
    yield from reader.blanks()
    yield from reader.expect("{")
    while True:
        yield from reader.blanks()
        key = yield from reader.string(LONGEST_KEY)
        yield from reader.blanks()
        yield from reader.expect(":")
        char = yield from reader.blanks()
        if key == "name" and name is None:
            name = calls.declared((yield from reader.string(MAX_NAME * 6))).name
            if held:
                started = _release(calls, name, held)
        elif key in _ARGUMENTS and not held and not started:
            if name is not None:
                calls.start(name)
                started = True
            yield from _arguments(reader, char, calls.write if started else held.append)
        elif key in _ASIDE or started:
            yield from copy_value(reader, _ignore)
        else:
            raise Malformed("a member that a call does not have")
        if (yield from _closes(reader, started)):
            break
    if name is None:
        raise Malformed("a call without a name")
    if not started:
        _release(calls, name, ["{}"])
    calls.end()


def _release(calls: Calls, name: str, arguments: list[str]) -> bool:
    """Report a call whose arguments came before its name, or never."""
    calls.start(name)
    calls.write("".join(arguments))
    return True


def _arguments(reader: Reader, first: str | Mark, write: Callable[[str], None]) -> Parsing[None]:
    """Read the arguments that begin with this character, and write the JSON of an object. Writes nothing before it is
    certain that they begin one."""
    if first == "n":
        yield from reader.expect("null")
        write("{}")
    elif first == "{":
        yield from copy_value(reader, write)
    elif first == '"':
        write((yield from _object_in_string(reader)))
    else:
        raise Malformed("arguments that are no object")


def _object_in_string(reader: Reader) -> Parsing[str]:
    """Read a JSON string that holds the JSON of an object, as OpenAI's protocol and some models write arguments.

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


def _ignore(text: str) -> None:
    """Drop a value that is read only to get behind it."""


def _closes(reader: Reader, started: bool) -> Parsing[bool]:
    """Read the comma before another member, or the closing bracket. Returns whether the object is closed."""
    char = yield from reader.blanks()
    if char == ",":
        reader.take()
        return False
    if char == "}":
        reader.take()
    elif not started or (isinstance(char, str) and char != "<"):
        raise Malformed("an object without an end")
    return True


def json_in_tags(closing: str) -> Syntax:
    """Hermes: one or more JSON objects, then the closing marker. A marker that is missing is forgiven."""

    def read(calls: Calls) -> Parsing[None]:
        while True:
            yield from json_object(calls)
            if (yield from calls.reader.blanks()) != "{":
                break
        yield from closed(calls.reader, closing)

    return read


def closed(reader: Reader, closing: str) -> Parsing[None]:
    """Take the closing marker and drop it; anything else stays."""
    yield from reader.blanks()
    if (yield from reader.marker((closing,))):
        reader.forget()


def bare_json(calls: Calls) -> Parsing[None]:
    """Llama 3: JSON objects that begin the answer, with semicolons, commas or nothing between them."""
    while True:
        yield from json_object(calls)
        char = yield from calls.reader.blanks()
        if char == ";" or char == ",":
            calls.reader.take()
            char = yield from calls.reader.blanks()
        if char != "{":
            return


def json_fence(calls: Calls) -> Parsing[None]:
    """Qwen2.5-Coder: JSON objects in a fence of Markdown whose opening line has been read."""
    yield from bare_json(calls)
    if (yield from calls.reader.match(("```",))):
        calls.reader.forget()


# -- Mistral -----------------------------------------------------------------------------------------------------------


def mistral(calls: Calls) -> Parsing[None]:
    """Read `[{"name": …, "arguments": {…}}, …]`, or from version 11 on `name[ARGS]{…}`."""
    char = yield from calls.reader.blanks()
    if char == "[":
        calls.reader.take()
        yield from _json_list(calls)
    else:
        yield from _name_and_arguments(calls)


def _json_list(calls: Calls) -> Parsing[None]:
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
    name = calls.declared((yield from reader.word(_NAME, MAX_NAME))).name
    yield from reader.blanks()
    if (yield from reader.marker(("[CALL_ID]", "[ARGS]"))) == "[CALL_ID]":
        yield from reader.word(_NAME, MAX_NAME)  # the model's own invention
        yield from reader.marker(("[ARGS]",))
    first = yield from reader.blanks()
    calls.start(name)
    yield from _arguments(reader, first, calls.write)
    calls.end()


# -- XML: <function=name><parameter=key>value</parameter></function> ---------------------------------------------------


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
    write = _ignore if key in seen else calls.write
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


# -- Python: [f(a=1, b="x"), g()] --------------------------------------------------------------------------------------


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
    name = calls.declared((yield from reader.word(_NAME, MAX_NAME))).name
    yield from reader.expect("(")
    seen: set[str] = set()
    while (yield from reader.blanks()) != ")":
        key = yield from reader.word(_NAME, LONGEST_KEY)
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
