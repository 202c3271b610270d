"""Text that arrives in pieces, read as if it were all there.

A parser is a generator. It takes characters; where there are none yet, it yields, and goes on when more have come. So
its code has the order of the text, and it cannot depend on how the text was cut: it sees only characters and marks.

The reader keeps what was taken and not yet shown. A parser that meets what it does not expect raises Malformed, and
the kept text is shown as it is. Nothing is read twice, except for the few characters that a parser looks ahead: so the
time is linear in the text.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import TypeVar

from gradus.errors import GradusError

MOST_KEPT = 1 << 20  # characters
DEEPEST = 64  # brackets within brackets
LONGEST_WORD = 512  # characters of a number
LONGEST_PIECE = 1 << 16  # longer ones are cut

Result = TypeVar("Result")
Parsing = Generator[None, None, Result]
"""Yields when more input is needed; returns its result."""

Write = Callable[[str], None]


def ignore(text: str) -> None:
    """Drop a value that is read only to get behind it."""


BLANKS = frozenset(" \t\r\n")
_BLANK_RUN = re.compile(r"[ \t\r\n]+")
WORD = re.compile(r"[-+.\w]+", re.ASCII)
_STRING_RUN = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]+") for quote in "'\""}
HEX = re.compile(r"[0-9A-Fa-f]")


class Malformed(Exception):
    """The text is not what it seemed to become."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A marker that arrived as a token of its own. text: what it adds to the visible text."""

    name: str
    text: str


END = Mark("", "")  # after the last character

Piece = str | Mark


