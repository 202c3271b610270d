"""The time per step of Llama-3.1-8B on 1 to 8 devices, as p12's program computes it."""

from typing import Any

from gradus import phases
from gradus.course.drawing import KEPT, NEW, WASTE, Drawing
from gradus.models.shapes import SHAPES

MODEL, DEVICES, BATCHES = "llama-3.1-8b", (1, 2, 4, 8), (1, 64)
LEFT, ROW, PANEL, MOST_MS = 96, 34, 180, 5.0
SCALE = (800 - LEFT - 130) / MOST_MS


def roofline() -> Drawing:
    module = phases.find("p12").module("roofline")
    steps = {batch: [module.step(SHAPES[MODEL], devices, batch) for devices in DEVICES] for batch in BATCHES}
    said = "; ".join(
        f"batch {batch}: {', '.join(f'{1e3 * one.seconds:.1f} ms' for one in found)}" for batch, found in steps.items()
    )
    drawing = Drawing(f"Time per step of Llama-3.1-8B on 1, 2, 4 and 8 devices, computed: {said}", 2 * PANEL + 34)
    for panel, (batch, found) in enumerate(steps.items()):
        top = panel * PANEL + 20
        drawing.words(0, top, f"batch {batch}", bold=True)
        for row, (devices, one) in enumerate(zip(DEVICES, found, strict=True)):
            _bar(drawing, top + 14 + ROW * row, devices, one, found[0].seconds / one.seconds)
    drawing.legend(2 * PANEL + 26, [(NEW, "weights"), (KEPT, "cache"), (WASTE, "exchanges")])
    return drawing


def _bar(drawing: Drawing, y: float, devices: int, step: Any, gain: float) -> None:
    drawing.words(LEFT - 10, y + 19, f"{devices} device{'s' * (devices > 1)}", anchor="end", size=16)
    x = float(LEFT)
    for seconds, kind in ((step.weights, NEW), (step.cache, KEPT), (step.exchanges, WASTE)):
        width = 1e3 * seconds * SCALE
        if width >= 1:
            drawing.rectangle(x, y, width, 26, kind, radius=0)
        x += width
    drawing.words(x + 10, y + 19, f"{1e3 * step.seconds:.2f} ms, {gain:.2f}×")
