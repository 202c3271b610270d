"""When requests come. Times are seconds after the start, in order; all follow from the random numbers alone."""

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

Ramp = Literal["linear", "exponential"]


def at_random(count: int, rate: float, random: Random, burstiness: float = 1.0) -> list[float]:
    """Arrivals at `rate` per second with gaps from a gamma distribution; an infinite rate means all at once.

    burstiness: the distribution's shape. 1 is a Poisson process, less comes in bunches, more comes regularly. The
    times are stretched so that the last arrival is due at `count / rate`: each draw then has exactly this rate, and of
    a Poisson process it is the distribution of the arrivals given their number. vLLM's `bench serve` does the same.
    """
    if math.isinf(rate):
        return [0.0] * count
    times = _sums([_gap(random, rate, burstiness) for _ in range(count)])
    stretch = count / rate / times[-1] if count and times[-1] else 1.0
    return [time * stretch for time in times]


def growing(
    count: int, start: float, end: float, how: Ramp, random: Random, burstiness: float = 1.0
) -> list[float]:  # fmt: skip
    """Arrivals whose rate goes from `start` to `end` per second over the requests, by equal steps or equal factors."""
    gaps = []
    for index in range(count):
        progress = index / max(count - 1, 1)
        rate = start + (end - start) * progress if how == "linear" else start * (end / start) ** progress
        gaps.append(_gap(random, rate, burstiness))
    return _sums(gaps)


def in_bursts(count: int, size: int, every: float) -> list[float]:
    """Bursts of `size` requests, one burst every `every` seconds."""
    return [index // size * every for index in range(count)]


def _gap(random: Random, rate: float, burstiness: float) -> float:
    if burstiness == 1:
        return -math.log(1.0 - random.random()) / rate
    return random.gammavariate(burstiness, 1 / (rate * burstiness))


def _sums(gaps: Sequence[float]) -> list[float]:
    times, now = [], 0.0
    for gap in gaps:
        now += gap
        times.append(now)
    return times
