"""An answer that is free except for the sentences of a grammar in it: a text with tool calls.

    THOUGHT     reasoning, in which nothing begins. Its closing marker leads to OPEN
    OPEN        the beginning, or right behind a sentence: a text that agrees with the grammar may become a sentence. It
                is free until that is certain. A text that does not agree leads to FREE
    FREE        only a control token begins a sentence
    SENTENCE    the grammar says what may come, until its sentence is complete; then OPEN again
    OVER        behind the only sentence: anything may come, except for the tokens that begin one
    TEXT        free text that the grammar follows, too (`Lazy.whole`). It leads to SENTENCE where the grammar does not
                let the answer end, and back

A sentence that has begun becomes whole. All other text needs no masks: where `masks` is False, the answer can be drawn
like one without a grammar. The grammar follows the sentences alone, so a long text costs it nothing.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from gradus.engine.structured import Lazy
from gradus.structured.matcher import Matcher
from gradus.structured.vocabulary import Row, Vocabulary

LONGEST_BEGINNING = 1024  # bytes of a text that may become a sentence


class Place(Enum):
    THOUGHT, OPEN, FREE, SENTENCE, OVER, TEXT = auto(), auto(), auto(), auto(), auto(), auto()


UNMASKED = frozenset([Place.THOUGHT, Place.OPEN, Place.FREE, Place.TEXT])


class LazyMatcher(Matcher):
    """Follows one answer, and its sentences through the grammar. lazy: where they begin."""

    def __init__(self, inner: Any, vocabulary: Vocabulary, ends: Sequence[int], lazy: Lazy) -> None:
        super().__init__(inner.deep_copy(), vocabulary, ends)
        self._template, self._lazy = inner, lazy
        self._begins = frozenset(vocabulary.controls[text] for text in lazy.tokens if text in vocabulary.controls)
        self._certain = None if lazy.certain is None else re.compile(lazy.certain.encode())
        self._thinks, self._thinks_no_more = (Marker(text, vocabulary) for text in lazy.thoughts or ("", ""))
        self._text = b""  # what may become a sentence or a marker
        if lazy.whole:
            self._go(Place.TEXT if self._inner.is_accepting() else Place.SENTENCE)
        elif lazy.inside:
            self._go(Place.THOUGHT)
        else:
            self._open(may_think=bool(lazy.thoughts))

    @property
    def masks(self) -> bool:
        return self._place not in UNMASKED or self.fault is not None

    def notices(self, token: int) -> bool:
        return self._watched is None or token in self._watched

    # -- moving --------------------------------------------------------------------------------------------------------

    def _accept(self, token: int) -> bool:
        match self._place:
            case Place.SENTENCE:
                self._accept_in_sentence(token)
            case Place.THOUGHT:
                self._accept_in_thought(token)
            case Place.OVER if token in self._begins:
                self._fail(f"token {token} is not legal here")
            case Place.OPEN | Place.FREE if token in self._begins:
                self._open()
                self._go(Place.SENTENCE)
                self._accept_in_sentence(token)
            case Place.OPEN:
                self._accept_in_opening(token)
            case Place.TEXT:
                self._accept_in_text(token)
        return self.fault is None

    def _go(self, place: Place) -> None:
        self._place = place
        self._watched: frozenset[int] | None = None  # the only tokens that matter here; None: all do
        if place is Place.FREE:
            self._watched = self._begins
        elif place is Place.THOUGHT and self._thinks_no_more.token is not None:
            self._watched = frozenset([self._thinks_no_more.token])

    def _open(self, may_think: bool = False) -> None:
        """Begin where a sentence may begin, and reasoning, if it may come first."""
        self._inner, self._text = self._template.deep_copy(), b""
        self._agrees, self._may_think = self._certain is not None, may_think
        self._go(Place.OPEN if self._agrees or may_think else Place.FREE)

    def _accept_in_sentence(self, token: int) -> None:
        if super()._accept(token):
            self._leave_sentence()

    def _leave_sentence(self) -> None:
        """Leave a sentence that is complete."""
        if self._lazy.whole and self._inner.is_accepting():
            self._go(Place.TEXT)
        if self._lazy.whole or not self._inner.is_stopped():
            return
        if self._lazy.several:
            self._open()
        else:
            self._go(Place.OVER if self._begins else Place.FREE)

    def _accept_in_thought(self, token: int) -> None:
        self._text += self._bytes(token)
        if self._thinks_no_more.comes_in(self._text, token):
            self._open()
        self._text = self._text[-len(self._thinks_no_more.text) :]

    def _accept_in_opening(self, token: int) -> None:
        self._text = (self._text + self._bytes(token)).lstrip()
        if not self._text and token not in self._ends:
            return
        if self._may_think and self._thinks.begins(self._text, token):
            self._go(Place.THOUGHT)
            self._text = b""
            return
        self._may_think = self._may_think and self._thinks.may_begin(self._text)
        self._agrees = (
            self._agrees
            and len(self._text) <= LONGEST_BEGINNING
            and token not in self._ends
            and self._is_known(token)
            and self._inner.try_consume_tokens([token]) == 1
        )
        if self._agrees and self._certain is not None and self._certain.search(self._text):
            self._go(Place.SENTENCE)
            self._leave_sentence()
        elif not (self._agrees or self._may_think):
            self._go(Place.FREE)

    def _accept_in_text(self, token: int) -> None:
        """Take a token of free text. One that the grammar refuses, as a control token, is none of a sentence."""
        self._text = (self._text + self._bytes(token))[-4:]
        if not self._is_known(token) or self._inner.try_consume_tokens([token]) != 1:
            self._inner, self._text = self._template.deep_copy(), b""
        elif not (self._inner.is_accepting() or _ends_in_character(self._text)):
            self._go(Place.SENTENCE)

    def _bytes(self, token: int) -> bytes:
        """Decode a token; a control token has its usual spelling."""
        spelling = self._vocabulary.spellings.get(token)
        if spelling is not None:
            return spelling.encode()
        return bytes(self._vocabulary.tokenizer.decode_bytes([token])) if self._is_known(token) else b""

    # -- what is legal -------------------------------------------------------------------------------------------------

    def fill_drafts(self, rows: Row, drafts: Sequence[int]) -> None:
        ahead = self._copied() if drafts else self
        for place in range(1 + len(drafts)):
            if place and not (_allows(rows[place - 1], drafts[place - 1]) and ahead.accept([drafts[place - 1]])):
                rows[place:] = rows[place - 1]
                return
            ahead._fill_here(rows[place])

    def _fill_here(self, row: Row) -> None:
        if self.asks_library:
            super().fill_drafts(row[None], ())
        elif self.fault is not None:
            row[:] = 0
        else:
            row[:] = self._vocabulary.rows_of(self._begins)[1] if self._place is Place.OVER else -1

    def forced(self, limit: int) -> list[int]:
        return super().forced(limit) if self.asks_library else []

    def legal(self, drafts: Sequence[int]) -> list[int]:
        """Cut the drafts before the first that is not legal, and before one that would make text need masks."""
        ahead, found, masks = self._copied(), list[int](), self.masks
        for draft in drafts:
            if ahead.asks_library and not Matcher.legal(ahead, [draft]):
                break
            if not ahead.accept([draft]) or (ahead.masks and not masks):
                break
            found.append(draft)
        return found

    @property
    def accepting(self) -> bool:
        return self.fault is None and (self._place is not Place.SENTENCE or super().accepting)

    def _copied(self) -> "LazyMatcher":
        """Copy the matcher, to look ahead."""
        made = LazyMatcher.__new__(LazyMatcher)
        made.__dict__.update(self.__dict__)
        made._inner = self._inner.deep_copy()
        return made

    # -- for MaskThreads -----------------------------------------------------------------------------------------------

    @property
    def asks_library(self) -> bool:
        return self._place is Place.SENTENCE and super().asks_library

    def in_threads(self, drafts: Sequence[int]) -> bool:
        """A draft may end the sentence, which the library does not know."""
        return self.asks_library and not drafts

    def takes(self, token: int) -> bool:
        """A token may end the sentence, which the library would not report: each is accepted here."""
        return False


class Marker:
    """A text around reasoning: a token of the vocabulary, or letters. "": there is none."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.text, self.token = text.encode(), vocabulary.controls.get(text)

    def comes_in(self, text: bytes, token: int) -> bool:
        """Whether the marker is in a text that ends with this token."""
        return self.text in text if self.token is None else token == self.token

    def begins(self, text: bytes, token: int) -> bool:
        """Whether a text, which this token ends, begins with the marker."""
        return text.startswith(self.text) and (self.token is None or token == self.token)

    def may_begin(self, text: bytes) -> bool:
        """Whether more text may make it begin with the marker."""
        return self.token is None and self.text.startswith(text)


def _ends_in_character(text: bytes) -> bool:
    """Whether a text ends with the first bytes of a character in UTF-8, but not its last one."""
    for count, byte in enumerate(reversed(text), start=1):
        if byte < 0x80 or byte >= 0xC0:
            return count < 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
    return False


def _allows(row: Row, token: int) -> bool:
    return token >= 0 and bool(row[token >> 5] >> (token & 31) & 1)
