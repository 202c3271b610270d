"""How long prompts and answers are, in tokens: always the same, evenly spread, or log-normal as real chats are."""

import math
import re
from dataclasses import dataclass
from random import Random

from gradus.errors import RequestError

_TEXT = re.compile(r"(\d+)(?:-(\d+))?(?:~(\d+)x(\d+(?:\.\d+)?))?")
FORMS = "a number (128), a range (64-256), or a log-normal within a range with its median and factor (16-3000~200x3)"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths from `low` to `high`, both included.

    median: of a log-normal distribution, whose values outside the range become its ends; None: uniform.
    factor: two thirds of a log-normal's lengths are within this factor of the median (one standard deviation).
    """

    low: int
    high: int
    median: int | None = None
    factor: float = 1.0

    def draw(self, random: Random) -> int:
        if self.median is None:
            return self.low + int(random.random() * (self.high - self.low + 1))
        drawn = self.median * math.exp(math.log(self.factor) * _normal(random))
        return max(self.low, min(self.high, round(drawn)))

    @classmethod
    def around(cls, length: int, ratio: float) -> "Lengths":
        """Uniform within `ratio` of a length, as vLLM's `--random-range-ratio`: 100 and 0.2 are 80 to 120."""
        return cls(max(1, math.floor(length * (1 - ratio))), max(1, math.ceil(length * (1 + ratio))))

    @classmethod
    def parse(cls, text: str, option: str) -> "Lengths":
        """Read one of FORMS. Raises RequestError."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise RequestError.of(option, FORMS, text, bare=True)
        low, high, median, factor = found.groups()
        lengths = cls(int(low), int(high or low), None if median is None else int(median), float(factor or 1))
        middle = lengths.low if lengths.median is None else lengths.median
        if not 1 <= lengths.low <= middle <= lengths.high or lengths.factor < 1:
            raise RequestError.of(
                option, "a range from 1 upwards around its median, with a factor from 1", text, bare=True
            )
        return lengths

    def __str__(self) -> str:
        text = str(self.low) if self.low == self.high else f"{self.low}-{self.high}"
        return text if self.median is None else f"{text}~{self.median}x{self.factor:g}"


def _normal(random: Random) -> float:
    """A standard normal number (Box and Muller 1958)."""
    return math.sqrt(-2 * math.log(1.0 - random.random())) * math.cos(2 * math.pi * random.random())
