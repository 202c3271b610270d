"""An answer as it arrives: reasoning first, if there is any, then text with calls in it.

    tokens ── Marks ──▶ text and marks ── AnswerParser ──▶ events

One machine reads streamed and whole answers. It sees characters and marks, whatever the pieces they came in.

Models go on calling where they should stop. So an answer is over with its last permitted call, with a call that repeats
the one before, and, if it must be calls, with the first text behind one. Later text is not read, and the front end ends
the sample there (`Ending`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gradus.text.completion import Delta
from gradus.text.tools.calls import MAX_CALLS, AnswerOver, Calls, Syntax
from gradus.text.tools.events import Event, Reasoning, Text, joined
from gradus.text.tools.marks import Marks
from gradus.text.tools.reader import BLANKS, END, Malformed, Mark, Parsing, Piece, Reader
from gradus.text.tools.tool import Tool

MOST_BLANKS = 256  # that wait for what follows them

_BLANK_RUN = re.compile(r"[ \t\r\n]+")
ANY_TEXT = re.compile(r"(?s:.+)")


@dataclass(frozen=True, slots=True)
class Trigger:
    """Where calls begin.

    marker: a token or a text. place: "anywhere", "line" (at the beginning of one), or "start" (of the answer).
    part: the marker is a part of the call's syntax, and left for it.
    """

    marker: str
    syntax: Syntax
    place: str = "anywhere"
    part: bool = False


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The markers around reasoning.

    inside: whether the prompt has opened it: then the answer begins inside. label: a word right behind the opening
    marker that is no thought.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    inside: bool = False
    label: str = ""


class Shown:
    """Text on its way out. Blanks at its end wait: before a call, or at the end of reasoning, they are not shown."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self.blanks = ""
        self._run = 0  # length of the run of blanks at the end, shown or not
        self.last = ""  # the last character; "" at the beginning
        self.empty = True  # nothing but blanks so far

    def say(self, text: str) -> None:
        if not text:
            return
        self.last = text[-1]
        body = text.rstrip(" \t\r\n")
        tail = text[len(body) :]
        self._run = len(tail) + (0 if body else self._run)
        if body:
            self.empty = False
            self._emit(self.blanks + body)
            self.blanks = ""
        self.blanks += tail
        if self._run > MOST_BLANKS:
            self.flush()

    def flush(self) -> None:
        if self.blanks:
            self._emit(self.blanks)
        self.blanks = ""


