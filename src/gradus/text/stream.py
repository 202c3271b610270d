"""Tokens to text as they arrive: never half a character, never a piece of a stop string.

Both problems have one solution: the newest bytes wait, because later bytes may change their meaning. Streamed
and whole answers take this one path, so they cannot differ.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence

from gradus.text.stops import NO_CONTROLS, Controls, StopSearch

Piece = str | bytes
"""A token's contribution to a text: characters, or bytes that are not whole characters by themselves."""


def piece(added: bytes) -> Piece:
    """Decode bytes if they are whole characters."""
    try:
        return added.decode()
    except UnicodeDecodeError:
        return added


class Written(dict[int, bytes | None]):
    """What `write` makes of a token's text and id, by token, each made once; None for tokens that are no whole
    characters by themselves. token_bytes: None without a tokenizer, where all texts are empty."""

    def __init__(self, token_bytes: Callable[[int], Piece] | None, write: Callable[[str, int], bytes]) -> None:
        super().__init__()
        self._token_bytes = token_bytes
        self._write = write

    def __missing__(self, token: int) -> bytes | None:
        try:
            text = "" if self._token_bytes is None else self._token_bytes(token)
        except Exception:  # it happens again in `TextStream`, whose caller deals with it
            return None
        made = self[token] = self._write(text, token) if isinstance(text, str) else None
        return made


class TextStream:
    """The text of one sequence, decoded token by token.

    token_bytes: a token's bytes (none for a control token), or, faster, their `piece`.
    A character may span tokens; bytes that can never become one turn into U+FFFD.
    stop: the first of these strings to be complete ends the text just before it. The search starts after the
    first `min_tokens` tokens. controls: the tokens that a stop string may name by their spelling.
    taken: the number of tokens read so far. The token that completes a stop string is the last.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], Piece],
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        controls: Controls = NO_CONTROLS,
    ) -> None:
        self.taken = 0
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._undecoded = False  # whether the decoder holds bytes of an incomplete character
        self._search = StopSearch(controls.stops(tuple(stop))) if stop else None
        self._spellings = controls.spellings
        self._unchecked = min_tokens
        self._said: list[str] = []

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text."""
        return self._search.reason if self._search is not None else None

    @property
    def text(self) -> str:
        """The text that is certain so far."""
        return "".join(self._said)

    @property
    def simple(self) -> bool:
        """Whether a token of whole characters would make the text longer by just these, at once."""
        return self._search is None and not self._undecoded

    @property
    def held(self) -> str:
        """Decoded text behind the certain one: it may be the beginning of a stop string."""
        return self._search.held if self._search is not None else ""

    def push(self, tokens: Iterable[int]) -> str:
        """Take new tokens; return the text that is now certain. It ends at a stop string (`stop_reason`, `taken`)."""
        new = ""
        for token in tokens:
            if self.stop_reason is not None:
                break
            self.taken += 1
            text = self._token_bytes(token)
            if self._undecoded or isinstance(text, bytes):  # seldom; other text needs no decoder
                text = self._decode(text)
            if self._search is not None:
                text = self._searched(self._search, token, text)
            new += text
        self._said.append(new)
        return new

    def plain(self, token: int) -> str | None:
        """Take a token whose text is certain at once, and return it. None, having taken nothing, for any other."""
        text = self._token_bytes(token)
        if self._undecoded or self._search is not None or isinstance(text, bytes):
            return None
        self.taken += 1
        self._said.append(text)
        return text

    def spelled(self, token: int) -> str:
        """The text of a token of whole characters."""
        return str(self._token_bytes(token))

    def finish(self) -> str:
        """End the sequence, and return the text held back. Bytes of an unfinished character become U+FFFD."""
        if self.stop_reason is not None:
            return ""
        tail = self._decoder.decode(b"", final=True)
        if self._search is not None:
            tail = self._search.take(tail) + self._search.end()
        self._said.append(tail)
        return tail

    def _decode(self, text: Piece) -> str:
        decoded = self._decoder.decode(text.encode() if isinstance(text, str) else text)
        self._undecoded = self._decoder.getstate()[0] != b""
        return decoded

    def _searched(self, search: StopSearch, token: int, text: str) -> str:
        """Search a token's text for stop strings. Returns the characters that are certain."""
        if self._unchecked > 0:
            self._unchecked -= 1
            return text
        certain = search.take(text)
        if search.reason is None and (spelling := self._spellings.get(token)):
            certain += search.name(spelling)
        return certain
