"""p00's figures of one forward pass: the way of a token's row, RoPE's turns, and attention's triangle.

Shapes are SmolLM2-135M's, and the lesson's own code computes angles and weights. No torch is imported before a
figure is drawn.
"""

import math
from typing import Any

from gradus import phases
from gradus.course.drawing import BOX, FREE, GREY, KEPT, NEW, Drawing, Kind
from gradus.models.shapes import SHAPES

CONFIG = SHAPES["smollm2-135m"]
WORDS = ["The", "cat", "sat", "on", "the"]


def part(name: str) -> Any:
    """A module of the phase."""
    return phases.find("p00").module(name)


# -- the whole pass ----------------------------------------------------------------------------------------------------

STREAM, BRANCH, SECOND, WIDE, TALL = 92, 176, 392, 190, 42  # x of the stream and of its branches, and sizes


def whole() -> Drawing:
    tokens, hidden, vocabulary = len(WORDS), CONFIG.hidden_size, CONFIG.vocab_size
    rows = f"[{tokens}, {hidden}]"
    drawing = Drawing(
        f"A forward pass of {tokens} tokens: {tokens} rows of {hidden} numbers go through {CONFIG.num_layers} layers, "
        f"each of which adds attention and an MLP to them, and end as logits over {vocabulary:,} tokens",
        528,
    )
    _step(drawing, 8, "token ids", f"[{tokens}]", KEPT)
    _step(drawing, 80, "embedding", rows, BOX)
    drawing.rectangle(0, 152, 800, 224, FREE, radius=10)
    drawing.words(790, 366, f"{CONFIG.num_layers} times, each with weights of its own", anchor="end", bold=True)
    _branch(drawing, 172, rows, "attention", "looks at other rows", NEW)
    _branch(drawing, 272, rows, "MLP", "each row by itself", BOX)
    drawing.arrow((STREAM, 376), (STREAM, 388))
    _step(drawing, 392, "RMSNorm", rows, BOX)
    _step(drawing, 464, "head", f"[{tokens}, {vocabulary}]", BOX, last=True)
    drawing.arrow((STREAM + 214, 485), (STREAM + 292, 485))
    drawing.words(STREAM + 302, 479, "the last row: how likely each token is")
    drawing.words(STREAM + 302, 503, f"to come next, {vocabulary:,} logits")
    return drawing


def _step(drawing: Drawing, y: float, name: str, shape: str, kind: Kind, last: bool = False) -> None:
    drawing.cell(STREAM - 72, y, 144, TALL, kind, name)
    drawing.words(STREAM + 84, y + 27, shape, mono=True, size=16)
    if not last:
        drawing.arrow((STREAM, y + TALL + 1), (STREAM, y + 70))


def _branch(drawing: Drawing, y: float, shape: str, name: str, says: str, kind: Kind) -> None:
    """Draw a branch: the rows continue unchanged, and the branch's result is added."""
    drawing.arrow((STREAM, y - 18), (STREAM, y + 60))
    drawing.arrow((STREAM, y + 4), (BRANCH + 26, y + 4))
    drawing.cell(BRANCH + 30, y - 16, 120, TALL, BOX, "RMSNorm")
    drawing.arrow((BRANCH + 152, y + 4), (SECOND - 6, y + 4))
    drawing.cell(SECOND, y - 16, WIDE, TALL, kind, name)
    drawing.words(SECOND + WIDE + 12, y + 10, says)
    drawing.arrow((SECOND + WIDE / 2, y + 27), (SECOND + WIDE / 2, y + 73), (STREAM + 16, y + 73))
    drawing.cell(STREAM - 14, y + 61, 28, 26, KEPT, "+")
    drawing.words(STREAM + 24, y + 64, shape, mono=True, size=16)


# -- RoPE --------------------------------------------------------------------------------------------------------------

POSITIONS, PAIRS, RADIUS = 8, (0, 2, 5, 12), 32


def turns() -> list[list[float]]:
    """The angle at each position, for each pair in PAIRS."""
    theta = CONFIG.ropes[0].theta if CONFIG.ropes[0] else 0.0
    table = part("rope").angles(POSITIONS, CONFIG.head_dim, theta).tolist()
    return [[row[pair] for row in table] for pair in PAIRS]


