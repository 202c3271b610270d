"""Tokens to text as they arrive: never half a character, never the beginning of a stop string.

In both cases the newest part has to wait, because the next token may change its meaning.
"""

import codecs
from collections.abc import Sequence


class Text:
    """The text of one answer. stops: the first of these strings to be complete ends it, just before the string.

    held: text that may be the beginning of a stop string. stop: the string that has ended the answer.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = stops
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")  # keeps the bytes of half a character
        self.held = ""
        self.stop: str | None = None

    def take(self, added: bytes) -> str:
        """Add a token's bytes, and return the text that is certain now."""
        text = self.held + self.decoder.decode(added)
        found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in self.stops if stop in text]
        if found:
            _, start, self.stop = min(found)  # the one that is complete first
            self.held = ""
            return text[:start]
        certain = len(text) - beginning(text, self.stops)
        self.held = text[certain:]
        return text[:certain]

    def rest(self) -> str:
        """The answer ends here: return what was held back."""
        held, self.held = self.held + self.decoder.decode(b"", final=True), ""
        return held


def beginning(text: str, stops: Sequence[str]) -> int:
    """Count the last characters of `text` that may be the beginning of a stop string."""
    sizes = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return max(sizes, default=0)
