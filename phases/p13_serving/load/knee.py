"""The highest rate that a server keeps an objective at, found with probes that are noisy and sometimes invalid.

    find(probe, limit=0.2, low=1.0, high=64.0)

A probe sends an open load at a rate, and returns one `Point`. Two things make it lie. Few requests decide a p99, so
that a rate near the limit passes once and fails once. And a client that sends late has sent another load than asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LATE = 0.1  # of the limit: the lateness from which a point is about the client
MOST_PROBES = 40


class LateClient(RuntimeError):
    """The client could not send at this rate, so nothing is known of the server."""


@dataclass(frozen=True, slots=True)
class Point:
    """p99: of the time to the first token. late: the client's lateness, p99. Both in seconds."""

    rate: float
    p99: float
    late: float = 0.0


Probe = Callable[[float], Point]


def valid(point: Point, limit: float) -> bool:
    """Whether the client kept its times well enough for this limit."""
    return point.late <= LATE * limit


def kept(points: Sequence[Point], limit: float) -> float:
    """The highest rate that passes, of all that lie below the lowest failure; 0 if there is none.

    Points come in any order. Those that are not valid count for nothing.
    """
    known = [point for point in points if valid(point, limit)]
    failed = min((point.rate for point in known if point.p99 > limit), default=float("inf"))
    return max((point.rate for point in known if point.rate < failed), default=0.0)


def passes(probe: Probe, rate: float, limit: float, tries: int) -> bool:
    """Whether most of `tries` probes keep the limit, an odd number. It stops as soon as most of them agree.

    Raises LateClient for a probe that is not valid.
    """
    votes = [0, 0]
    while max(votes) <= tries // 2:
        point = probe(rate)
        if not valid(point, limit):
            raise LateClient(f"at {rate:g} requests/s the client was {point.late:.3f} s late")
        votes[point.p99 <= limit] += 1
    return votes[True] > tries // 2


def find(
    probe: Probe, limit: float, low: float, high: float, precision: float = 0.05, tries: int = 3
) -> float:  # fmt: skip
    """The highest rate that passes between `low` and `high`, within `precision` of the lowest that fails.

    0 if `low` fails already; `high` if that passes. The next rate is the middle of a ratio: 8 lies between 1 and 64.
    """
    if not passes(probe, low, limit, tries):
        return 0.0
    if passes(probe, high, limit, tries):
        return high
    while high > low * (1 + precision):
        middle = (low * high) ** 0.5
        if passes(probe, middle, limit, tries):
            low = middle
        else:
            high = middle
    return low
