"""The same server asked in two ways: by users that wait for their answers, and at random times of their own."""

import math

from gradus.course.drawing import GREY, NEW, WASTE, Drawing, Kind, axes
from gradus.course.figures.serving import load

LEFT, RIGHT, TOP, BOTTOM = 74, 700, 40, 300
DECADES = (10.0, 100.0, 1000.0, 10000.0)


def loops() -> Drawing:
    asked, waited = load.answered("rates"), load.answered("users")
    users = [row["users"] for row in load.recorded()["users"]]
    drawing = Drawing(
        f"p99 of the time to the first token against the requests answered per second: an open loop reaches "
        f"{max(ms for _, ms in asked):,.0f} ms, a closed one with {users[-1]} users {waited[-1][1]:,.0f} ms",
        BOTTOM + 62,
    )
    most = 5 * math.ceil(max(rate for rate, _ in (*asked, *waited)) / 5)

    def place(rate: float, ms: float) -> tuple[float, float]:
        share = math.log10(ms / DECADES[0]) / math.log10(DECADES[-1] / DECADES[0])
        return LEFT + (RIGHT - LEFT) * rate / most, BOTTOM - (BOTTOM - TOP) * share

    drawing.words(0, 18, "p99 of the time to the first token, ms", bold=True)
    across = [(float(rate), f"{rate}") for rate in range(0, most + 1, 5)]
    axes(drawing, place, across, [(ms, f"{ms:,.0f}") for ms in DECADES], "requests answered per second")
    for points, color, dashed in ((asked, WASTE.stroke, False), (waited, NEW.fill, True)):
        drawing.arrow(*(place(*point) for point in points), head=False, dashed=dashed, color=color)
        for point in points:
            x, y = place(*point)
            drawing.rectangle(x - 4.5, y - 4.5, 9, 9, Kind(color, color, GREY), radius=4.5)
    drawing.words(LEFT + 24, TOP + 24, "open: at random times", bold=True, color=WASTE.stroke)
    drawing.words(LEFT + 24, TOP + 48, "closed: users who wait, 1 to 24", bold=True, color=NEW.fill)
    for count, point in zip(users, waited, strict=True):
        if count in (1, 8, 24):
            x, y = place(*point)
            drawing.words(x + 10, y + 22, f"{count} user{'s' * (count > 1)}", size=15, color=NEW.fill)
    return drawing
