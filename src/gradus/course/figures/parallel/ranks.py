"""Two ranks at work, on one axis of time: what each computes, and where it waits."""

import math
from collections.abc import Sequence
from typing import Any

from gradus import phases
from gradus.course.drawing import KEPT, NEW, WASTE, WIDTH, Drawing
from gradus.course.figures.parallel.recorded import ways
from gradus.course.figures.timeline import round_step

LEFT, RIGHT, PANEL, BAR = 66, WIDTH - 4, 136, 26
SHOWN = {"matrices cut in two": 1, "layers cut in two, 1 micro-batch": 3, "layers cut in two, 2 micro-batches": 6}
"""Steps of rank 0 that are shown of each way, from its first decode on."""


def window(notes: Sequence[Any], steps: int, micro_batches: int) -> tuple[float, float]:
    """From rank 0's first decode to its last step that is shown."""
    mine = [note for note in notes if note.kind == "step" and note.rank == 0]
    shown = mine[2 * micro_batches : 2 * micro_batches + steps]  # behind the prompts, and a round of decodes
    return shown[0].at, shown[-1].until


def ranks() -> Drawing:
    watch, found = phases.find("p12").module("watch"), ways()
    drawing = Drawing(
        "Two ranks at work in three ways to cut a model: bars where one computes, gaps where it waits", 448
    )
    for panel, (name, notes) in enumerate(found.items()):
        top = panel * PANEL + 18
        micro_batches = 1 + max(note.micro_batch for note in notes)
        start, end = window(notes, SHOWN[name], micro_batches)
        drawing.words(0, top, name, bold=True)
        for rank in range(2):
            y = top + 14 + rank * (BAR + 8)
            drawing.words(0, y + 19, f"rank {rank}")
            drawing.rectangle(LEFT, y, RIGHT - LEFT, BAR, WASTE, radius=0)
            for at, until, micro_batch in _busy(watch, notes, rank):
                left, right = (LEFT + (RIGHT - LEFT) * (time - start) / (end - start) for time in (at, until))
                left, right = max(left, LEFT), min(right, RIGHT)
                if right > left:
                    drawing.rectangle(left, y, right - left, BAR, KEPT if micro_batch else NEW, radius=0)
        _axis(drawing, top + 14 + 2 * (BAR + 8), end - start)
    drawing.legend(444, [(NEW, "computes"), (KEPT, "computes the second micro-batch"), (WASTE, "waits")])
    return drawing


def _busy(watch: Any, notes: Sequence[Any], rank: int) -> list[tuple[float, float, int]]:
    """When a rank computes, and for which micro-batch."""
    steps = [note for note in notes if note.kind == "step" and note.rank == rank]
    return [
        (at, until, next(step.micro_batch for step in steps if step.at <= at and until <= step.until))
        for at, until in watch.busy(notes, rank)
    ]


def _axis(drawing: Drawing, y: float, length: float) -> None:
    size = round_step(length / 8)
    for tick in range(math.floor(length / size) + 1):
        x = LEFT + (RIGHT - LEFT) * tick * size / length
        drawing.arrow((x, y - 4), (x, y + 1), head=False)
        if x < RIGHT - 30:
            drawing.words(x, y + 17, f"{tick * size:g}{' ms' * (tick > 0)}", size=15, anchor="middle")
