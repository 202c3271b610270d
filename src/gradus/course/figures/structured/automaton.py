"""The figure of p11's automaton: the lesson's own code builds it. No torch here."""

import math
from collections.abc import Iterator
from typing import Any

from gradus import phases
from gradus.course.drawing import BOX, KEPT, Drawing, Kind

EXPRESSION = r"€?\d+"
PLACES = {0: (60, 150), 1: (250, 60), 2: (420, 60), 3: (590, 60), 4: (740, 150)}  # of each state, by its number
RADIUS = 30


def labels(steps: dict[int, int]) -> Iterator[tuple[int, str]]:
    """The next states, each with the range of its bytes."""
    for target in sorted(set(steps.values())):
        taken = sorted(byte for byte, behind in steps.items() if behind == target)
        assert taken == list(range(taken[0], taken[-1] + 1)), "one range"
        yield target, f"{taken[0]:02X}" if len(taken) == 1 else f"{taken[0]:02X} to {taken[-1]:02X}"


def automaton() -> Drawing:
    dfa = part("dfa").dfa_of(part("parsing").Parser(EXPRESSION).whole())
    numbered = in_order_of_the_drawing(dfa)
    drawing = Drawing(
        f"The automaton of {EXPRESSION}: the three bytes of the euro sign, one after the other, then digits, or digits "
        "at once; only behind a digit the answer may end",
        264,
    )
    for state, steps in enumerate(dfa.steps):
        for target, label in labels(steps):
            _edge(drawing, PLACES[numbered[state]], PLACES[numbered[target]], label)
    for state, accepts in enumerate(dfa.accepting):
        _state(drawing, *PLACES[numbered[state]], str(numbered[state]), KEPT if accepts else BOX)
    drawing.legend(222, [(BOX, "state"), (KEPT, "the answer may end here")])
    drawing.words(0, 256, "E2 82 AC are the bytes of €, 30 to 39 the digits. Other bytes lead nowhere.", bold=True)
    return drawing


def in_order_of_the_drawing(dfa: Any) -> dict[int, int]:
    """The states' numbers from left to right: along the bytes of €, then the digits'."""
    order, state = [0], 0
    for byte in "€".encode() + b"0":
        order.append(state := dfa.steps[state][byte])
    return {state: number for number, state in enumerate(order)}


def _state(drawing: Drawing, x: float, y: float, name: str, kind: Kind) -> None:
    drawing.rectangle(x - RADIUS, y - RADIUS, 2 * RADIUS, 2 * RADIUS, kind, radius=RADIUS)
    drawing.words(x, y + 6, name, anchor="middle", bold=True, color=kind.ink)


def _edge(drawing: Drawing, start: tuple[float, float], end: tuple[float, float], label: str) -> None:
    (x, y), (u, v) = start, end
    if start == end:
        drawing.arrow((x - 14, y + RADIUS), (x - 14, y + 52), (x + 14, y + 52), (x + 14, y + RADIUS + 6))
        drawing.words(x - 24, y + 58, label, anchor="end", mono=True, size=16)
        return
    length = math.hypot(u - x, v - y)
    across, down = (u - x) / length, (v - y) / length
    gap = RADIUS + 6
    drawing.arrow((x + across * RADIUS, y + down * RADIUS), (u - across * gap, v - down * gap))
    lift = 22 if y == v and length > 300 else -10
    shift = 0 if y == v else (-44 if v < y else 56)
    drawing.words((x + u) / 2 + shift, (y + v) / 2 + lift, label, anchor="middle", mono=True, size=16)


def part(name: str) -> Any:
    """A module of the phase."""
    return phases.find("p11").module(name)
