"""The experts that a step reads, and bytes per token, by the tokens of the step: p14's formula on published shapes."""

import math
from collections.abc import Callable
from typing import Any

from gradus import phases
from gradus.course.drawing import NEW, WASTE, Drawing, axes
from gradus.models.config import matrix_parameters
from gradus.models.shapes import SHAPES

MIXTURE, DENSE = "qwen3-30b-a3b", "qwen3-8b"
MOST, GIGABYTES = 256, (0.05, 16.0)
TICKS = [(float(1 << k), f"{1 << k:,}") for k in range(0, 9, 2)]
PANEL, LEFT, WIDE = 250, 74, 640


def _p14() -> Any:
    return phases.find("p14").module("distinct")


def shares() -> list[tuple[int, float]]:
    """(tokens, share of the experts that are read)."""
    experts = _p14().experts_of(SHAPES[MIXTURE])[0]
    return [(tokens, _p14().expected_distinct(experts.count, experts.chosen, tokens) / experts.count)
            for tokens in _counts()]  # fmt: skip


def per_token() -> dict[str, list[tuple[int, float]]]:
    """Return (tokens, GB of the layers' matrices per token) of each model."""
    dense = _p14().WIDTH * matrix_parameters(SHAPES[DENSE])
    sizes: dict[str, Callable[[int], float]] = {
        MIXTURE: lambda tokens: _p14().layer_bytes(SHAPES[MIXTURE], tokens),
        DENSE: lambda tokens: dense,
    }
    return {name: [(tokens, size(tokens) / tokens / 1e9) for tokens in _counts()] for name, size in sizes.items()}


def _counts() -> list[int]:
    return sorted({round(2 ** (half / 2)) for half in range(2 * round(math.log2(MOST)) + 1)})


def distinct() -> Drawing:
    read, sizes = dict(shares()), {name: dict(points) for name, points in per_token().items()}
    said = "; ".join(f"{name}: {found[1]:.1f} GB for one, {found[64]:.2f} for 64" for name, found in sizes.items())
    drawing = Drawing(
        f"Of 128 experts a token takes 8. One token reads {read[1]:.0%} of them, 16 read {read[16]:.0%}, 64 read "
        f"{read[64]:.0%}. Bytes per token: {said}",
        2 * PANEL + 130,
    )
    drawing.words(LEFT + 12, 20, "experts that a step reads", bold=True)

    def upper(tokens: float, share: float) -> tuple[float, float]:
        return LEFT + WIDE * math.log2(tokens) / math.log2(MOST), PANEL - 200 * share

    axes(drawing, upper, TICKS, [(share, f"{share:.0%}") for share in (0.0, 0.5, 1.0)], "tokens in the step")
    drawing.arrow(*(upper(*point) for point in read.items()), head=False, color=NEW.fill)
    for tokens in (1, 16, 64):
        x, y = upper(tokens, read[tokens])
        above = tokens == 1  # the axis is below it
        drawing.words(x + 8, y - 10 if above else y + 20, f"{read[tokens]:.0%}")
    top, (low, high) = PANEL + 76, GIGABYTES
    drawing.words(LEFT + 12, top + 4, "GB of the layers' weights per token", bold=True)

    def lower(tokens: float, size: float) -> tuple[float, float]:
        x, _ = upper(tokens, 0)
        return x, top + PANEL - 20 - 210 * math.log2(size / low) / math.log2(high / low)

    axes(drawing, lower, TICKS, [(size, f"{size:g}") for size in (0.05, 0.2, 1.0, 4.0, 16.0)], "tokens in the step")
    for name, color, dashed in ((MIXTURE, NEW.fill, False), (DENSE, WASTE.stroke, True)):
        drawing.arrow(*(lower(*point) for point in sizes[name].items()), head=False, color=color, dashed=dashed)
    for row, (name, color) in enumerate(((MIXTURE, NEW.fill), (DENSE, WASTE.stroke))):
        found = sizes[name]
        words = f"{name}: {found[1]:.1f}, then {found[64]:.2f} for 64"
        drawing.words(LEFT + 300, top + 40 + 24 * row, words, color=color)
    return drawing
