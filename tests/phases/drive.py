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
