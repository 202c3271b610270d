"""Tokens as text and marks. A marker that is one token of the vocabulary is known by its id, never by its spelling.

The text that is certain lags behind the tokens: bytes wait for the rest of their character, and characters for the rest
of a stop string. So a mark has a place in the text, and is passed on when the text has come so far.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gradus.text.stream import TextStream
from gradus.text.tools.reader import Mark, Piece


class _Placed(NamedTuple):
    mark: Mark
    start: int
    end: int


class Marks:
    """Tokens in, text and marks out, in their order.

    text: decodes the tokens; it may look for stop strings. marks: by token id. The pieces' texts, joined, are what
    `text` says, whatever the marks.
    """

    def __init__(self, text: TextStream, marks: Mapping[int, Mark]) -> None:
        self._text = text
        self._marks = marks
        self._placed: deque[_Placed] = deque()  # not passed on yet
        self._waiting = ""  # certain text, not passed on yet: the beginning of a mark's
        self._passed = 0  # characters passed on

    def push(self, tokens: Iterable[int]) -> list[Piece]:
        pieces: list[Piece] = []
        for token in tokens:
            self._waiting += self._text.push((token,))
            mark = self._marks.get(token)
            if mark is not None and self._text.stop_reason is None:
                end = self._passed + len(self._waiting) + len(self._text.held)
                self._placed.append(_Placed(mark, end - len(mark.text), end))
            pieces += self._certain()
        return pieces

    def finish(self) -> list[Piece]:
        """End the text, and pass on what waited. A mark that a stop string cut off is text."""
        self._waiting += self._text.finish()
        pieces = self._certain()
        rest, self._waiting = self._waiting, ""
        return [*pieces, rest] if rest else pieces

    def _certain(self) -> list[Piece]:
        pieces: list[Piece] = []
        while self._placed and self._placed[0].end <= self._passed + len(self._waiting):
            mark, start, end = self._placed.popleft()
            pieces += self._pass(start - self._passed)
            self._pass(end - start)
            pieces.append(mark)
        until = self._placed[0].start - self._passed if self._placed else len(self._waiting)
        return pieces + self._pass(until)

    def _pass(self, size: int) -> list[Piece]:
        passed, self._waiting = self._waiting[:size], self._waiting[size:]
        self._passed += len(passed)
        return [passed] if passed else []
