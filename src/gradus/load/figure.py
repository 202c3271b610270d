"""A curve of loads: latency above, and the share or the number of tokens below, over the load."""

import math
from collections.abc import Sequence
from typing import Any

from gradus.course.drawing import GREY, KEPT, NEW, WIDTH, Drawing, axes

LEFT, TOP, HIGH, GAP = 80, 40, 190, 110
Points = list[tuple[float, float]]


def curve(records: Sequence[dict[str, Any]], title: str, by: str) -> str:
    """Draw the loads as SVG: TTFT and TPOT (p99, ms, a logarithmic scale), and output tokens per second.

    by: "users" or "rate", the horizontal axis.
    """
    loads = sorted((one for one in records if one[by]), key=lambda one: float(one[by]))
    across = [float(one[by]) for one in loads]
    drawing = Drawing(title, TOP + 2 * HIGH + GAP + 70)
    words = "users" if by == "users" else "requests per second"
    late = {name: [one[f"{name}_ms"].get("p99") for one in loads] for name in ("ttft", "tpot")}
    values = [value for found in late.values() for value in found if value]
    if values:
        drawing.words(LEFT, TOP - 14, "ms, p99")
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.001))
        place = _place(across, low, high, TOP)
        ticks = [(float(power), f"{10.0**power:g}") for power in range(low, high + 1)]
        axes(drawing, place, _ticks(across), ticks, words)
        for name, color in (("ttft", NEW.fill), ("tpot", KEPT.stroke)):
            points = [(x, math.log10(y)) for x, y in zip(across, late[name], strict=True) if y]
            _line(drawing, [place(*point) for point in points], color, name.upper())
    rates = [float(one["output_tok_s"]) for one in loads]
    top = max(rates, default=1.0) or 1.0
    place = _place(across, 0.0, top, TOP + HIGH + GAP)
    drawing.words(LEFT, TOP + HIGH + GAP - 14, "output tokens per second")
    axes(drawing, place, _ticks(across), [(0.0, "0"), (top, f"{top:,.0f}")], words)
    _line(drawing, [place(x, y) for x, y in zip(across, rates, strict=True)], NEW.fill, "")
    return drawing.svg()


def _place(across: Sequence[float], low: float, high: float, top: float) -> Any:
    left, right = min(across), max(across)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (x - left) / (right - left) if right > left else 0.5
        return LEFT + share * (WIDTH - LEFT - 90), top + HIGH * (1 - (y - low) / ((high - low) or 1.0))

    return place


def _ticks(across: Sequence[float]) -> list[tuple[float, str]]:
    """Label the first and the last load, and those between that have room."""
    found: list[tuple[float, str]] = []
    width = (max(across) - min(across)) or 1.0
    for value in across:
        if not found or (value - found[-1][0]) / width > 0.08:
            found.append((value, f"{value:g}"))
    if found[-1][0] != across[-1]:
        found[-1] = (across[-1], f"{across[-1]:g}")
    return found


def _line(drawing: Drawing, points: Points, color: str, name: str) -> None:
    if not points:
        return
    if len(points) > 1:
        drawing.arrow(*points, head=False, color=color)
    for x, y in points:
        drawing.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>')
    drawing.words(points[-1][0] + 10, points[-1][1] + 5, name, color=GREY)
