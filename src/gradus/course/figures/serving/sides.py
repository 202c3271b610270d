"""The two sides of p13's server, and the only things that pass between them."""

from gradus.course.drawing import BOX, KEPT, NEW, Drawing

PEOPLE = ("Ann", "Ben", "Cy")
LOOP, ENGINE = (190, 316), (632, 168)  # left edge and width
TOP, HEIGHT = 34, 236


def sides() -> Drawing:
    drawing = Drawing(
        "Connections of three clients end at the event loop, which does HTTP, text and counting. A queue leads from it "
        "to the thread of the engine, which sends back one report per step",
        318,
    )
    drawing.words(LOOP[0], 20, "event loop", bold=True)
    drawing.words(ENGINE[0], 20, "engine thread", bold=True)
    drawing.rectangle(LOOP[0], TOP, LOOP[1], HEIGHT, BOX)
    drawing.rectangle(ENGINE[0], TOP, ENGINE[1], HEIGHT, KEPT)
    for row, who in enumerate(PEOPLE):
        y = TOP + 34 + 78 * row
        drawing.cell(0, y - 16, 74, 34, NEW, who)
        drawing.arrow((80, y - 7), (LOOP[0] - 4, y - 7))
        drawing.arrow((LOOP[0] - 4, y + 9), (80, y + 9))
    inside = ("counts those inside: enter, or 503", "encodes text to tokens", "", "tokens to text, stop strings",
              "frames, one stream per client")  # fmt: skip
    for row, line in enumerate(inside):
        drawing.words(LOOP[0] + 16, TOP + 44 + 42 * row, line, color="#10202c", size=17)
    for row, line in enumerate(("obey messages", "one step", "report")):
        drawing.words(ENGINE[0] + 16, TOP + 62 + 60 * row, line, color="#10202c", size=17)
    left, right = LOOP[0] + LOOP[1] + 4, ENGINE[0] - 4
    drawing.arrow((left, TOP + 62), (right, TOP + 62))
    drawing.words((left + right) / 2, TOP + 36, "request,", size=15, anchor="middle")
    drawing.words((left + right) / 2, TOP + 54, "cancel", size=15, anchor="middle")
    drawing.arrow((right, TOP + 180), (left, TOP + 180))
    drawing.words((left + right) / 2, TOP + 154, "a report", size=15, anchor="middle")
    drawing.words((left + right) / 2, TOP + 172, "per step", size=15, anchor="middle")
    drawing.words(LOOP[0], 302, "text and time", bold=True)
    drawing.words(ENGINE[0], 302, "token ids alone", bold=True)
    return drawing
