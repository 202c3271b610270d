"""Stop strings, found in text that arrives in pieces: one step per character, whatever the strings.

Each string remembers how many of its characters the text ends with. When the next character does not agree, a failure
function says how many of them still fit (Knuth, Morris and Pratt 1977), so no character of the text is read twice.

Control tokens add nothing to an answer's text, yet users name them by their spelling: `stop: ["<|im_end|>"]`. A string
that holds such a spelling is therefore searched for in the *spelled* text, in which control tokens have their names:

    tokens      "Hi"  <|im_end|>  "\\n"
    text        "Hi"              "\\n"      all strings are searched for here, letter by letter
    spelled     "Hi"  "<|im_end|>"  "\\n"    and "<|im_end|>\\n" here
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gradus.loading import Tokenizer


class StopString(NamedTuple):
    """A string, ready to be searched for.

    failure: by the number of its characters that agreed, the number that may still agree if the next one does not.
    named: it holds a control token's spelling.
    """

    text: str
    failure: Sequence[int]
    named: bool


class Controls:
    """The control tokens of a model.

    spellings: by token id. stops: stop strings prepared for a search; the last requests' are kept, because all samples
    of a request share theirs.
    """

    def __init__(self, spellings: Mapping[int, str]) -> None:
        self.spellings = spellings
        self._names = tuple(spellings.values())
        self.stops: Callable[[tuple[str, ...]], tuple[StopString, ...]] = functools.lru_cache(maxsize=64)(self._prepare)

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> "Controls":
        spelled = {token: tokenizer.decode([token], skip_special=False) for token in tokenizer.special_token_ids}
        return cls({token: name for token, name in spelled.items() if name})

    def _prepare(self, strings: tuple[str, ...]) -> tuple[StopString, ...]:
        return tuple(StopString(text, failures(text), any(name in text for name in self._names)) for text in strings)


NO_CONTROLS = Controls({})


def failures(text: str) -> Sequence[int]:
    """Return the failure function: for each size, the length of the longest beginning of `text`, shorter than `size`,
    with which its first `size` characters end."""
    found, size = [0, 0], 0
    for char in text[1:]:
        while size and text[size] != char:
            size = found[size]
        size += text[size] == char
        found.append(size)
    return found


class StopSearch:
    """The search for stop strings in one text.

    reason: the string that was completed first; the longest one if several were completed at once.
    held: text behind what was returned: it may be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[StopString]) -> None:
        self.reason: str | None = None
        self.held = ""
        self._stops = stops
        self._sizes = [0] * len(stops)  # how many characters of each string the text ends with
        self._longest = max((len(stop.text) for stop in stops if stop.named), default=0)
        self._shown = bytearray()  # whether each of the last spelled characters is in the text; for named strings alone

    def take(self, text: str) -> str:
        """Take more text. Returns what is certain; it ends before a stop string, and nothing may come after that."""
        return self._take(text, shown=True)

    def name(self, spelling: str) -> str:
        """Take a control token, which adds nothing to the text. Returns the text that is certain now."""
        return self._take(spelling, shown=False)

    def end(self) -> str:
        """End the text, and return what was held back."""
        held, self.held = self.held, ""
        return held

    def _take(self, text: str, shown: bool) -> str:
        found: tuple[int, int, int] | None = None  # end in `text`, beginning, and index of a string
        for index, stop in enumerate(self._stops):
            if (shown or stop.named) and (end := self._advance(index, text)):
                begins = (end if shown else 0) - self._visible(stop, len(stop.text), bytes([shown]) * end)
                found = min(found or (end, begins, index), (end, begins, index))
        known, held = self.held + (text if shown else ""), self.held
        if found is not None:
            self.reason, self.held = self._stops[found[2]].text, ""
            return known[: len(held) + found[1]]
        sizes: Iterable[int] = self._sizes
        if self._longest:
            self._shown = (self._shown + bytes([shown]) * len(text))[-self._longest :]
            sizes = (self._visible(stop, size) for stop, size in zip(self._stops, self._sizes, strict=True))
        keep = max(sizes)
        self.held = known[len(known) - keep :]
        return known[: len(known) - keep]

    def _advance(self, index: int, text: str) -> int:
        """Search more text for a string. Returns the number of characters up to its end, or 0 if it is not complete."""
        stop, failure, _ = self._stops[index]
        size = self._sizes[index]
        start = 0 if size else text.find(stop[0])  # most text holds no beginning of a stop string
        if start < 0:
            return 0
        for place in range(start, len(text)):
            char = text[place]
            while size and stop[size] != char:
                size = failure[size]
            size += stop[size] == char
            if size == len(stop):
                return place + 1
        self._sizes[index] = size
        return 0

    def _visible(self, stop: StopString, size: int, newest: bytes = b"") -> int:
        """Count the characters of the text among the last `size` ones that a string was compared with.

        newest: flags that `_shown` lacks so far.
        """
        if not stop.named:
            return size
        flags = self._shown + newest
        return flags[len(flags) - size :].count(1)
