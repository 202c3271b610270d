"""Tokens to text as they arrive: never half a character, never the beginning of a stop string.

Both have to wait, because the next token decides how they go on.
"""

import codecs
from collections.abc import Sequence


class Text:
    """The text of one answer. stops: the first complete one ends the text, just before itself.

    held: text that may be the beginning of a stop string. stop: the string that ended the answer.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = stops
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")  # keeps the bytes of half a character
        self.held = ""
        self.stop: str | None = None

    def take(self, added: bytes) -> str:
        """Add a token's bytes, and return the text that is now certain."""
        text = self.held + self.decoder.decode(added)
        found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in self.stops if stop in text]
        if found:
            _, start, self.stop = min(found)  # the first one to be complete
            self.held = ""
            return text[:start]
        certain = len(text) - beginning(text, self.stops)
        self.held = text[certain:]
        return text[:certain]

    def rest(self) -> str:
        """End the answer: return the text held back."""
        held, self.held = self.held + self.decoder.decode(b"", final=True), ""
        return held


def beginning(text: str, stops: Sequence[str]) -> int:
    """Count the last characters of `text` that may be the beginning of a stop string."""
    sizes = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return max(sizes, default=0)
