"""Two requests on their way through p13's server: who is at work when, on one axis of time."""

import math

from gradus.course.drawing import BOX, KEPT, NEW, WASTE, WIDTH, Drawing
from gradus.course.figures.timeline import round_step
from gradus.course.xray.lanes.way import crossings, recorded, window

LEFT, RIGHT = 112, WIDTH - 4
LANES = {"Ann": 44, "Cy": 100, "event loop": 156, "engine": 212}


def way() -> Drawing:
    notes = recorded()
    start, end = window(notes)
    scale = (RIGHT - LEFT) / (end - start)
    shown = [note for note in notes if note.until >= start and note.at <= end]
    drawing = Drawing(f"Ann's answer streams and Cy asks: {end - start:.1f} ms of clients, event loop and engine", 372)
    for name, y in LANES.items():
        drawing.words(0, y + 5, name, bold=True)
        drawing.arrow((LEFT, y), (RIGHT, y), head=False)

    def place(at: float) -> float:
        return LEFT + scale * (min(max(at, start), end) - start)

    for note in shown:
        if note.where != "client":
            y = LANES[note.where]
            kind = {"step": NEW if "Cy" in note.who else KEPT, "turns tokens into text": BOX}.get(note.kind, WASTE)
            drawing.rectangle(place(note.at), y - 13, max(3.0, place(note.until) - place(note.at)), 26, kind, radius=1)
    for from_lane, to_lane, at in crossings(shown):
        below, above = LANES[from_lane], LANES[to_lane]
        down = above > below
        drawing.arrow((place(at), below + (14 if down else -14)), (place(at), above + (-15 if down else 15)))
    _axis(drawing, 246, start, end)
    drawing.legend(306, [(KEPT, "a step for Ann"), (NEW, "a step for Ann and Cy"), (WASTE, "entering, encoding")])
    drawing.legend(334, [(BOX, "tokens to text")])
    drawing.words(0, 362, "An arrow up is a frame that its client reads.", bold=True)
    return drawing


def _axis(drawing: Drawing, y: float, start: float, end: float) -> None:
    size = round_step((end - start) / 8)
    drawing.arrow((LEFT, y), (RIGHT, y), head=False)
    for tick in range(math.floor((end - start) / size) + 1):
        x = LEFT + (RIGHT - LEFT) * tick * size / (end - start)
        drawing.arrow((x, y), (x, y + 5), head=False)
        if x < RIGHT - 24:
            drawing.words(x, y + 21, f"{tick * size:g}{' ms' * (tick > 0)}", size=15, anchor="middle")
