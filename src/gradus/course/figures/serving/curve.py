"""Latency against load: lines as the formulas predict them, points as they were measured, and the knee between."""

import math
from collections.abc import Callable, Iterable

from gradus.course.drawing import GREY, NEW, WASTE, Drawing, Kind, Place, axes
from gradus.course.figures.serving import load

LEFT, RIGHT, TOP, HIGH, GAP = 74, 700, 40, 230, 108
DECADES = (10.0, 100.0, 1000.0, 10000.0)
Points = list[tuple[float, float]]


def curve() -> Drawing:
    formulas, knee = load.predicted(), load.knee()
    late = dict(load.opened("ttft", "p99"))
    drawing = Drawing(
        f"Time to the first token and per token against the rate. Up to {knee:.3g} requests/s p99 keeps 200 ms; at "
        f"{max(late):.3g}, above the capacity of {formulas.capacity:.3g}, it is {late[max(late)]:,.0f} ms",
        TOP + 2 * HIGH + GAP + 92,
    )
    most = 5 * math.ceil(max(late) / 5)
    across = [(float(rate), f"{rate}") for rate in range(0, most + 1, 5)]
    upper = _place(most, lambda ms: math.log10(ms / DECADES[0]) / math.log10(DECADES[-1] / DECADES[0]), TOP)
    drawing.words(0, 18, "time to the first token, ms", bold=True)
    axes(drawing, upper, across, [(ms, f"{ms:,.0f}") for ms in DECADES], "requests per second")
    drawing.arrow(upper(knee, DECADES[0]), upper(knee, DECADES[-1]), head=False, dashed=True)
    drawing.words(upper(knee, DECADES[-1])[0] - 8, TOP + 8, f"knee: {knee:.3g}", anchor="end", bold=True)
    for name, share, color, below in (("p99", 0.99, WASTE.stroke, -4), ("p50", 0.5, NEW.fill, 16)):
        line = [(rate, 1e3 * formulas.ttft(rate, share)) for rate in _below(formulas.capacity)]
        _line(drawing, upper, [point for point in line if point[1] <= DECADES[-1]], color)
        _dots(drawing, upper, load.opened("ttft", name), color, name, below)
    lower = _place(most, lambda ms: ms / 30, TOP + HIGH + GAP)
    drawing.words(0, TOP + HIGH + GAP - 22, "time per token, mean, ms", bold=True)
    axes(drawing, lower, across, [(float(ms), f"{ms}") for ms in (0, 10, 20, 30)], "requests per second")
    _line(drawing, lower, [(rate, 1e3 * formulas.tpot(rate)) for rate in (*_below(formulas.capacity), most)], NEW.fill)
    _dots(drawing, lower, load.opened("tpot", "mean"), NEW.fill)
    drawing.words(
        LEFT, TOP + 2 * HIGH + GAP + 82, "Lines: predicted from the times of steps. Points: measured.", bold=True
    )
    return drawing


def _below(capacity: float) -> list[float]:
    return [capacity * part / 200 for part in range(4, 200)]


def _place(most: float, height: Callable[[float], float], top: float) -> Place:
    def place(rate: float, value: float) -> tuple[float, float]:
        return LEFT + (RIGHT - LEFT) * rate / most, top + HIGH * (1 - height(value))

    return place


def _line(drawing: Drawing, place: Place, points: Points, color: str) -> None:
    drawing.arrow(*(place(*point) for point in points), head=False, color=color)


def _dots(
    drawing: Drawing, place: Place, points: Iterable[tuple[float, float]], color: str, name: str = "", below: float = 0
) -> None:
    """Draw measured points, the last one with a name."""
    x = y = 0.0
    for point in points:
        x, y = place(*point)
        drawing.rectangle(x - 4.5, y - 4.5, 9, 9, Kind(color, color, GREY), radius=4.5)
    if name:
        drawing.words(x + 12, y + below, name, bold=True, color=color)
