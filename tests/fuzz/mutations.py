"""Random changes of a JSON body: other types and sizes anywhere, parts of other bodies, and bytes that are no JSON."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.bodies import SEEDS

Place = tuple[Any, Any]  # a list or an object, and where in it

ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 128, 1.5, -0.0, 1e308, 5e-324, -1e-300, 2**31 - 1, 2**31, 2**32, 2**53 + 1,
    2**63 - 1, 2**63, 2**64, 10**30, -(2**63) - 1, "", " ", "x", "ß\x00\x7f", "\ud800", "<|im_start|>", "a" * 3000,
    "[" * 300, [], [[]], [None], [1, "x"], {}, {"a": []}, {"type": "text"}, {"type": []}, {"": {"": {}}},
    [0] * 700, [{}] * 40, {str(number): 1 for number in range(60)}, float("nan"), float("inf"),
]  # fmt: skip
DEEP: list[Any] = [0]
for _ in range(70):
    DEEP = [DEEP]


def places(value: Any) -> Iterator[Place]:
    """Yield every place of a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for at, inner in list(items):
        yield value, at
        yield from places(inner)


def mutated(draw: random.Random) -> tuple[str, bytes]:
    """Return a route and a body for it: a seed with one to four changes."""
    path, seed = draw.choice(SEEDS)
    body = copy.deepcopy(seed)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        found = list(places(body))
        if found:
            change(draw, *draw.choice(found))
    written = json.dumps(body).encode("utf-8", "surrogatepass")
    return path, damaged(draw, written) if draw.random() < 0.04 else written


def change(draw: random.Random, inside: Any, at: Any) -> None:
    """Change one place."""
    match draw.randrange(8):
        case 0 | 1 | 2:
            inside[at] = copy.deepcopy(draw.choice([*ODD, DEEP]))
        case 3:
            del inside[at]
        case 4:
            other, there = draw.choice(list(places(draw.choice(SEEDS)[1])))
            inside[at] = copy.deepcopy(other[there])
        case 5 if isinstance(inside, dict):
            other, there = draw.choice(
                [place for _, seed in SEEDS for place in places(seed) if isinstance(place[1], str)]
            )
            inside[there] = copy.deepcopy(other[there])
        case 5:
            inside[at:at] = [inside[at]] * draw.choice((1, 3, 200))
        case 6:
            inside[at] = draw.choice(([inside[at]], {"type": inside[at]}, {"a": inside[at]}))
        case 7:
            inside[at] = edited(draw, inside[at])


def edited(draw: random.Random, value: Any) -> Any:
    """Edit a value a little."""
    if isinstance(value, str):
        cut = draw.randint(0, len(value))
        return value[:cut] + draw.choice(("", '"', "\\", "{", "\n", "\U0001f600", "​", "<|im_end|>")) + value[cut:]
    if isinstance(value, int | float):
        return draw.choice((value + 1, -value, value * 1000, float(value), str(value)))
    return [value, value]


def damaged(draw: random.Random, written: bytes) -> bytes:
    """Change bytes, or cut them off."""
    at = draw.randrange(len(written) + 1)
    return draw.choice(
        (
            written[:at],
            written[:at] + bytes([draw.randrange(256)]) + written[at + 1 :],
            written * 2,
            b"\xef\xbb\xbf" + written,
        )
    )
