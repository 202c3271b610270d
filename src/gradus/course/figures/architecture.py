"""The figure of docs/architecture.md: the stops of a token, from the prompt to the text."""

from gradus.course.drawing import BOX, FREE, KEPT, NEW, Drawing, Kind

TEXT, NUMBERS, DEVICE = KEPT, BOX, NEW
WIDTH, HEIGHT, GAP = 138, 60, 27
ROWS = (6, 152, 300, 414)  # the top of each row of boxes

# stop, its room, column, row, kind; in the page's order
STOPS = (
    ("1 submit", "text/", 0, 0, TEXT),
    ("2 queue", "scheduling/", 0, 1, NUMBERS),
    ("3 plan", "scheduling/", 1, 1, NUMBERS),
    ("4 step", "execution/", 1, 2, DEVICE),
    ("5 model", "models/", 2, 2, DEVICE),
    ("6 attention", "attention/", 2, 3, DEVICE),
    ("7 sampler", "sampling/", 3, 2, DEVICE),
    ("8 commit", "scheduling/", 3, 1, NUMBERS),
    ("9 output", "engine/", 4, 1, NUMBERS),
    ("10 transcript", "text/", 4, 0, TEXT),
    ("11 stream", "text/", 3, 0, TEXT),
    ("cache", "cache/", 2, 1, NUMBERS),
)


def way() -> Drawing:
    """Draw a ring: down on the left from text to numbers to tensors, and up again on the right."""
    drawing = Drawing(
        "One token's way: submitted as text, planned as numbers, computed as tensors, streamed as text", 532
    )
    _frame(drawing)
    for name, room, column, row, kind in STOPS:
        _stop(drawing, name, room, _left(column), row, WIDTH, kind)
    _stop(drawing, "your program, or HTTP", "LLM · server/", _left(1), 0, _left(2) + WIDTH - _left(1), FREE)
    _arrows(drawing)
    drawing.legend(524, [(TEXT, "text"), (NUMBERS, "numbers on the host, no torch"), (DEVICE, "tensors on the device")])
    return drawing


def _left(column: int) -> float:
    return column * (WIDTH + GAP)


def _middle(column: int) -> float:
    return _left(column) + WIDTH / 2


def _frame(drawing: Drawing) -> None:
    """Frame the stops of one call of the loop."""
    left, right = _left(1) - 13, _left(3) + WIDTH + 13
    drawing.rectangle(left, 108, right - left, 382, FREE, radius=10)
    drawing.words(_middle(2), 134, "Engine.step()", anchor="middle", mono=True, bold=True)


def _stop(drawing: Drawing, name: str, room: str, x: float, row: int, width: float, kind: Kind) -> None:
    y = ROWS[row]
    drawing.rectangle(x, y, width, HEIGHT, kind, radius=8)
    drawing.words(x + width / 2, y + 26, name, anchor="middle", color=kind.ink, bold=True, size=18)
    drawing.words(x + width / 2, y + 49, room, anchor="middle", color=kind.ink, mono=True, size=15)


def _arrows(drawing: Drawing) -> None:
    for column, row, step in ((1, 0, -1), (4, 0, -1), (3, 0, -1), (0, 1, 1), (3, 1, 1), (1, 2, 1), (2, 2, 1)):
        y = ROWS[row] + HEIGHT / 2
        start = _left(column) + (WIDTH + 2 if step > 0 else -2)
        drawing.arrow((start, y), (start + step * (GAP - 5), y))
    for column, (top, bottom), down in ((0, (0, 1), True), (1, (1, 2), True), (3, (1, 2), False), (4, (0, 1), False)):
        ends = [(_middle(column), ROWS[top] + HEIGHT + 2), (_middle(column), ROWS[bottom] - 3)]
        drawing.arrow(*(ends if down else reversed(ends)))
    y = ROWS[1] + HEIGHT / 2
    for column in (1, 2):  # the scheduler asks the cache, when it plans and when it commits
        drawing.arrow((_left(column) + WIDTH + 2, y), (_left(column + 1) - 2, y), head=False, dashed=True)
    drawing.arrow((_middle(2), ROWS[2] + HEIGHT + 2), (_middle(2), ROWS[3] - 3))
    for column, y, word in ((0, 96, "Request"), (1, 262, "Plan"), (3, 262, "Result"), (4, 96, "Output")):
        drawing.words(_middle(column) + 10, y, word, mono=True, size=16)
    drawing.words(_middle(2) + 10, 393, "attend(layer, q, k, v)", mono=True, size=15)
    drawing.words(_middle(2), 238, "which pages hold what", anchor="middle", size=15)
