"""The syntaxes of tool calls: each a parser that reads calls behind their opening marker and reports them.

A call is reported with the first piece of its arguments: by then its name is a declared tool's, and what has arrived of
its arguments is the beginning of an object. Until then the text is kept: if it turns out to be no call, it is shown.
After that nothing can be taken back, so a call whose arguments stop being a JSON object ends incomplete, and the text
behind is shown.

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
from collections.abc import Callable, Iterator, Mapping

from gradus.text.tools.events import Event, ToolArguments, ToolEnd, ToolStart
from gradus.text.tools.json_text import copy_string, copy_value, open_braces
from gradus.text.tools.python_text import copy_literal
from gradus.text.tools.reader import END, MOST_KEPT, Malformed, Parsing, Piece, Reader, read_all
from gradus.text.tools.tool import MAX_NAME, Tool
from gradus.text.tools.typed import is_text, kinds_of, property_schema, typed

LONGEST_KEY = 1024
MAX_CALLS = 16  # in one answer, unless configured otherwise
MOST_CALLS = 128  # that can be configured
LONGEST_REPEAT = 1 << 18  # characters of arguments that are compared with the next call's

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_TAG_NAME = re.compile(r"[^<>\n]+")
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


class AnswerOver(Exception):
    """The answer ends here, whatever the model would write next."""


class Calls:
    """The calls of one answer: what a parser reads from, and where it reports to.

    tools: those that were declared, by name. emit: takes events. started: called before the first event of a call.
    most: calls in one answer. count: the calls that have ended.

    `end` raises AnswerOver at the last call, and at one that repeats the call before it: a model that does so goes on.
    A call waits while it equals the beginning of the one before it. So a repetition written alike is never reported.
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
        self.count = 0
        self._tools = tools
        self._ids = ids
        self._emit = emit
        self._started = started
        self._most = most
        self._name: str | None = None  # of the call that has begun and not ended
        self._arguments: list[str] = []  # its arguments so far
        self._size = 0  # in characters
        self._reported = False
        self._last: tuple[str, str] | None = None  # name and arguments of the call before

    def declared(self, name: str) -> Tool:
        """Return the tool of this name. Raises Malformed if there is none: then the text is no call."""
        if name not in self._tools:
            raise Malformed("not the name of a tool")
        return self._tools[name]

    def start(self, name: str) -> None:
        """Begin a call of a declared tool. It is reported once its arguments begin."""
        self._name, self._arguments, self._size = name, [], 0

    def write(self, arguments: str) -> None:
        """Add to the arguments of the call that has begun."""
        waits = not self._reported and self._like_last(arguments)
        if self._size <= LONGEST_REPEAT:
            self._arguments.append(arguments)
        self._size += len(arguments)
        if self._reported:
            self._emit(ToolArguments(self.count, arguments))
        elif not waits:
            self._report()
        if self._reported:
            self.reader.forget()

    def end(self) -> None:
        """End a call whose arguments are whole. Raises AnswerOver if nothing may follow."""
        assert self._name is not None
        this = (self._name, "".join(self._arguments))
        repeated = self._size <= LONGEST_REPEAT and self._last is not None and _same(this, self._last)
        if not (repeated or self._reported):
            self._report()
        if self._reported:
            self._ended(complete=True)
        if repeated or self.count == self._most:
            raise AnswerOver
        self._last = this if self._size <= LONGEST_REPEAT else None
        self._name, self._arguments = None, []
        self.reader.forget()

    def break_off(self, at_end: bool) -> bool:
        """End a call that is not whole. Returns whether it was reported: otherwise it is text.

        at_end: the output ends inside it. Raises AnswerOver if nothing may follow.
        """
        if at_end and self._arguments and not self._reported:
            self._report()  # it waited
        self._name, self._arguments = None, []
        if not self._reported:
            return False
        self._ended(complete=False)
        self._last = None
        if self.count == self._most:
            raise AnswerOver
        return True

    def _like_last(self, more: str) -> bool:
        """Whether the call with these arguments added may still become the one before it."""
        if self._last is None or self._last[0] != self._name:
            return False
        return self._last[1].startswith(more, self._size)

    def _report(self) -> None:
        assert self._name is not None
        self._started()
        self._emit(ToolStart(self.count, next(self._ids), self._name))
        self._emit(ToolArguments(self.count, "".join(self._arguments)))
        self._reported = True

    def _ended(self, complete: bool) -> None:
        self._emit(ToolEnd(self.count, complete))
        self._reported = False
        self.count += 1


def _same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two calls are of one function with equal arguments."""
    return one[0] == other[0] and (one[1] == other[1] or _canonical(one[1]) == _canonical(other[1]))


def _canonical(arguments: str) -> str:
    return json.dumps(json.loads(arguments), sort_keys=True)


Syntax = Callable[[Calls], Parsing[None]]
"""Reads the calls behind an opening marker. Raises Malformed where there are none, or no more."""


# -- JSON: {"name": …, "arguments": {…}} -------------------------------------------------------------------------------


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
        yield from _arguments(self._calls.reader, first, write)
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
            yield from copy_value(reader, _ignore)
        else:
            raise Malformed("a member that a call does not have")
        closed = yield from _closes(reader, closing, found.started)


def _arguments(reader: Reader, first: Piece, write: Callable[[str], None]) -> Parsing[None]:
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


def _ignore(text: str) -> None:
    """Drop a value that is read only to get behind it."""


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
            yield from _json_list(calls)
        else:
            yield from json_object(calls)
        char = yield from reader.blanks()
        if char == ";" or char == ",":
            reader.take()
            char = yield from reader.blanks()
        if char != "{" and char != "[":
            return


def json_fence(calls: Calls) -> Parsing[None]:
    """Read JSON calls in a fence of Markdown whose opening marks have been read. Its language says nothing."""
    reader = calls.reader
    char = yield from reader.peek()
    if isinstance(char, str) and _NAME.match(char):
        yield from reader.word(_NAME, MAX_NAME)
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