class Reader:
    """Pieces of text, one character or mark at a time."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._chunk = ""
        self._at = 0
        self._ended = False
        self._kept: list[str] = []
        self._kept_size = 0

    # -- input ---------------------------------------------------------------------------------------------------------

    def feed(self, piece: Piece) -> None:
        if isinstance(piece, str):
            self._pieces.extend(piece[at : at + LONGEST_PIECE] for at in range(0, len(piece), LONGEST_PIECE))
        else:
            self._pieces.append(piece)

    def end(self) -> None:
        self._ended = True

    # -- characters and marks ------------------------------------------------------------------------------------------

    def peek(self) -> Parsing[Piece]:
        """Return the next character, mark or END without taking it."""
        while True:
            if self._at < len(self._chunk):
                return self._chunk[self._at]
            if not self._pieces:
                if self._ended:
                    return END
                yield
            elif isinstance(first := self._pieces[0], str):
                self._pieces.popleft()
                self._chunk, self._at = first, 0
            else:
                return first

    def look(self, size: int) -> Parsing[tuple[str, Piece | None]]:
        """Return the next `size` characters without taking them. Fewer come with the mark or END behind them."""
        while True:
            ahead = self._chunk[self._at : self._at + size]
            if len(ahead) == size:
                return ahead, None
            if not self._pieces:
                if self._ended:
                    return ahead, END
                yield
            elif isinstance(first := self._pieces[0], str):
                self._pieces.popleft()
                self._chunk, self._at = ahead + first, 0
            else:
                return ahead, first

    def take(self) -> None:
        """Take what `peek` returned."""
        if self._at < len(self._chunk):
            self._keep(self._chunk[self._at])
            self._at += 1
        elif self._pieces:
            mark = self._pieces.popleft()
            assert isinstance(mark, Mark)
            self._keep(mark.text)

    def span(self, pattern: re.Pattern[str]) -> str:
        """Take the characters at hand that match, after `peek`: perhaps only the first of them that will come."""
        found = pattern.match(self._chunk, self._at)
        if found is None:
            return ""
        self._at = found.end()
        self._keep(found[0])
        return found[0]

    def blanks(self) -> Parsing[Piece]:
        """Take blanks. Returns the character or mark behind them, like `peek`."""
        while (char := (yield from self.peek())) in BLANKS:
            self.span(_BLANK_RUN)
        return char

    def match(self, texts: Collection[str]) -> Parsing[str | None]:
        """Take the text that follows and return it, if it is among `texts`; if not, return None.

        The characters that agreed are taken even then.
        """
        size, left = 0, list(texts)
        while left:
            char = yield from self.peek()
            left = [text for text in left if text[size] == char]
            if left:
                self.take()
                size += 1
                whole = next((text for text in left if len(text) == size), None)
                if whole is not None:
                    return whole
        return None

    def expect(self, text: str) -> Parsing[None]:
        """Take a text. Raises Malformed if it is not there."""
        if (yield from self.match((text,))) is None:
            raise Malformed(f"expected {text!r}")

    def marker(self, names: Collection[str]) -> Parsing[str | None]:
        """Take the marker that follows and return it, like `match`. It may be a token of its own, or text."""
        char = yield from self.peek()
        if isinstance(char, str):
            return (yield from self.match(names))
        if char.name not in names:
            return None
        self.take()
        return char.name

    def word(self, pattern: re.Pattern[str], most: int) -> Parsing[str]:
        """Take a run of characters that each match. Raises Malformed if it is empty, too long or at the end."""
        parts, size = [], 0
        while True:
            char = yield from self.peek()
            part = self.span(pattern) if isinstance(char, str) else ""
            if not part:
                break
            parts.append(part)
            size += len(part)
            if size > most:
                raise Malformed("a word that is too long")
        if not size or char is END:  # at the end of the output, more of it may be missing
            raise Malformed("no word, or half of one")
        return "".join(parts)

    def string(self, most: int) -> Parsing[str]:
        """Take a short JSON string, a key or a name, and return its value. In single quotes it has no escapes."""
        quote = yield from self.peek()
        if quote != '"' and quote != "'":
            raise Malformed("not a string")
        self.take()
        parts, size = [], 0
        while (char := (yield from self.peek())) != quote:
            if not isinstance(char, str) or (char == "\\" and quote == "'"):
                raise Malformed("a string without an end")
            if char == "\\":
                self.take()
                char += escaped if isinstance(escaped := (yield from self.peek()), str) else ""
            part = self.span(_STRING_RUN[quote]) if len(char) == 1 else ""
            if not part:
                self.take()
            parts.append(part or char)
            size += len(parts[-1])
            if size > most:
                raise Malformed("a string that is too long")
        self.take()
        value = "".join(parts)
        try:
            return str(json.loads(f'"{value}"' if quote == '"' else json.dumps(value)))
        except ValueError:
            raise Malformed("not a JSON string") from None

    def hexadecimal(self, digits: int) -> Parsing[str]:
        """Take this many hexadecimal digits."""
        found = ""
        while len(found) < digits:
            char = yield from self.peek()
            if not isinstance(char, str) or not HEX.match(char):
                raise Malformed("not a hexadecimal digit")
            self.take()
            found += char
        return found

    # -- what is not shown yet -----------------------------------------------------------------------------------------

    @property
    def kept(self) -> str:
        """The text that was taken since the last `forget`."""
        return "".join(self._kept)

    def forget(self) -> None:
        """Keep nothing of the text taken so far: it has been shown, or need not be."""
        self._kept.clear()
        self._kept_size = 0

    def _keep(self, text: str) -> None:
        self._kept.append(text)
        self._kept_size += len(text)
        if self._kept_size > MOST_KEPT:
            raise Malformed("too much text that cannot be shown yet")


def read_all(text: str, parse: Callable[[Reader, Write], Parsing[None]]) -> str | None:
    """Run a parser over a whole text. Returns what it wrote, or None if the text is malformed or goes on behind it."""
    reader, written = Reader(), list[str]()
    reader.feed(text + "\n")  # a number ends where something else begins
    reader.end()
    try:
        for _ in parse(reader, written.append):
            raise GradusError("a parser waits for more after the end")
        for _ in reader.blanks():
            pass
    except Malformed:
        return None
    return "".join(written) if next_is_end(reader) else None


def next_is_end(reader: Reader) -> bool:
    try:
        next(reader.peek())
    except StopIteration as stop:
        return stop.value is END
    return False
