"""Masked answers of a real model: benchmarks/lessons/masks.py has written them. No torch here."""

import json
from dataclasses import dataclass
from pathlib import Path

RECORDING = Path(__file__).parents[5] / "benchmarks" / "lessons" / "masks.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One token of a recorded answer: how many could come, the model's probability for all of them, and two texts."""

    legal: int
    probability: float
    drawn: str
    freely: str

    def __str__(self) -> str:
        return f"{self.legal:6,}  {self.probability:11.3%}  {self.drawn!r:14} {self.freely!r}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer, without the mask in `free` and with it in `text`. ended: its finish reason."""

    prompt: str
    free: str
    text: str
    ended: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        head = f"freely:    {self.free!r}\nwith mask: {self.text!r}\n"
        return "\n".join([head, " legal  probability  drawn          freely", *map(str, self.rows)])


def recorded(name: str) -> Answer:
    """The answer of that name in `benchmarks/lessons/masks.py`."""
    found = json.loads(RECORDING.read_text(encoding="utf-8"))["answers"]
    one = next(each for each in found if each["name"] == name)
    rows = tuple(Row(*row) for row in one["steps"])
    return Answer(one["prompt"], one["free"], one["text"], one["ended"], rows)
