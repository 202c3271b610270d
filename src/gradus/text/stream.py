"""Tokens to text as they come: never half a character, never a piece of a stop string.

Both problems are one: the newest bytes may mean something else once the next ones are known, so they wait. Streamed
and whole answers go through this one path, so they cannot differ.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence


class TextStream:
    """The text of one sequence, decoded token by token.

    token_bytes: what a token adds to the text, as bytes (b"" for a control token). A character may span tokens; bytes
    that can never become one turn into U+FFFD.
    stop: the first of these strings to be complete ends the text just before it; looked for in what follows the
    first `min_tokens` tokens.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self.text = ""
        self.stop_reason: str | None = None
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(stop)
        self._unchecked = min_tokens
        self._held = ""  # decoded, but possibly the beginning of a stop string

    def push(self, tokens: Iterable[int]) -> str:
        """Take new tokens; return the text that is now certain. It ends at a stop string: see `stop_reason`."""
        return self._emit("".join(self._take(token) for token in tokens if self.stop_reason is None))

    def finish(self) -> str:
        """The sequence ended: return what was held back. Bytes of an unfinished character become U+FFFD."""
        if self.stop_reason is not None:
            return ""
        tail = self._take_text(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return self._emit(tail + held)

    def _emit(self, text: str) -> str:
        self.text += text
        return text

    def _take(self, token: int) -> str:
        text = self._decoder.decode(self._token_bytes(token))
        if self._unchecked > 0:
            self._unchecked -= 1
            return text
        return self._take_text(text)

    def _take_text(self, text: str) -> str:
        if not self._stop:
            return text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.stop_reason = min(found)  # complete first: so it does not matter how tokens cut the text
            self._held = ""
            return text[:at]
        keep = longest_beginning(text, self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def longest_beginning(text: str, stops: Iterable[str]) -> int:
    """How many of the last characters of `text` could be the beginning of a stop string."""
    return max(
        (size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])),
        default=0,
    )
