"""What a router gains by following prefixes, and what that costs, by the imbalance that it allows: simulated."""

import math

from gradus.course.drawing import KEPT, NEW, WASTE, Drawing, Kind
from gradus.course.figures.serving import load

LEFT, WIDE, HIGH, TOP, SECOND = 96, 690, 150, 44, 264


def replicas() -> Drawing:
    found = load.routed()
    (_, balanced), (_, followed) = found[0], found[-1]
    bound, best = min(found, key=lambda each: each[1].ttft[1])
    drawing = Drawing(
        f"Two replicas. A router that balances has {balanced.hits:.0%} hits and a p99 of {1e3 * balanced.ttft[1]:,.0f} "
        f"ms, one that follows prefixes {followed.hits:.0%} and {1e3 * followed.ttft[1]:,.0f} ms; with a bound of "
        f"{bound:g} they are {best.hits:.0%} and {1e3 * best.ttft[1]:,.0f} ms",
        SECOND + HIGH + 74,
    )
    drawing.words(0, 18, "prompt tokens found in the cache", bold=True)
    _bars(drawing, TOP, [(each.hits, f"{each.hits:.0%}") for _, each in found], 1.0, KEPT)
    drawing.words(0, SECOND - 26, "p99 of the time to the first token, ms", bold=True)
    late = [1e3 * each.ttft[1] for _, each in found]
    _bars(drawing, SECOND, [(ms, f"{ms:,.0f}") for ms in late], max(late), NEW)
    for place, (allowed, each) in enumerate(found):
        x, y = LEFT + WIDE * (place + 0.4) / len(found), SECOND + HIGH + 22
        drawing.words(x, y, {-1.0: "never", math.inf: "always"}.get(allowed, f"{allowed:g}"), size=16, anchor="middle")
        if each is best:
            drawing.rectangle(x - 26, y - 17, 52, 23, Kind("none", WASTE.stroke, WASTE.stroke))
    drawing.words(
        LEFT,
        SECOND + HIGH + 56,
        "Follow a prefix, up to this imbalance of requests inside",
    )
    return drawing


def _bars(drawing: Drawing, top: float, values: list[tuple[float, str]], most: float, kind: Kind) -> None:
    drawing.arrow((LEFT - 8, top + HIGH), (LEFT + WIDE, top + HIGH), head=False)
    for place, (value, word) in enumerate(values):
        x, high = LEFT + WIDE * place / len(values), (HIGH - 24) * value / most
        drawing.rectangle(x, top + HIGH - high, 0.8 * WIDE / len(values), high, kind)
        drawing.words(x + 0.4 * WIDE / len(values), top + HIGH - high - 7, word, size=15, anchor="middle")
