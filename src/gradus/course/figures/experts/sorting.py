"""The pairs of four tokens with the experts that they take, sorted by expert: computed by the lesson's own dispatch."""

from gradus import phases
from gradus.course.drawing import BOX, FREE, KEPT, NEW, Drawing, Kind

TOKENS = ("a", "b", "c", "d")
CHOSEN = ((2, 0), (0, 1), (2, 0), (2, 4))  # of five experts; no token takes the fourth
EXPERTS = 5
LOOKS: tuple[Kind, ...] = (NEW, BOX, KEPT, FREE, BOX)
LEFT, CELL, GAP = 128, 74, 8


def order() -> tuple[list[int], list[int]]:
    """The pairs in the order of their experts, and each expert's start."""
    import torch

    pairs, starts = phases.find("p14").module("dispatch").sort_by_expert(torch.tensor(CHOSEN), EXPERTS)
    return pairs.tolist(), starts


def sorting() -> Drawing:
    pairs, starts = order()
    unread = [number for number in range(EXPERTS) if starts[number] == starts[number + 1]]
    drawing = Drawing(
        f"Four tokens take two of {EXPERTS} experts each: eight pairs, sorted by expert. Expert "
        f"{', '.join(map(str, unread))} has no pair and is not read",
        318,
    )
    experts = [expert for row in CHOSEN for expert in row]
    drawing.words(0, 27, "pairs", bold=True)
    drawing.words(0, 166, "sorted", bold=True)
    for pair, expert in enumerate(experts):
        _pair(drawing, _x(pair), 4, pair, expert)
    for place, pair in enumerate(pairs):
        drawing.arrow((_x(pair) + CELL / 2, 46), (_x(place) + CELL / 2, 140))
        _pair(drawing, _x(place), 144, pair, experts[pair])
    drawing.words(0, 246, "experts", bold=True)
    for number in range(EXPERTS):
        start, end = starts[number], starts[number + 1]
        if end > start:
            left, right = _x(start), _x(end) - GAP
            drawing.cell(left, 222, right - left, 36, LOOKS[number], f"e{number}")
            drawing.words((left + right) / 2, 284, f"{end - start} row{'s' * (end > start + 1)}", anchor="middle")
    drawing.words(0, 312, f"starts: {starts}; expert {unread[0]} starts where it ends, and is not read.", size=16)
    return drawing


def _x(place: int) -> float:
    return LEFT + place * (CELL + GAP)


def _pair(drawing: Drawing, x: float, y: float, pair: int, expert: int) -> None:
    drawing.cell(x, y, CELL, 36, LOOKS[expert], f"{TOKENS[pair // len(CHOSEN[0])]}→e{expert}")
