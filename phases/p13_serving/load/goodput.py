"""Goodput: requests per second that got what they were promised."""

from collections.abc import Sequence
from dataclasses import dataclass

from phases.p13_serving.load.records import Record


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits in seconds: for the first token, and for each token after it, on average over the request."""

    ttft: float
    tpot: float


def tpot(record: Record) -> float | None:
    """Seconds per token after the first; None without two tokens."""
    if record.first is None or record.last is None or record.tokens < 2:
        return None
    return (record.last - record.first) / (record.tokens - 1)


def met(record: Record, objective: Objective) -> bool:
    """Whether a request got its whole answer, within both limits."""
    if record.failed or record.ttft is None or record.last is None:
        return False
    return record.ttft <= objective.ttft and (tpot(record) or 0.0) <= objective.tpot


def goodput(records: Sequence[Record], objective: Objective, begin: float, end: float) -> tuple[float, float]:
    """Of the requests that were due in [begin, end): those per second that met the objective, and their share.

    The share of no requests is 0.
    """
    due = [record for record in records if begin <= record.at < end]
    good = sum(met(record, objective) for record in due)
    return good / (end - begin), good / len(due) if due else 0.0
