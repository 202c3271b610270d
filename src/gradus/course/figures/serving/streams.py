"""Tokens per second and times to the first token of p13's server, by the number of streams."""

import math

from gradus.course.drawing import NEW, WASTE, Drawing, Kind, Place, axes
from gradus.course.figures.serving.recorded import streams as recorded

BOTTOM, TOP = 262, 44


def streams() -> Drawing:
    served, alone = recorded("rate"), recorded("alone")
    half, whole = recorded("ttft_p50"), recorded("ttft_p99")
    said = ", ".join(f"{rate:,.0f} with {count}" for count, rate in served)
    drawing = Drawing(f"Tokens per second of the server by streams: {said}; without it up to {alone[-1][1]:,.0f}", 330)
    drawing.words(0, 18, "tokens per second", bold=True)
    drawing.words(430, 18, "time to the first token, ms", bold=True)
    rates = _panel(drawing, 62, 370, [count for count, _ in served], max(rate for _, rate in alone))
    times = _panel(drawing, 486, 794, [count for count, _ in served], max(ms for _, ms in whole))
    _line(drawing, rates, alone, WASTE.stroke, "engine alone", (-8, -12), "end")
    _line(drawing, rates, served, NEW.fill, "served", (8, 30), "start")
    _line(drawing, times, whole, WASTE.stroke, "p99", (-10, -12), "end")
    _line(drawing, times, half, NEW.fill, "p50", (10, 24), "start")
    return drawing


def _panel(drawing: Drawing, left: float, right: float, counts: list[int], most: float) -> Place:
    last, ceiling = math.log2(counts[-1]), _ceiling(most)

    def place(count: float, value: float) -> tuple[float, float]:
        return left + (right - left) * math.log2(count) / last, BOTTOM - (BOTTOM - TOP) * value / ceiling

    across = [(float(count), str(count)) for count in counts]
    axes(drawing, place, across, [(ceiling * part / 4, f"{ceiling * part / 4:,.0f}") for part in range(5)], "streams")
    return place


def _ceiling(most: float) -> float:
    """The smallest round number that is not below `most`, and whose quarters are round as well."""
    power = 10.0 ** math.floor(math.log10(most))
    return next(factor * power for factor in (1, 1.2, 1.6, 2, 4, 8, 10) if factor * power >= most)


def _line(
    drawing: Drawing,
    place: Place,
    points: list[tuple[int, float]],
    color: str,
    name: str,
    aside: tuple[float, float],
    anchor: str,
) -> None:
    """Draw the points, joined, with their name next to the last but one."""
    places = [place(count, value) for count, value in points]
    drawing.arrow(*places, head=False, color=color)
    for x, y in places:
        drawing.rectangle(x - 4, y - 4, 8, 8, Kind(color, color, color), radius=4)
    x, y = places[-2]
    drawing.words(x + aside[0], y + aside[1], name, anchor=anchor, bold=True, color=color)
