"""The figure of the README: an inference engine at work, with the three people of the lessons' scene.

The book's cover shows it, and `three_chats_narrow` in its place on a phone.
"""

from textwrap import wrap

from gradus.course.drawing import BOX, FREE, KEPT, NEW, Drawing, Kind

PEOPLE = (
    ("Ann", "a poem about the sea", ("The", "tide", "came")),
    ("Ben", "sum up these four pages", ("In", "short,")),
    ("Cy", "2 + 2?", ("4",)),
)
TOP, PITCH, HEIGHT = 40, 84, 52
ENGINE, MODEL, ANSWER = 286, 416, 566  # left edges


def three_chats() -> Drawing:
    """Show requests on the left, one step of all three in the middle, and the answers on the right."""
    drawing = Drawing("Three people chat with one model: the engine runs all three in each step", 336)
    drawing.words(0, 16, "what they ask", bold=True)
    drawing.words(ENGINE, 16, "the engine: one step", bold=True)
    drawing.words(ANSWER, 16, "their answers so far", bold=True)
    bottom = TOP + 2 * PITCH + HEIGHT
    drawing.rectangle(ENGINE, TOP - 12, 240, bottom - TOP + 24, FREE, radius=10)
    _box(drawing, MODEL, TOP, 94, bottom - TOP, BOX, ("weights,", "read once", "for all"))
    for row, (name, asks, said) in enumerate(PEOPLE):
        y = TOP + row * PITCH
        _bubble(drawing, y, name, asks)
        drawing.arrow((238, y + HEIGHT / 2), (ENGINE + 14, y + HEIGHT / 2))
        drawing.cell(ENGINE + 18, y + 8, 74, HEIGHT - 16, KEPT, name)
        drawing.arrow((ENGINE + 94, y + HEIGHT / 2), (MODEL - 4, y + HEIGHT / 2))
        drawing.arrow((MODEL + 98, y + HEIGHT / 2), (ANSWER - 6, y + HEIGHT / 2))
        _answer(drawing, ANSWER, y, said)
    drawing.legend(bottom + 44, [(KEPT, "kept from earlier steps, for each chat"), (NEW, "a token made in this step")])
    drawing.words(
        0, bottom + 74, "Ann began first, Cy has just joined. Each step gives everyone one more token.", bold=True
    )
    return drawing


def three_chats_narrow() -> Drawing:
    """Show the same in half the width, with each question on two lines."""
    model, answer, height = 140, 254, 66
    drawing = Drawing("Three people chat with one model: the engine runs all three in each step", 378, width=448)
    for x, heading in ((0, "they ask"), (model, "one step"), (answer, "their answers so far")):
        drawing.words(x, 16, heading, bold=True)
    bottom = 30 + 2 * PITCH + height
    _box(drawing, model, 30, 90, bottom - 30, BOX, ("weights,", "read once", "for all"))
    for row, (name, asks, said) in enumerate(PEOPLE):
        y = 30 + row * PITCH
        drawing.rectangle(0, y, 116, height, BOX, radius=10)
        drawing.words(10, y + 19, name, size=15, bold=True, color=BOX.ink)
        for number, line in enumerate(wrap(asks, 13)):
            drawing.words(10, y + 38 + 18 * number, line, size=15, color=BOX.ink)
        drawing.arrow((118, y + height / 2), (model - 4, y + height / 2))
        drawing.arrow((model + 92, y + height / 2), (answer - 4, y + height / 2))
        _answer(drawing, answer, y + (height - HEIGHT) / 2, said)
    drawing.legend(bottom + 32, [(NEW, "a token made in this step")])
    drawing.words(0, bottom + 66, "Ann began first, Cy has just joined.", bold=True)
    drawing.words(0, bottom + 90, "Each step gives everyone one more token.", bold=True)
    return drawing


def _bubble(drawing: Drawing, y: float, name: str, asks: str) -> None:
    drawing.rectangle(0, y, 234, HEIGHT, BOX, radius=10)
    drawing.words(12, y + 21, name, bold=True, color=BOX.ink)
    drawing.words(12, y + 42, asks, size=15, color=BOX.ink)


def _answer(drawing: Drawing, x: float, y: float, said: tuple[str, ...]) -> None:
    for word in said:
        width = 22 + 10 * len(word)
        drawing.cell(x, y + 8, width, HEIGHT - 16, NEW if word == said[-1] else BOX, word)
        x += width + 6


def _box(drawing: Drawing, x: float, y: float, width: float, height: float, kind: Kind, lines: tuple[str, ...]) -> None:
    drawing.rectangle(x, y, width, height, kind, radius=8)
    for number, line in enumerate(lines):
        drawing.words(x + width / 2, y + height / 2 + 22 * number - 15, line, anchor="middle", color=kind.ink)
