"""Needles in a haystack: numbers hidden in a long text, questions about them, and a tail of untouched text.

A needle is one sentence, "The secret number of Oslo is 48213.", behind the end of another. A haystack has one at each
depth, so a question about one city must pass over the others' numbers ("multi-key" in RULER, Hsieh et al. 2024). It is
built of token ids and has an exact length in tokens, whatever the text. Its last TAIL tokens have no needles: their
perplexity is measured. No torch here.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from gradus.errors import ConfigError
from gradus.loading import Tokenizer

DEPTHS = tuple(tenth / 10 for tenth in range(1, 10))
"""The needles' places, as shares of the text before the tail."""
TAIL = 512
"""Tokens at the end whose perplexity is measured."""
ROOM = 64
"""Positions behind the haystack: a question and its answer take at most this many."""
DIGITS = 5
CITIES = (
    "Oslo", "Cairo", "Lima", "Tokyo", "Paris", "Dublin", "Madrid", "Berlin", "Sydney", "Boston", "Vienna", "Moscow",
    "Rome", "London", "Delhi", "Toronto", "Chicago", "Athens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """token_ids: the beginning of the needle's sentence, which the answer completes. answer: the number's tokens."""

    depth: float
    token_ids: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Haystack:
    """A text of exactly `length` - ROOM tokens. tail: its last tokens, which no needle interrupts."""

    length: int
    tail: int
    token_ids: tuple[int, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Hay:
    """A text to hide needles in. name: as reports call it. token_ids: all of it."""

    name: str
    token_ids: Sequence[int]
    digest: str
    tokenizer: Tokenizer

    @classmethod
    def of(cls, name: str, text: str, tokenizer: Tokenizer) -> "Hay":
        """Join each paragraph's lines: a novel's line ends would be a fifth of its tokens."""
        paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
        joined = "\n\n".join(part for part in paragraphs if part)
        digest = hashlib.sha256(joined.encode()).hexdigest()[:16]
        return cls(name, tokenizer.encode(joined, special_tokens=False), digest, tokenizer)

    def haystack(self, length: int, number: int, of: int = 1, tail: int = TAIL) -> Haystack:
        """Make the haystack `number` of `of` of this length. They begin at different places in the text, and each has
        numbers of its own.

        Raises ConfigError if needles and tail leave no text, or if the text is too short.
        """
        random = Random(f"{length} {number}")  # of a text, so that it is the same in every process
        cities = random.sample(CITIES, len(DEPTHS))
        digits = ["".join(random.choice("0123456789") for _ in range(DIGITS)) for _ in DEPTHS]
        needles = [self._encode(f" {_asked(city)}{answer}.") for city, answer in zip(cities, digits, strict=True)]
        needed = length - ROOM - sum(map(len, needles))
        if needed < tail + len(DEPTHS):
            raise ConfigError(
                f"length {length}: needles, question and the last {tail} tokens leave no text between them: give at "
                f"least {length - needed + tail + len(DEPTHS)}"
            )
        if needed > len(self.token_ids):
            raise ConfigError(
                f"{self.name}: has {len(self.token_ids):,} tokens, length {length} needs {needed:,}: give a longer text"
            )
        plain = self._from(number * len(self.token_ids) // of, needed)
        questions = [
            Question(depth, tuple(self._encode(f"\n\n{_asked(city)}")), tuple(self._encode(answer)))
            for depth, city, answer in zip(DEPTHS, cities, digits, strict=True)
        ]
        return Haystack(length, tail, tuple(self._hide(needles, plain, tail)), tuple(questions))

    def _from(self, start: int, count: int) -> list[int]:
        """Take `count` tokens from `start` on; the text's beginning follows its end."""
        return [*self.token_ids[start : start + count], *self.token_ids[: max(0, start + count - len(self.token_ids))]]

    def _hide(self, needles: Sequence[Sequence[int]], plain: Sequence[int], tail: int) -> list[int]:
        """Put each needle at the end of a sentence, the last one before its depth; without one, at the depth."""
        body = len(plain) - tail
        places = [0]
        for depth in DEPTHS:
            wanted = int(depth * body)
            ends = (at for at in range(wanted, places[-1], -1) if self._ends_sentence(plain[at - 1]))
            places.append(next(ends, wanted))
        hidden: list[int] = []
        for (low, high), needle in zip(pairwise(places), needles, strict=True):
            hidden += [*plain[low:high], *needle]
        return [*hidden, *plain[places[-1] :]]

    def _ends_sentence(self, token: int) -> bool:
        return self.tokenizer.token_bytes(token).endswith(b".")

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special_tokens=False)


def _asked(city: str) -> str:
    """A needle up to its number, and the question. It ends with a space, which is a token, as a digit is."""
    return f"The secret number of {city} is "
