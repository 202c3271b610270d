"""The numbers that a run comes to. What each latency means, `answer.py` says."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gradus.bench.statistics import percentile, significant
from gradus.load.answer import Answer
from gradus.load.objective import Objective

REFUSED = ("429", "503")  # errors by which a server that works says that it has no room
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
PERCENTILES = (50.0, 90.0, 99.0)


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
    """Return the time from the first request sent until the last answer's end."""
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
