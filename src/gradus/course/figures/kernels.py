"""p09's figures: the traffic with and without a gather, the grid, the division of work, the fused launches, and a long
prompt's steps."""

import json
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from gradus.bench.record.long_tables import WAYS, Steps, line, steps
from gradus.course.drawing import BOX, FREE, KEPT, NEW, WASTE, Drawing, Kind

# -- what moves --------------------------------------------------------------------------------------------------------


def traffic() -> Drawing:
    """Draw the same decode twice: through a gathered copy, and through the block table."""
    drawing = Drawing("Gathering moves the pages three times, a kernel that knows the table moves them once", 322)
    for top, gathered in ((4, True), (170, False)):
        drawing.words(0, top + 20, "gather, then attend" if gathered else "attend through the table", bold=True)
        for page in range(6):
            used = page in (1, 3, 4)
            drawing.cell(page * 38, top + 40, 34, 34, KEPT if used else FREE, {1: "7", 3: "9", 4: "8"}.get(page, ""))
        drawing.words(0, top + 100, "pages of the cache")
        if gathered:
            drawing.arrow((236, top + 57), (308, top + 57))
            drawing.words(272, top + 47, "read", size=15, anchor="middle")
            for place, word in enumerate("789"):
                drawing.cell(316 + place * 38, top + 40, 34, 34, WASTE, word)
            drawing.words(316, top + 100, "written: a copy, in order")
            drawing.arrow((438, top + 57), (616, top + 57))
            drawing.words(527, top + 47, "read again", size=15, anchor="middle")
        else:
            drawing.arrow((236, top + 57), (616, top + 57))
            drawing.words(426, top + 47, "read, in the table's order: 7, 8, 9", size=15, anchor="middle")
        drawing.cell(624, top + 34, 170, 46, NEW, "attention")
    drawing.words(0, 312, "Three trips for every byte against one, in each layer and each step.", bold=True)
    return drawing


# -- which program does what -------------------------------------------------------------------------------------------

SPANS = {"Ann": (1, 70), "Ben": (40, 60), "Cy": (1, 300)}  # new tokens, and keys that the last of them sees
TOKENS, KEY_HEADS = 21, 3  # of a tile: 64 rows for 3 query heads per key head; of SmolLM2-135M


def grid() -> Drawing:
    """Draw a step of three spans, and the program of every span, tile and key head. `gradus demo p09` runs it."""
    drawing = Drawing("Each program owns a span, a tile of its tokens, and a key head", 262)
    tiles = ceil(max(new for new, _ in SPANS.values()) / TOKENS)
    left, first = 200, 560
    drawing.words(left, 18, "keys that the span sees", bold=True)
    for tile in range(tiles):
        drawing.words(first + tile * 122, 18, f"tile {tile}", bold=True)
    for row, (name, (new, seen)) in enumerate(SPANS.items()):
        y = 36 + row * 56
        drawing.words(0, y + 15, name, bold=True)
        drawing.words(0, y + 34, "a decode" if new == 1 else f"a chunk of {new}", size=15)
        drawing.cell(left, y + 4, seen - new, 28, KEPT)
        drawing.cell(left + seen - new, y + 4, max(new, 5), 28, BOX)
        drawing.words(left + seen + 12, y + 25, str(seen))
        for tile in range(tiles):
            for head in range(KEY_HEADS):
                works = tile * TOKENS < new
                drawing.cell(first + tile * 122 + head * 36, y, 34, 34, NEW if works else FREE, str(head))
    drawing.legend(224, [(KEPT, "stored before"), (BOX, "new in this step"), (NEW, "a program, by its key head")])
    drawing.legend(252, [(FREE, "has no token, and returns: the longest span decides how many tiles all have")])
    return drawing


KEYS = {"a": 640, "b": 96, "c": 192, "d": 64}  # positions that four decodes see
GOAL, STEP = 12, 16  # programs that the GPU has room for, and keys per step of the loop


def splits() -> dict[str, list[int]]:
    """Divide like `gradus.kernels.attention.work`: the same share for every program, in whole steps of the loop."""
    share = ceil(sum(KEYS.values()) / GOAL)
    chunk = ceil(share / STEP) * STEP
    work = {}
    for name, keys in KEYS.items():
        count = ceil(keys / chunk)
        piece = ceil(ceil(keys / STEP) / count) * STEP
        work[name] = [min(piece, keys - start) for start in range(0, keys, piece)]
    return work


def items() -> Drawing:
    """Draw one program per sequence, and the work list, with the length of the longest program."""
    drawing = Drawing("Splitting the keys of long sequences lets all programs end at about the same time", 356)
    scale, left = 1.0, 150
    drawing.words(0, 18, "one program per sequence", bold=True)
    for row, (name, keys) in enumerate(KEYS.items()):
        y = 30 + row * 26
        drawing.words(0, y + 17, f"{name}: {keys} keys")
        drawing.cell(left, y, keys * scale, 20, KEPT)
    work = splits()
    top, widest = 172, max(piece for pieces in work.values() for piece in pieces)
    count = sum(len(pieces) for pieces in work.values())
    drawing.words(0, top, f"the work list: {count} programs, none longer than {widest} keys", bold=True)
    for row, (name, pieces) in enumerate(work.items()):
        y, x = top + 14 + row * 26, float(left)
        drawing.words(0, y + 17, name)
        for piece in pieces:
            drawing.cell(x, y, piece * scale - 3, 20, NEW if len(pieces) > 1 else KEPT)
            x += piece * scale
    drawing.legend(top + 144, [(NEW, "a split: leaves a partial result"), (KEPT, "has its sequence for itself")])
    longest = max(KEYS.values())
    drawing.words(0, top + 178, f"Side by side, the step takes {widest} keys' time instead of {longest}.", bold=True)
    return drawing


# -- what fuses --------------------------------------------------------------------------------------------------------

# A layer of Qwen3, decoding: each name is a launch of p06's on a GPU, in order, except for attention's gather
APART = [
    ("norm", "qkv"),
    ("norm q", "norm k", "cat", "roll", "·cos", "+·sin"),
    ("store k", "store v"),
    ("gather k", "gather v", "attend"),
    ("out", "+"),
    ("norm", "gate, up", "silu", "·"),
    ("down", "+"),
]
TOGETHER = ["qkv", "heads, store", "", "attend", "out, +", "gate, up", "down, +"]


def layer() -> Drawing:
    """Draw the launches of one layer: what p09 does about each, and the final engine's kernel for each group."""
    drawing = Drawing("A layer's launches: those that p09 takes away, and what the final engine makes of all", 358)
    drawing.words(0, 18, "p06", bold=True)
    drawing.words(600, 18, "final engine", bold=True)
    for row, names in enumerate(APART):
        y = 30 + row * 38
        for place, name in enumerate(names):
            drawing.cell(place * 94, y, 88, 30, _kind(name), name)
        if TOGETHER[row]:
            tall = 68 if not TOGETHER[(row + 1) % len(TOGETHER)] else 30
            drawing.cell(600, y, 194, tall, FREE if "store" in TOGETHER[row] else NEW, TOGETHER[row])
    drawing.legend(322, [(NEW, "reads weights or keys"), (FREE, "mostly launch")])
    drawing.legend(350, [(WASTE, "gone in p09"), (KEPT, "+ and the next norm: one launch in p09")])
    return drawing


def _kind(name: str) -> Kind:
    if name.startswith("gather"):
        return WASTE
    if name in ("+", "norm"):
        return KEPT
    return NEW if name in ("qkv", "out", "gate, up", "down", "attend") else FREE


# -- a long prompt's steps ---------------------------------------------------------------------------------------------

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
