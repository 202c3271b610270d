"""p09's figure of a long prompt: the seconds of its chunks by their position, as benchmarks/lessons/long_lesson.py has
recorded them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from gradus.bench.record.long_tables import WAYS, Steps, line, steps
from gradus.course.drawing import KEPT, NEW, Drawing

RECORDING = Path(__file__).parents[4] / "benchmarks" / "lessons" / "long_lesson.json"
LEFT, RIGHT, HIGH = 64, 794, 132  # of a panel, in units


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))
    return found


def chunks() -> Drawing:
    """Draw a bar for each step: as wide as its chunk, as high as its seconds."""
    equal, cut = (steps(recorded(), way) for way in WAYS)
    begin, slope = line(equal)
    drawing = Drawing(
        f"A prompt of {sum(count for _, count, _ in equal):,} tokens, in chunks of equal length, whose steps take from "
        f"{equal[0][2]:.2f} to {equal[-1][2]:.2f} s, and in chunks of equal cost, whose steps take from "
        f"{min(took for *_, took in cut[:-1]):.2f} to {max(took for *_, took in cut[:-1]):.2f} s",
        472,
    )
    end, most = equal[-1][0] + equal[-1][1], max(took for *_, took in [*equal, *cut])

    def panel(base: float, way: str, shown: Steps) -> None:
        drawing.words(LEFT, base - HIGH - 20, f"chunks {WAYS[way]}", bold=True)
        drawing.words(RIGHT, base - HIGH - 20, f"{len(shown)} steps, {sum(s[2] for s in shown):.0f} s", anchor="end")
        for start, count, took in shown:
            x, wide = LEFT + (RIGHT - LEFT) * start / end, (RIGHT - LEFT) * count / end
            high = HIGH * took / most
            drawing.rectangle(x, base - high, max(1.5, wide - 2), high, KEPT if way == "equal" else NEW, radius=1)
        drawing.arrow((LEFT, base), (RIGHT, base), head=False)
        for seconds in (0.0, most):
            drawing.words(LEFT - 8, base - HIGH * seconds / most + 5, f"{seconds:.1f} s", size=15, anchor="end")

    panel(186, "equal", equal)
    panel(400, "cut", cut)
    fitted = [(LEFT + (RIGHT - LEFT) * s / end, 186 - HIGH * (begin + slope * s) / most) for s in (0, equal[-1][0])]
    drawing.arrow(*fitted, head=False, dashed=True)
    for tick in range(0, end + 1, 2000):
        x, anchor = LEFT + (RIGHT - LEFT) * tick / end, "start" if tick == 0 else "end" if tick == end else "middle"
        drawing.words(x, 422, f"{tick:,}", size=15, anchor=anchor)
    drawing.words(RIGHT, 446, "position in the prompt", anchor="end")
    drawing.words(LEFT, 446, "A bar is a step: as wide as its chunk, as high as its seconds.")
    drawing.words(LEFT, 468, "Dashed: the fitted line, a + b · position.")
    return drawing
