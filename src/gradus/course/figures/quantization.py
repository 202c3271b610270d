"""p07's figures: grids for a row and for groups, the times of bytes and arithmetic, AWQ's search, GPTQ's columns,
errors by bits, and the points of floats.

All numbers are computed: by the lesson's own code on the made-up layer of `one_layer.py` and on a few weights
drawn from a seed, and by the roofline for the model and machine named here. No torch is imported before a figure is
drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gradus import phases
from gradus.bench.predict.roofline import Machine, SpanShape, Widths, step_cost
from gradus.course.drawing import BOX, FREE, GREY, KEPT, NEW, WASTE, Drawing, Kind, axes
from gradus.models.shapes import SHAPES


def part(name: str) -> Any:
    """A module of the phase."""
    return phases.find("p07").module(name)


# -- one grid for a row, or one for each group -------------------------------------------------------------------------

OUTLIER, PLACE, GROUPED = 1.2, 9, 4


def weights() -> list[float]:
    """Make twelve weights of a row, one of them an outlier."""
    draw = Random(3)
    drawn = [round(draw.gauss(0, 0.1), 2) for _ in range(12)]
    return [*drawn[:PLACE], OUTLIER, *drawn[PLACE + 1 :]]


def kept(row: Sequence[float], group: int) -> tuple[list[int], list[float]]:
    """Round a row in groups. Returns the codes, and the weights that they represent."""
    import torch

    rounding = part("rounding")
    codes, scale, offset = rounding.quantize_groups(torch.tensor([row], dtype=torch.float64), group)
    return codes[0].tolist(), rounding.dequantize_groups(codes, scale, offset)[0].tolist()


def grids() -> Drawing:
    row = weights()
    ways = {"one grid": kept(row, len(row)), f"groups of {GROUPED}": kept(row, GROUPED)}
    off = {name: sum(abs(a - b) for a, b in zip(row, back, strict=True)) / len(row) for name, (_, back) in ways.items()}
    coarse, fine = off.values()
    drawing = Drawing(
        f"Twelve weights in four bits: with one grid they are off by {coarse:.3f} on average, in groups of {GROUPED} "
        f"by {fine:.3f}, for the outlier widens the grid of its own group alone",
        308,
    )
    _numbers(drawing, 0, "weights", [_short(value) for value in row], [BOX] * 12)
    for top, (name, (codes, back)) in zip((56, 166), ways.items(), strict=True):
        _numbers(drawing, top, name, [str(code) for code in codes], [NEW] * 12)
        wrong = [abs(a - b) > 0.02 for a, b in zip(row, back, strict=True)]
        _numbers(drawing, top + 42, "back", [_short(value) for value in back], [WASTE if w else KEPT for w in wrong])
        drawing.words(800, top + 96, f"off by {off[name]:.3f} on average", anchor="end")
    for column in range(GROUPED, 12, GROUPED):
        x = _column(column) - 3.5
        drawing.arrow((x, 160), (x, 246), head=False, dashed=True)
    drawing.legend(302, [(NEW, "what is stored"), (KEPT, "within 0.02"), (WASTE, "further off")])
    return drawing


def _short(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # a zero without a sign


def _column(column: int) -> float:
    return 122 + column * 56.5


def _numbers(drawing: Drawing, top: float, name: str, values: list[str], kinds: list[Kind]) -> None:
    drawing.words(0, top + 23, name, bold=name != "back")
    for column, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        drawing.cell(_column(column), top, 50, 34, kind, value)


# -- the least time of a step ------------------------------------------------------------------------------------------

LLAMA = SHAPES["llama-3.2-1b"]
H200 = Machine(bandwidth=4.3e12, rate=780e12)  # as measured in bfloat16, rounded
TWICE = Machine(H200.bandwidth, 2 * H200.rate)  # eight-bit products: twice as many per second, by the data sheet
MOST_ROWS = 4096
MILLISECONDS = (0.2, 16.0)


def floor_ms(name: str, rows: int) -> float:
    """Compute the least time of a step that begins a prompt of `rows` tokens."""
    sizes, step = part("benchmark"), STEPS[name]
    widths = Widths(sizes.bytes_per_weight(LLAMA, step.bytes, 2.0), 2.0)
    cost = step_cost(LLAMA, [SpanShape(0, rows)], widths)
    products = replace(cost, kv_bytes=0.0, attention_flops=0.0)
    attention = replace(cost, weight_bytes=0.0, matrix_flops=0.0)  # in bfloat16, whatever the weights are
    return 1000 * (products.seconds(step.machine) + attention.seconds(H200))


@dataclass(frozen=True, slots=True)
class Step:
    """bytes: per weight of the layers. machine: for their products. The other fields are for drawing."""

    bytes: float
    machine: Machine
    color: str
    dashed: bool = False


STEPS = {
    "bfloat16": Step(2.0, H200, GREY, dashed=True),
    "weights in 4 bits": Step(4.5 / 8, H200, NEW.fill),
    "weights and inputs in 8 bits": Step(1.0, TWICE, WASTE.stroke),
}


def rows() -> Drawing:
    one = {name: floor_ms(name, 1) for name in STEPS}
    many = {name: floor_ms(name, MOST_ROWS) for name in STEPS}
    wide, narrow, both = STEPS
    drawing = Drawing(
        f"Llama-3.2-1B on an H200, at best: with one row {wide} takes {one[wide]:.2f} ms, {narrow} {one[narrow]:.2f}, "
        f"{both} {one[both]:.2f}; with {MOST_ROWS:,} rows {many[wide]:.1f}, {many[narrow]:.1f} and {many[both]:.1f}",
        390,
    )
    low, high = MILLISECONDS

    def place(count: float, ms: float) -> tuple[float, float]:
        x = 74 + 700 * math.log2(count) / math.log2(MOST_ROWS)
        return x, 322 - 300 * math.log2(ms / low) / math.log2(high / low)

    axes(drawing, place, [(float(1 << k), f"{1 << k:,}") for k in range(0, 13, 2)],
          [(ms, f"{ms:g} ms") for ms in (0.2, 0.5, 1, 2, 5, 10)], "rows in the step")  # fmt: skip
    counts = sorted({round(2 ** (quarter / 4)) for quarter in range(4 * 12 + 1)})
    for name, step in STEPS.items():
        points = [place(count, floor_ms(name, count)) for count in counts]
        drawing.arrow(*points, head=False, dashed=step.dashed, color=step.color)
        drawing.words(86, points[0][1] - 6, f"{name}: {one[name]:.2f} ms", bold=True, color=step.color)
    drawing.words(742, place(MOST_ROWS, many[narrow])[1] + 5, f"{many[narrow]:.1f} ms", anchor="end")
    drawing.words(796, place(MOST_ROWS, many[both])[1] + 52, f"{many[both]:.1f} ms", anchor="end")
    return drawing


# -- AWQ: the search ---------------------------------------------------------------------------------------------------


def errors_by_ratio(bits: int = 4) -> tuple[float, list[float]]:
    """Compute relative errors on the made-up layer: of plain rounding, and of AWQ's factors at each of its ratios, on
    the tokens that AWQ searches with."""
    awq, one_layer = part("awq"), part("one_layer")
    x, w = one_layer.layer()
    seen, _ = x.chunk(2)
    x_size, w_size = seen.abs().mean(dim=0), awq.size_in_group(w)
    plain = one_layer.WAYS["a grid per group of 64"](seen, w, bits)
    tried = [awq.rounded(w, awq.factors_at(ratio, x_size, w_size), bits=bits) for ratio in awq.RATIOS]
    return one_layer.relative_error(seen, w, plain), [one_layer.relative_error(seen, w, each) for each in tried]


def search() -> Drawing:
    plain, tried = errors_by_ratio()
    ratios = part("awq").RATIOS
    best = min(range(len(tried)), key=tried.__getitem__)
    drawing = Drawing(
        f"One layer in four bits: plain rounding puts its output off by {plain:.1%}, AWQ's factors at ratio "
        f"{ratios[best]:g} by {tried[best]:.1%}",
        366,
    )
    most = max(plain, *tried) * 1.05

    def place(ratio: float, error: float) -> tuple[float, float]:
        return 74 + 700 * ratio, 298 - 280 * error / most

    ticks = [step * 0.05 for step in range(int(most / 0.05) + 1)]
    axes(drawing, place, [(tenth / 10, f"{tenth / 10:g}") for tenth in range(0, 11, 2)],
          [(tick, f"{tick:.0%}") for tick in ticks], "ratio: how much the inputs decide")  # fmt: skip
    drawing.arrow(place(0, plain), place(1, plain), head=False, dashed=True)
    drawing.words(96, place(0, plain)[1] - 9, f"factors of 1, plain rounding: {plain:.1%}")
    drawing.arrow(*map(place, ratios, tried), head=False, color=NEW.fill)
    for ratio, error in zip(ratios, tried, strict=True):
        x, y = place(ratio, error)
        drawing.rectangle(x - 5, y - 5, 10, 10, NEW if ratio == ratios[best] else BOX, radius=5)
    x, y = place(ratios[best], tried[best])
    drawing.words(x, y + 30, f"{tried[best]:.1%} at {ratios[best]:g}", anchor="middle", bold=True)
    return drawing


# -- GPTQ: one row, column by column -----------------------------------------------------------------------------------

COLUMNS, SOURCES = 6, 2


def columns_of_a_row() -> tuple[list[list[float]], list[float], float, float]:
    """Round six weights of a row to two bits, with correlated inputs. Returns the row before each column's turn and at
    the end; the plainly rounded row; and the output's relative errors, plain rounding's first."""
    import torch

    gptq, rounding, one_layer = part("gptq"), part("rounding"), part("one_layer")
    random = torch.Generator().manual_seed(14)
    sources = torch.randn(200, SOURCES, generator=random, dtype=torch.float64)
    x = sources @ torch.randn(SOURCES, COLUMNS, generator=random, dtype=torch.float64)
    x += 0.3 * torch.randn(200, COLUMNS, generator=random, dtype=torch.float64)
    w = torch.randn(1, COLUMNS, generator=random, dtype=torch.float64)
    plain = rounding.dequantize_groups(*rounding.quantize_groups(w, COLUMNS, bits=2))
    scale, offset = rounding.grid(w, bits=2)
    u, moved = gptq.influence(gptq.hessian(x)), w.clone()
    states = [moved[0].tolist()]
    for column in range(COLUMNS):
        codes = gptq.column_step(moved, column, u, scale, offset, bits=2)
        moved[:, column] = codes * scale + offset
        states.append(moved[0].tolist())
    errors = [one_layer.relative_error(x, w, instead) for instead in (plain, moved)]
    return states, plain[0].tolist(), errors[0], errors[1]


def columns() -> Drawing:
    states, plain, before, after = columns_of_a_row()
    drawing = Drawing(
        f"A row of six weights in two bits: rounded each by itself its output is off by {before:.0%}, with each error "
        f"handed on to the columns behind it by {after:.0%}",
        430,
    )
    for number, state in enumerate(states):
        name = "the row" if number == 0 else f"column {number}"
        kinds = [KEPT if column < number - 1 else NEW if column == number - 1 else BOX for column in range(COLUMNS)]
        _row(drawing, number * 44, name, state, kinds)
    bottom = len(states) * 44
    drawing.words(620, bottom - 21, f"off by {after:.0%}", bold=True)
    _row(drawing, bottom + 18, "each alone", plain, [FREE] * COLUMNS)
    drawing.words(620, bottom + 41, f"off by {before:.0%}", bold=True)
    drawing.legend(422, [(NEW, "rounded now"), (KEPT, "rounded before"), (BOX, "still free: makes up for the error")])
    return drawing


def _row(drawing: Drawing, top: float, name: str, values: Sequence[float], kinds: Sequence[Kind]) -> None:
    drawing.words(0, top + 23, name)
    for column, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        drawing.cell(110 + column * 82, top, 76, 34, kind, _short(value))


# -- errors by bits ----------------------------------------------------------------------------------------------------

LINES: dict[str, tuple[str, bool]] = {  # color, dashed
    "a scale per row": (GREY, True),
    "a grid per group of 64": (GREY, False),
    "AWQ": (WASTE.stroke, False),
    "GPTQ": (NEW.fill, False),
}
LOWEST, HIGHEST = 0.001, 1.0


def bits() -> Drawing:
    one_layer = part("one_layer")
    found = {count: one_layer.errors(count) for count in one_layer.BITS}
    four = ", ".join(f"{name} {error:.1%}" for name, error in found[4].items())
    drawing = Drawing(f"How far a layer's output is off, by the bits of its weights. In four bits: {four}", 420)

    def place(count: float, error: float) -> tuple[float, float]:
        return 74 + 700 * (count - 2) / 6, 322 - 300 * math.log(error / LOWEST) / math.log(HIGHEST / LOWEST)

    axes(drawing, place, [(float(count), str(count)) for count in (2, 3, 4, 5, 6, 7, 8)],
          [(error, f"{100 * error:g}%") for error in (0.001, 0.01, 0.1, 1.0)], "bits per weight")  # fmt: skip
    for number, (name, (color, dashed)) in enumerate(LINES.items()):
        points = [place(count, found[count][name]) for count in one_layer.BITS]
        drawing.arrow(*points, head=False, dashed=dashed, color=color)
        x, y = 440, 30 + 26 * number
        drawing.arrow((x, y - 5), (x + 40, y - 5), head=False, dashed=dashed, color=color)
        drawing.words(x + 52, y, f"{name}: {found[4][name]:.1%} in four")
    drawing.words(130, 18, "the output is off by")
    return drawing


# -- the points of floats ----------------------------------------------------------------------------------------------

UP_TO = 6.0  # E2M1's largest; the others are drawn with a scale that gives them the same


def lines_of_points() -> dict[str, list[float]]:
    """The points of each way from 0 to 6. A grid of four bits without an offset has seven besides 0."""
    formats = part("formats")
    whole = [UP_TO * point / 7 for point in range(8)]
    wide = (formats.points(formats.E4M3) * UP_TO / formats.E4M3.largest).tolist()
    return {"int4": whole, "E2M1": formats.points(formats.E2M1).tolist(), "E4M3": wide}


def points() -> Drawing:
    lines = lines_of_points()
    below = sum(value < 1 for value in lines["E4M3"])
    drawing = Drawing(
        f"Points from 0 to the same largest value: a grid's are at equal distances, a float's dense near zero. Of "
        f"E4M3's {len(lines['E4M3'])}, {below} are in the first sixth",
        226,
    )
    for number, (name, values) in enumerate(lines.items()):
        y = 40 + 62 * number
        drawing.words(0, y + 5, name, bold=True)
        drawing.arrow((_along(0), y), (_along(UP_TO), y), head=False, color=GREY)
        for value in values:
            drawing.arrow((_along(value), y - 14), (_along(value), y + 14), head=False, color=NEW.fill)
    for value in range(7):
        drawing.words(_along(value), 212, str(value), anchor="middle")
    return drawing


def _along(value: float) -> float:
    return 74 + 700 * value / UP_TO
