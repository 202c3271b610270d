"""An answer's times, and the numbers that a run comes to. The definitions are those of vLLM's `bench serve`.

- **TTFT**, time to first token: from sending the request until the first event with a token.
- **TPOT**, time per output token after the first: (end to end - TTFT) / (tokens - 1). It is a request's mean gap.
- **ITL**, inter-token latency: every gap between two events with tokens. Where an event holds several tokens, they
  share one gap; events that are read together are 0 apart.
- **E2EL**, end-to-end latency: from sending until the answer's last byte.

A request is sent when its bytes are handed to the system, or when its connection is begun if it needs a new one. In an
open load it was *due* before; the difference is the generator's lateness, which must be small for the load to be what
it claims (Schroeder et al. 2006 on open and closed loads; Tene on "coordinated omission").
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradus.bench.statistics import percentile, significant
from gradus.load.objective import Objective

REFUSED = ("429", "503")  # errors by which a server that works says that it has no room
UNFINISHED = "unfinished"  # ended by us, while the answer was on its way
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(slots=True)
class Answer:
    """One answer. Times in seconds by one clock for all processes (CLOCK_MONOTONIC).

    due: when the request should have been sent. sent, first, last: as defined above; first is 0 without a token.
    gaps: between events with tokens. error: "" or its kind: a status such as "503", "timeout", "connection", "stream",
    "short". detail: what the server said. again: seconds after which it wants to be asked again, 0 if it does not say.
    """

    index: int
    due: float
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    events: int = 0
    gaps: "array[float]" = field(default_factory=lambda: array("f"))
    error: str = ""
    detail: str = ""
    again: float = 0.0

    @property
    def ttft(self) -> float:
        return self.first - self.sent

    @property
    def e2el(self) -> float:
        return self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """None for an answer of one token."""
        return (self.e2el - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None


def summary(
    answers: Sequence[Answer], objective: Objective | None = None, percentiles: Sequence[float] = PERCENTILES
) -> dict[str, Any]:
    """Sum a run up. Times in ms; rates per second from the first request sent until the last answer's end.

    good, goodput: the share of all requests that met the objective, and their number per second.
    """
    whole = [answer for answer in answers if not answer.error]
    seconds = seconds_of(answers)
    found: dict[str, Any] = {
        "requests": len(answers),
        "completed": len(whole),
        "refused": sum(answer.error in REFUSED for answer in answers),
        "errors": dict(sorted(Counter(answer.error for answer in answers if answer.error).items())),
        "seconds": significant(seconds, 6),
        "prompt_tokens": sum(answer.prompt_tokens for answer in whole),
        "output_tokens": sum(answer.tokens for answer in whole),
        "requests_s": _per_second(len(whole), seconds),
        "output_tok_s": _per_second(sum(answer.tokens for answer in whole), seconds),
        "total_tok_s": _per_second(sum(answer.tokens + answer.prompt_tokens for answer in whole), seconds),
        "peak_concurrency": peak(answers),
        "late_ms_p99": _percentile([1e3 * (answer.sent - answer.due) for answer in answers], 99),
    }
    for name in METRICS:
        found[f"{name}_ms"] = distribution_ms([1e3 * value for value in _values(whole, name)], percentiles)
    if objective:
        good = sum(map(objective.met, answers))
        found["good"] = significant(good / len(answers)) if answers else 0.0
        found["goodput_s"] = _per_second(good, seconds)
    return found


def seconds_of(answers: Sequence[Answer]) -> float:
    """From the first request sent until the last answer's end."""
    return max((one.last for one in answers), default=0.0) - min((one.sent for one in answers), default=0.0)


def peak(answers: Sequence[Answer]) -> int:
    """The most answers that were under way at one time."""
    steps = sorted([(one.sent, 1) for one in answers] + [(one.last, -1) for one in answers])
    most = now = 0
    for _, step in steps:  # at equal times, ends come first
        now += step
        most = max(most, now)
    return most


def distribution_ms(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles, as {"mean": …, "p50": …}; {} for no values."""
    if not values:
        return {}
    return {"mean": significant(sum(values) / len(values))} | {
        f"p{share:g}": significant(percentile(values, share)) for share in percentiles
    }


def _values(answers: Sequence[Answer], name: str) -> Iterator[float]:
    for answer in answers:
        if name == "itl":
            yield from answer.gaps
        elif (value := getattr(answer, name)) is not None:
            yield value


def _percentile(values: Sequence[float], share: float) -> float:
    return significant(percentile(values, share)) if values else 0.0


def _per_second(count: int, seconds: float) -> float:
    return significant(count / seconds) if seconds > 0 else 0.0