class AnswerParser:
    """Text and marks of one answer in, events out.

    tools: those that may be called, by name; without any, nothing is a call. ids: of the calls, in their order.
    over: whether the answer is over, although more may come.
    """

    def __init__(
        self,
        triggers: Iterable[Trigger],
        tools: Mapping[str, Tool],
        ids: Iterator[str],
        thoughts: Thoughts | None = None,
        token_markers: Iterable[str] = (),
        most_calls: int = MAX_CALLS,
        only_calls: bool = False,
    ) -> None:
        """token_markers: those that arrive as marks, and are not looked for in the text. most_calls: the last of them
        ends the answer. only_calls: so does text behind a call."""
        self._reader = Reader()
        self._events: list[Event] = []
        by_token = frozenset(token_markers)
        active = tuple(triggers) if tools else ()
        self._by_mark = {trigger.marker: trigger for trigger in active if trigger.marker in by_token}
        self._by_text = [trigger for trigger in active if trigger.marker not in by_token]
        self._first = frozenset(trigger.marker[0] for trigger in self._by_text)
        self._plain = _all_but(self._first)
        self._thoughts = thoughts
        self._thoughts_by_text = thoughts is not None and thoughts.opening not in by_token
        self._text = Shown(lambda text: self._events.append(Text(text)))
        self.thinking = thoughts is not None and thoughts.inside  # whether the output so far ends inside reasoning
        self._after_call = False
        self._calls = Calls(self._reader, tools, ids, self._events.append, self._call_starts, most_calls)
        self._only_calls = only_calls
        self._run = self._answer()
        self._ended = False
        self.over = False

    def feed(self, pieces: Iterable[Piece]) -> list[Event]:
        if not self._ended:
            for piece in pieces:
                self._reader.feed(piece)
        return self._advance()

    def finish(self) -> list[Event]:
        self._reader.end()
        return self._advance()

    def _advance(self) -> list[Event]:
        if not self._ended:
            try:
                self._ended = next(self._run, True) is True
            except AnswerOver:
                self._ended = self.over = True
        found = joined(self._events)
        self._events.clear()
        return found

    # -- the order of an answer ----------------------------------------------------------------------------------------

    def _answer(self) -> Parsing[None]:
        if self._thoughts is not None and (yield from self._reasoning_begins(self._thoughts)):
            yield from self._reasoning(self._thoughts)
        yield from self._content()
        if not self._after_call:
            self._text.flush()

    def _reasoning_begins(self, thoughts: Thoughts) -> Parsing[bool]:
        """Take an opening marker before anything else. A closing one alone closes what the prompt opened: drop it."""
        if thoughts.inside:
            return True
        while (char := (yield from self._reader.peek())) in BLANKS:
            self._say_kept(self._reader.span(_BLANK_RUN))
        if isinstance(char, str) and not (self._thoughts_by_text and char == thoughts.opening[0]):
            return False
        others = self._candidates(char) if isinstance(char, str) else {}
        found = yield from self._reader.marker((thoughts.opening, thoughts.closing, *others))
        if found is None:
            self._say_kept(self._reader.kept)
            return False
        if found in others:
            yield from self._try_calls(others[found])
            return False
        self._reader.forget()
        self._text.blanks = ""
        if found == thoughts.closing:
            yield from self._drop_blanks()
        return found == thoughts.opening

    def _reasoning(self, thoughts: Thoughts) -> Parsing[None]:
        """Read up to the closing marker. Blanks inside the markers and behind them are layout, not thought."""
        reader = self._reader
        self.thinking = True
        thought = Shown(lambda text: self._events.append(Reasoning(text)))
        plain = _all_but(thoughts.closing[0] if self._thoughts_by_text else "")
        yield from self._drop_blanks()
        if thoughts.label and not thoughts.inside:
            yield from self._drop_label(thoughts.label)
        while (char := (yield from reader.peek())) is not END:
            if isinstance(char, Mark):
                reader.take()
                if char.name == thoughts.closing:
                    break
            elif not reader.span(plain) and (yield from reader.match((thoughts.closing,))):
                break
            thought.say(reader.kept)
            reader.forget()
        self.thinking = False
        reader.forget()
        yield from self._drop_blanks()

    def _drop_label(self, label: str) -> Parsing[None]:
        ahead, _ = yield from self._reader.look(len(label) + 1)
        if ahead.rstrip() == label:
            for _ in ahead:
                self._reader.take()
            self._reader.forget()
            yield from self._drop_blanks()

    def _drop_blanks(self) -> Parsing[None]:
        while (yield from self._reader.peek()) in BLANKS:
            self._reader.span(_BLANK_RUN)
            self._reader.forget()

    def _content(self) -> Parsing[None]:
        """Read text, and calls where they begin."""
        reader = self._reader
        while (char := (yield from reader.peek())) is not END:
            if isinstance(char, Mark):
                trigger = self._by_mark.get(char.name)
                if trigger is not None:
                    reader.take()
                    yield from self._try_calls(trigger)
                    continue
                reader.take()
            elif not reader.span(self._plain):
                yield from self._perhaps_calls(char)
                continue
            self._say_kept(reader.kept)

    def _perhaps_calls(self, char: str) -> Parsing[None]:
        """Read a text that begins like a marker."""
        reader = self._reader
        here = self._candidates(char)
        if not here:
            reader.take()
        elif char in here and here[char].part:
            yield from self._try_calls(here[char])
        elif (marker := (yield from reader.match(here))) is not None:
            yield from self._try_calls(here[marker])
        self._say_kept(reader.kept)

    def _candidates(self, char: str) -> dict[str, Trigger]:
        """The triggers that begin with this character and may stand here, by their text."""
        return {each.marker: each for each in self._by_text if each.marker[0] == char and self._in_place(each.place)}

    def _in_place(self, place: str) -> bool:
        match place:
            case "start":
                return self._text.empty
            case "line":
                return self._text.last in ("", "\n")
        return True

    def _try_calls(self, trigger: Trigger) -> Parsing[None]:
        """Read calls. What is none, or is left behind the last one, is shown as text.

        If the output ends inside a call that was reported, nothing is shown: half a number is no text.
        """
        try:
            yield from trigger.syntax(self._calls)
        except Malformed:
            at_end = (yield from self._reader.peek()) is END
            if self._calls.break_off(at_end) and at_end:
                self._reader.forget()
        self._say_kept(self._reader.kept)

    def _call_starts(self) -> None:
        """Drop the blanks before a call."""
        self._text.blanks = ""
        self._after_call = True

    def _say_kept(self, text: str) -> None:
        blank = not text.strip(" \t\r\n")
        if self._only_calls and self._calls.count and not blank:
            raise AnswerOver
        self._text.say(text)
        self._reader.forget()
        self._after_call = self._after_call and blank