def rotated() -> Drawing:
    drawing = Drawing(
        f"Each pair of numbers turns with the position: pair 0 by one radian per token, pair {PAIRS[-1]} by "
        f"{turns()[-1][1]:.2f}",
        414,
    )
    left, step = 140, 88
    drawing.words(0, 22, "position")
    for position in range(POSITIONS):
        drawing.words(left + position * step, 22, str(position), anchor="middle", mono=True)
    for row, (pair, angles) in enumerate(zip(PAIRS, turns(), strict=True)):
        y = 74 + row * 82
        drawing.words(0, y + 6, f"pair {pair}")
        for position, angle in enumerate(angles):
            x = left + position * step
            circle = [(x + RADIUS * math.cos(k * math.pi / 16), y + RADIUS * math.sin(k * math.pi / 16))
                      for k in range(33)]  # fmt: skip
            drawing.arrow(*circle, head=False)
            tip = (x + RADIUS * math.cos(angle), y - RADIUS * math.sin(angle))
            drawing.arrow((x, y), tip, color=NEW.fill)
    drawing.words(0, 376, f"A head of {CONFIG.head_dim} numbers (Dh) has {CONFIG.head_dim // 2} such pairs.")
    drawing.words(0, 404, "A score compares two angles of one pair, so it depends on the distance of the two tokens.")
    return drawing


# -- attention ---------------------------------------------------------------------------------------------------------

SCORES = [
    [1.2, 0.0, 0.0, 0.0, 0.0],
    [0.3, 1.4, 0.0, 0.0, 0.0],
    [0.1, 2.2, 0.8, 0.0, 0.0],
    [-0.4, 0.5, 1.9, 0.6, 0.0],
    [-0.2, 0.9, 0.4, 1.6, 0.7],
]  # made-up scores: how well each key fits each query
CELL = 46


def weights() -> list[list[float]]:
    """Apply p00's mask and softmax to SCORES."""
    import torch

    attention = part("attention")
    hidden = ~attention.causal_mask(len(SCORES))
    found: list[list[float]] = attention.softmax(torch.tensor(SCORES).masked_fill(hidden, -torch.inf)).tolist()
    return found


def triangle() -> Drawing:
    tokens, width = len(WORDS), CONFIG.head_dim
    side = tokens * CELL
    drawing = Drawing(
        f"Attention of one head over {tokens} tokens: scores are a triangle, since no token sees a later one; softmax "
        "makes each row add up to 1; the result is a weighted mean of the values",
        612,
    )
    first, second, top = 152, 152 + side + 96, 254
    _block(drawing, 60, top, 76, side, KEPT, "q", f"[{tokens}, {width}]")
    _block(drawing, first, top - 92, side, 76, KEPT, "kᵀ", f"[{width}, {tokens}]")
    _grid(drawing, first, top, [[f"{score:g}" for score in row] for row in SCORES])
    _below(drawing, first + side / 2, top + side, f"q kᵀ / √{width}: [{tokens}, {tokens}]")
    drawing.arrow((first + side + 10, top + side / 2), (second - 14, top + side / 2))
    drawing.words((first + side + second) / 2 - 2, top + side / 2 - 14, "softmax", anchor="middle")
    _grid(drawing, second, top, [[f"{weight:.2f}".lstrip("0") for weight in row] for row in weights()])
    _below(drawing, second + side / 2, top + side, f"weights: [{tokens}, {tokens}]")
    right = second + side + 14
    _block(drawing, right, 10, 76, side, KEPT, "v", f"[{tokens}, {width}]")
    _block(drawing, right, top, 76, side, NEW, "out", f"[{tokens}, {width}]")
    for row, word in enumerate(WORDS):
        drawing.words(0, top + row * CELL + 29, word, mono=True, size=16)
    lowest = top + side + 66
    drawing.legend(lowest, [(BOX, "a token and what it sees"), (FREE, "masked: it would be a later token")])
    drawing.words(0, lowest + 34, "Row 2 is “sat”: it sees three tokens, and most of what it takes comes from “cat”.")
    return drawing


def _below(drawing: Drawing, middle: float, y: float, words: str) -> None:
    drawing.words(middle, y + 26, words, anchor="middle", mono=True, size=16)


def _block(
    drawing: Drawing, x: float, y: float, width: float, height: float, kind: Kind, name: str, shape: str
) -> None:
    drawing.rectangle(x, y, width, height, kind)
    color = GREY if kind is FREE else kind.ink
    drawing.words(x + width / 2, y + height / 2 - 4, name, anchor="middle", color=color, bold=True, size=20)
    drawing.words(x + width / 2, y + height / 2 + 20, shape, anchor="middle", color=color, mono=True, size=15)


def _grid(drawing: Drawing, x: float, y: float, words: list[list[str]]) -> None:
    """Draw a cell per query (row) and key (column); cells above the diagonal are masked."""
    for row, line in enumerate(words):
        for column, word in enumerate(line):
            seen = column <= row
            kind = BOX if seen else FREE
            drawing.cell(x + column * CELL, y + row * CELL, CELL - 3, CELL - 3, kind, word if seen else "")
