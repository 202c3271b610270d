"""An answer in messages, each in a channel: OpenAI's harmony format, which gpt-oss writes.

    <|channel|>analysis<|message|>…<|end|>                                                       reasoning
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>    a call
    <|start|>assistant<|channel|>final<|message|>…<|return|>                                          text

The words between <|start|> and <|message|> are a message's header. The prompt ends within the first one, behind
<|start|>assistant. Models also name the function before the channel, as their template does, or in the channel of
reasoning, and leave `json` out: all of that is read as a call. Text outside of messages is text, since the grammar of a
client knows no channels.

The format's markers are tokens of the vocabulary, never text.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from gradus.text.tools.answer import ANY_TEXT, AnswerParser, Shown, Thoughts, Trigger
from gradus.text.tools.calls import MAX_CALLS, AnswerOver, Calls
from gradus.text.tools.events import Reasoning
from gradus.text.tools.reader import END, Malformed, Mark, Parsing, Piece
from gradus.text.tools.syntaxes.json_calls import copy_arguments
from gradus.text.tools.tool import Tool

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END_MESSAGE, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END_MESSAGE, RETURN, CALL)
ASSISTANT = "assistant"
CHANNELS = ("analysis", "commentary", "final")
ANALYSIS = Thoughts(f"{CHANNEL}analysis{MESSAGE}", END_MESSAGE)
ADDRESS = "to=functions."

BETWEEN = "\n\n"  # two messages that are shown as one text
LONGEST_HEADER = 1024  # characters


class ChannelParser(AnswerParser):
    """Text and marks of one answer in, events out; see `AnswerParser`.

    opened: the part of a message that the prompt has written, from <|start|> on. speaking: whether the output so far
    ends inside a message that is shown.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        ids: Iterator[str],
        opened: list[Piece],
        most_calls: int = MAX_CALLS,
        only_calls: bool = False,
    ) -> None:
        super().__init__((), tools, ids, most_calls=most_calls, only_calls=only_calls)
        self.speaking = False
        self._tools = tools
        self._thought = Shown(lambda text: self._events.append(Reasoning(text)))
        self.feed(opened)

    # -- the order of an answer ----------------------------------------------------------------------------------------

    def _answer(self) -> Parsing[None]:
        reader, begins = self._reader, True  # whether a header may begin without a marker
        while (char := (yield from reader.peek())) is not END:
            if isinstance(char, str):
                if begins and (yield from self._is_address(char)):
                    yield from self._message()
                else:
                    reader.span(ANY_TEXT)
                    self._say_kept(reader.kept)
                begins = False
            elif char.name in (CHANNEL, CONSTRAIN, MESSAGE):
                yield from self._message()
                begins = False
            else:
                reader.take()
                begins = yield from self._between_messages(char.name)
        self._flush()

    def _is_address(self, char: str) -> Parsing[bool]:
        """Whether the name of a function follows, which is then called. Takes nothing."""
        if char not in (" ", ADDRESS[0]):
            return False
        ahead, _ = yield from self._reader.look(len(ADDRESS) + 1)
        return ahead.removeprefix(" ").startswith(ADDRESS)

    def _between_messages(self, marker: str) -> Parsing[bool]:
        """Read what begins with a marker outside of messages. Returns whether a header follows."""
        if marker in (RETURN, CALL):
            self._over()
        if marker == START:
            try:
                yield from self._reader.expect(ASSISTANT)
            except Malformed:  # a turn that is not the model's: what follows, it would invent
                self._over()
        self._reader.forget()
        return marker == START

    def _over(self) -> None:
        self._flush()
        raise AnswerOver

    def _flush(self) -> None:
        if not self._after_call:
            self._text.flush()

    # -- one message ---------------------------------------------------------------------------------------------------

    def _message(self) -> Parsing[None]:
        reader = self._reader
        words = yield from self._header()
        if words is None:
            return
        recipient = next((word[3:] for word in words if word.startswith("to=")), "")
        name, thinking = recipient.removeprefix("functions."), "analysis" in words
        if name in self._tools:
            yield from self._try_calls(Trigger(MESSAGE, partial(_call, name)))
            yield from self._body()
            return
        if recipient and not thinking:  # no declared function: like any call that is none, it is shown
            self._say_kept(reader.kept)
            yield from self._body()
            return
        reader.forget()
        self.thinking = thinking
        yield from self._drop_blanks()
        yield from self._body(thinking, BETWEEN)

    def _header(self) -> Parsing[list[str] | None]:
        """Read up to a message, and return the words before it; None if there is no message."""
        reader, text = self._reader, ""
        while len(text) <= LONGEST_HEADER:
            char = yield from reader.peek()
            if isinstance(char, str):
                text += reader.span(ANY_TEXT)
            elif char.name not in (CHANNEL, CONSTRAIN, MESSAGE):
                break
            else:
                reader.take()
                if char.name == MESSAGE:
                    return text.split()
                text += " "
        else:
            self._say_kept(reader.kept)
            return None
        words = text.strip()
        if not words.startswith((*CHANNELS, "to=")) and not any(each.startswith(words) for each in CHANNELS):
            self._say_kept(reader.kept)
        reader.forget()
        return None

    def _body(self, thinking: bool = False, between: str = "") -> Parsing[None]:
        """Read a message up to its end. between: comes before its text, where there is an earlier one."""
        reader, shown = self._reader, self._thought if thinking else self._text
        self.thinking, self.speaking = thinking, not thinking
        between = "" if shown.empty else between
        marker = ""
        while (char := (yield from reader.peek())) is not END:
            if isinstance(char, Mark):
                marker = char.name
                if marker in (START, CHANNEL):
                    break
                reader.take()
                if marker in (END_MESSAGE, RETURN, CALL):
                    break
                continue
            reader.span(ANY_TEXT)
            if thinking:
                shown.say(between + reader.kept)
                reader.forget()
            else:
                self._say_kept(between + reader.kept)
            between = ""
        self.thinking = self.speaking = False
        reader.forget()
        if marker in (RETURN, CALL):
            self._over()


def _call(name: str, calls: Calls) -> Parsing[None]:
    """Read the arguments of a call, behind its header."""
    first = yield from calls.reader.blanks()
    calls.start(name)
    yield from copy_arguments(calls.reader, first, calls.write)
    calls.end()