def _all_but(characters: Iterable[str]) -> re.Pattern[str]:
    """A run of characters that no marker begins with."""
    listed = "".join(characters)
    return re.compile(f"[^{re.escape(listed)}]+") if listed else ANY_TEXT


class AnswerStream:
    """One sample's tokens in, events out: `push` tokens and `finish`, or `read` deltas.

    thought_tokens: the number of tokens that were reasoning so far, with their markers. They come first.
    over: whether the answer is over, although more tokens may come: they are dropped.
    """

    def __init__(self, marks: Marks, parser: AnswerParser) -> None:
        self.thought_tokens = 0
        self._marks = marks
        self._parser = parser

    @property
    def over(self) -> bool:
        return self._parser.over

    def push(self, tokens: Iterable[int]) -> list[Event]:
        """Take the next tokens, without the stop token at the end. Returns the events that are certain now."""
        events: list[Event] = []
        for token in tokens:
            thought = self._parser.thinking
            events += self._parser.feed(self._marks.push((token,)))
            self.thought_tokens += thought or self._parser.thinking
        return joined(events)

    def finish(self) -> list[Event]:
        """End the answer. Returns the remaining events."""
        return joined([*self._parser.feed(self._marks.finish()), *self._parser.finish()])

    def read(self, delta: Delta) -> list[Event]:
        """Take a delta of the sample: its last one ends the answer."""
        last = delta.completion
        stopped = last is not None and isinstance(last.stop_reason, int)
        events = self.push(delta.token_ids[:-1] if stopped else delta.token_ids)
        return events if last is None else joined([*events, *self.finish()])


class Ending:
    """Finds the token with which a sample's answer is over: called with each token, it says whether that has come.

    It reads what `AnswerStream` reads, but not before a token that may begin a call: most answers have none.
    stream: reads the sample from its first token. opens: whether a call may begin with a token.
    """

    def __init__(self, stream: AnswerStream, opens: Callable[[int], bool]) -> None:
        self._stream = stream
        self._opens = opens
        self._unread: list[int] = []
        self._reads = False

    def may_come(self, token: int) -> bool:
        """Whether the end may come with this token or has come: if not, nothing changes but the number of tokens."""
        return self._reads or self._opens(token)

    def __call__(self, token: int) -> bool:
        self._unread.append(token)
        self._reads = self.may_come(token)
        if self._reads:
            self._stream.push(self._unread)
            self._unread.clear()
        return self._stream.over
