"""The highest rate at which a server keeps an objective, and the knee of a latency curve."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MOST_PROBES = 24


@dataclass(frozen=True, slots=True)
class Search:
    """How a rate is searched.

    share: of the requests that has to meet the objective. seconds, requests: how long and how many are sent at a rate,
    at least, after a `warmup` in seconds that is not counted. factor: between two rates until one passes and one fails.
    precision: the search ends where the lowest failure is within this share above the best. budget: seconds for all.
    """

    share: float = 0.99
    seconds: float = 10.0
    requests: int = 100
    warmup: float = 2.0
    factor: float = 2.0
    precision: float = 0.05
    budget: float = float("inf")


@dataclass(slots=True)
class Found:
    """best: the highest rate that passed, 0 if none did. failed: the lowest that failed above it; None if none did.

    passed: by rate, in the order of the probes. whole: whether `best` and `failed` are as near as was asked for.
    unsent: the rate at which the search ended because requests could not be sent in time.
    """

    best: float = 0.0
    failed: float | None = None
    passed: list[tuple[float, bool]] = field(default_factory=list)
    whole: bool = False
    unsent: float | None = None


def highest_rate(
    probe: Callable[[float], bool | None],
    start: float,
    search: Search,
    *,
    least: float = 0.1,
    most: float = 1e5,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Find the highest rate that passes: grow by the factor until one fails (or shrink until one passes), then bisect.

    probe: whether a rate passes; None if it could not be sent, which ends the search. A probe starts only if
    one as long as the longest yet would end within the budget.
    """
    found, began, longest, rate = Found(), clock(), 0.0, start
    while len(found.passed) < MOST_PROBES and clock() - began + longest <= search.budget:
        before = clock()
        passes = probe(rate)
        if passes is None:
            found.unsent = rate
            break
        longest = max(longest, clock() - before)
        found.passed.append((rate, passes))
        if passes:
            found.best = max(found.best, rate)
        else:
            found.failed = min(found.failed or rate, rate)
        if found.failed is not None and found.failed <= found.best * (1 + search.precision):
            found.whole = True
            break
        rate = _next(found, rate, search.factor)
        if not least <= rate <= most:
            break
    return found


def _next(found: Found, rate: float, factor: float) -> float:
    if found.failed is None:
        return rate * factor
    if not found.best:
        return rate / factor
    return float((found.best * found.failed) ** 0.5)  # the middle of a ratio


def knee(points: Sequence[tuple[float, float]]) -> float | None:
    """The load at which a latency curve turns up: where it lies farthest below the line from its first to its last
    point (Kneedle, Satopää et al. 2011, for a convex and growing curve without smoothing).

    points: (load, latency). None for fewer than four points, or where no point lies a tenth of the box below the line.
    """
    points = sorted(points)
    if len(points) < 4:
        return None
    (left, low), (right, high) = points[0], points[-1]
    if right <= left or high <= low:
        return None
    below = [((x - left) / (right - left) - (y - low) / (high - low), x) for x, y in points]
    depth, where = max(below)
    return where if depth > 0.1 else None
