"""The way of two requests through p13's server, recorded by benchmarks/lessons/serving_lesson.py. No torch here."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RECORDING = Path(__file__).parents[5] / "benchmarks" / "lessons" / "serving_lesson.json"
AFTER = 2  # frames of Cy's that the lesson's figure shows


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to the requests of `who`, in milliseconds. where: "client", "event loop" or "engine"."""

    at: float
    until: float
    where: str
    kind: str
    who: tuple[str, ...]


def recorded() -> list[Note]:
    """Return the notes in order of time."""
    return [
        Note(**each | {"who": tuple(each["who"])}) for each in json.loads(RECORDING.read_text(encoding="utf-8"))["way"]
    ]


def begin(notes: list[Note]) -> float:
    """The beginning of the step during which Cy asks; of the asking, if no step was before it."""
    asked = next(note.at for note in notes if note.kind == "sends the request" and note.who == ("Cy",))
    return max((note.at for note in notes if note.kind == "step" and note.at < asked), default=asked)


def window(notes: list[Note]) -> tuple[float, float]:
    """From the step during which Cy asks to the moment when Cy has AFTER frames."""
    read = [note.at for note in notes if note.kind == "reads a frame" and note.who == ("Cy",)]
    return begin(notes), read[AFTER - 1] + 0.3


def crossings(notes: list[Note]) -> Iterator[tuple[str, str, float]]:
    """Where something goes from one lane to another: down to the engine, and up to a client."""
    for note in notes:
        match note.kind:
            case "sends the request":
                yield note.who[0], "event loop", note.at
            case "takes the request":
                yield "event loop", "engine", note.at
            case "reads a frame":
                yield "event loop", note.who[0], note.at
