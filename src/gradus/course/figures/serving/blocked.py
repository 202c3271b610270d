"""The gaps of three streams while a long prompt is encoded in p13's server, by where that is done."""

import math

from gradus.course.drawing import KEPT, NEW, WASTE, Drawing
from gradus.course.figures.serving.recorded import blocked as recorded

LEFT, RIGHT, ROW, FLOOR, MOST = 8, 794, 96, 1.0, 400.0
KINDS = (WASTE, KEPT, NEW)


def blocked() -> Drawing:
    found = recorded()
    longest = {where: max(gap for _, gap in points) for where, points in found.items()}
    said = ", ".join(f"{gap:,.0f} ms {where}" for where, gap in longest.items())
    drawing = Drawing(f"The longest gap of three streams while a long prompt is encoded: {said}", 3 * ROW + 62)
    end = max(at for points in found.values() for at, _ in points)
    for row, (where, points) in enumerate(found.items()):
        bottom = (row + 1) * ROW
        drawing.words(LEFT, bottom - ROW + 24, f"encoded {where}: at most {longest[where]:,.0f} ms", bold=True)
        for at, gap in points:
            x = LEFT + (RIGHT - LEFT) * at / end
            height = max(1.0, 58 * math.log10(max(gap, FLOOR)) / math.log10(MOST))
            drawing.rectangle(x, bottom - height, 3, height, KINDS[row], radius=0)
        drawing.arrow((LEFT, bottom), (RIGHT, bottom), head=False)
    for tenth in range(0, int(10 * end) + 1, 2):
        x = LEFT + (RIGHT - LEFT) * tenth / 10 / end
        drawing.arrow((x, 3 * ROW), (x, 3 * ROW + 5), head=False)
        if x < RIGHT - 30:
            anchor, unit = ("middle", " s") if tenth else ("start", "")
            drawing.words(x, 3 * ROW + 22, f"{tenth / 10:g}{unit}", size=15, anchor=anchor)
    drawing.words(LEFT, 3 * ROW + 52, "Bars: the longest gap in each hundredth of a second, on a logarithmic scale.")
    return drawing
