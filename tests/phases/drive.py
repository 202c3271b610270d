"""Drive an engine by hand, checking its books after every step."""

from collections.abc import Iterable
from dataclasses import dataclass

from gradus.engine.engine import Engine
from gradus.engine.request import Request
from gradus.engine.sequence import Output


@dataclass
class Ending:
    """How one sample ended, and all its tokens."""

    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None


def run(engine: Engine, requests: Iterable[Request]) -> dict[tuple[str, int], Ending]:
    for request in requests:
        engine.submit(request)
    endings: dict[tuple[str, int], Ending] = {}
    while engine.has_work:
        record(endings, step(engine))
    return endings


def step(engine: Engine) -> list[Output]:
    outputs = engine.step()
    engine.scheduler.check()
    return outputs


def record(endings: dict[tuple[str, int], Ending], outputs: Iterable[Output]) -> None:
    for output in outputs:
        ending = endings.setdefault((output.request_id, output.index), Ending())
        assert ending.finish_reason is None, "an output after the end"
        ending.tokens += output.tokens
        ending.finish_reason = output.finish_reason


def parting(prompt: list[int], tokens: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Where an output leaves the right one, in a sentence."""
    if len(tokens) != len(expected):
        return f"after {len(prompt)} prompt tokens {len(expected)} tokens should come, and {len(tokens)} came"
    at = next(i for i, (token, right) in enumerate(zip(tokens, expected, strict=True)) if token != right)
    return (
        f"after {len(prompt)} prompt tokens the output parts from the right one at its token {at + 1}, "
        f"position {len(prompt) + at}: {tokens[at]} instead of {expected[at]}"
    )
