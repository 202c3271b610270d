"""A step with a mask, in time: filled before the model is launched, and while it runs. The lengths are made up."""

from gradus.course.drawing import BOX, FREE, GREY, KEPT, NEW, WASTE, Drawing, Kind

MODEL, DRAW, LAUNCH, MASK, TOKEN = 36.0, 5.0, 3.0, 14.0, 2.0  # lengths of the drawing's blocks, in no unit


def launches() -> Drawing:
    drawing = Drawing(
        "A mask filled before the model is launched makes the GPU wait; filled while the model runs, it hides", 356
    )
    for top, title, hides in (
        (0, "The mask first: the GPU waits for it in every step", False),
        (150, "The model first: the mask is filled while the model runs", True),
    ):
        drawing.words(0, top + 18, title, bold=True)
        drawing.words(0, top + 53, "host")
        drawing.words(0, top + 95, "GPU")
        _steps(drawing, top + 30, hides)
    drawing.legend(304, [(BOX, "launch"), (WASTE, "mask"), (NEW, "model"), (KEPT, "draw")])
    drawing.words(
        0,
        346,
        "Dashed: the drawn token reaches the host. Only the draw needs the mask that follows from it.",
        bold=True,
    )
    return drawing


def _steps(drawing: Drawing, top: float, hides: bool) -> None:
    scale, left = 5.4, 62
    now = 0.0  # when the last draw's token is there

    def block(row: int, start: float, length: float, kind: Kind, word: str = "") -> None:
        drawing.cell(left + start * scale, top + 42 * row, length * scale - 2, 34, kind, word)

    free = 0.0  # when the GPU is free
    while now + 2 * LAUNCH + MASK + MODEL + DRAW <= 137:
        if hides:
            begins = free + (LAUNCH if free == 0 else 0)  # launched while the last step ran
            block(0, begins - LAUNCH, LAUNCH, BOX)
            mask = max(begins, now)
        else:
            mask = now
            begins = now + MASK + LAUNCH
            block(0, begins - LAUNCH, LAUNCH, BOX)
        block(0, mask, MASK, WASTE, "mask")
        block(0, mask + MASK + (0 if hides else LAUNCH), LAUNCH, BOX)
        block(1, begins, MODEL, NEW, "model")
        block(1, begins + MODEL, DRAW, KEPT)
        free = begins + MODEL + DRAW
        now = free + TOKEN
        x = left + free * scale - 2
        drawing.arrow((x, top + 58), (left + now * scale, top + 36), dashed=True, color=GREY)
    drawing.rectangle(left + free * scale, top + 42, max(0, 137 - free) * scale, 34, FREE)
