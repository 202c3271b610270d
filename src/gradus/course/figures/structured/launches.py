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
        "Dashed: the token reaches the host. Only the next draw needs its mask.",
        bold=True,
    )
    return drawing


def _steps(drawing: Drawing, top: float, hides: bool) -> None:
    """Draw as many steps as there is room for."""
    scale, left, room = 5.4, 62, 137.0
    free, token = LAUNCH, 0.0  # when the GPU is free for the model, and when the last token is on the host

    def block(lane: int, start: float, length: float, kind: Kind, word: str = "") -> None:
        drawing.cell(left + start * scale, top + 42 * lane, length * scale - 2, 34, kind, word)

    while (begins := free if hides else token + MASK + LAUNCH) + MODEL + DRAW <= room:
        mask = max(token, begins) if hides else token
        block(0, begins - LAUNCH, LAUNCH, BOX)
        block(0, mask, MASK, WASTE, "mask")
        block(0, mask + MASK + (0 if hides else LAUNCH), LAUNCH, BOX)
        block(1, begins, MODEL, NEW, "model")
        block(1, begins + MODEL, DRAW, KEPT)
        free = begins + MODEL + DRAW
        token = free + TOKEN
        drawing.arrow(
            (left + free * scale - 3, top + 58), (left + token * scale - 1, top + 35), dashed=True, color=GREY
        )
    drawing.rectangle(left + free * scale, top + 42, (room - free) * scale, 34, FREE)
