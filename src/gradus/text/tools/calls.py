"""The calls of one answer, as the parsers of the syntaxes report them.

A call is reported with the first piece of its arguments: by then its name is a declared tool's, and what has arrived of
its arguments is the beginning of an object. Until then the text is kept: if it turns out to be no call, it is shown.
After that nothing can be taken back, so a call whose arguments stop being a JSON object ends incomplete, and the text
behind is shown.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping

from gradus.text.tools.events import Event, ToolArguments, ToolEnd, ToolStart
from gradus.text.tools.reader import Malformed, Parsing, Reader
from gradus.text.tools.tool import Tool

LONGEST_KEY = 1024
MAX_CALLS = 16  # in one answer, unless configured otherwise
MOST_CALLS = 128  # that can be configured
LONGEST_REPEAT = 1 << 18  # characters of arguments that are compared with the next call's

NAME = re.compile(r"[\w.-]+", re.ASCII)


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
