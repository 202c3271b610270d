"""p08's figures: one verification, the tokens of a step, the predicted speed-up, and how often each rule accepts.

The lesson's own code computes all numbers: the guess and its verification, the expected tokens, the roofline for
the model and machine named here, and the made-up models of `rules.py`. No torch is imported before a figure is drawn.
"""

import math
from typing import Any

from gradus import phases
from gradus.bench.predict.roofline import Machine
from gradus.course.drawing import BOX, GREY, KEPT, NEW, WASTE, Drawing, Kind, axes
from gradus.engine.plan import Span
from gradus.engine.sequence import SpanResult
from gradus.models.shapes import SHAPES


def part(name: str) -> Any:
    """A module of the phase."""
    return phases.find("p08").module(name)


# -- one step ----------------------------------------------------------------------------------------------------------

TEXT = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "cat", "sat"]
SAMPLED = ["on", "the", "sofa", "while", "it"]  # by the model, for each row of the step


def one_step() -> tuple[int, list[str], list[str]]:
    """Run one step. Returns the earlier place of the text's ending, the drafts from there, and the accepted tokens."""
    words = sorted({*TEXT, *SAMPLED})
    text, sampled = ([words.index(word) for word in each] for each in (TEXT, SAMPLED))
    drafting, verification = part("drafting"), part("verification")
    drafts = drafting.continuation(text, len(SAMPLED) - 1)
    span = Span(None, 0, len(text) - 1, [text[-1], *drafts], logits=len(SAMPLED))
    _, result = verification.kept(span, SpanResult(tuple(sampled)))
    match = drafting.seen_before(text)
    return match, [words[token] for token in drafts], [words[token] for token in result.tokens]


def verified() -> Drawing:
    match, drafts, given = one_step()
    size = part("drafting").LONGEST
    drawing = Drawing(
        f"The last {size} words stood at the beginning, so the {len(drafts)} words behind them are guessed; "
        f"{len(given) - 1} are what the model samples, and the step gives {len(given)} words: {' '.join(given)}",
        312,
    )
    drawing.words(0, 22, "known")
    for place, word in enumerate(TEXT):
        kind = KEPT if place >= len(TEXT) - size or match - size <= place < match else BOX
        _word(drawing, place, 0, kind, word)
    drawing.bracket(_at(match - size), _at(match) - 6, 50, "seen before")
    drawing.bracket(_at(match), _at(match + len(drafts)) - 6, 50, "so this is guessed")
    drawing.bracket(_at(len(TEXT) - size), _at(len(TEXT)) - 6, 50, "the ending")
    for top, name, words in ((108, "the rows", [TEXT[-1], *drafts]), (176, "sampled", SAMPLED)):
        drawing.words(0, top + 22, name)
        for place, word in enumerate(words):
            newest = words is not SAMPLED and place == 0
            _word(drawing, place, top, KEPT if newest else NEW if place < len(given) else WASTE, word)
    for place, word in enumerate(drafts):
        drawing.arrow((_at(place) + 36, 174), (_at(place + 1) + 20, 144), head=False, dashed=SAMPLED[place] != word)
    drawing.words(_at(5) + 20, 130, "one forward pass over all five rows")
    drawing.words(_at(5) + 20, 198, f"{' '.join(given)}: {len(given)} tokens in one step", bold=True)
    drawing.legend(
        250, [(NEW, "rows and samples that count"), (WASTE, "from the first draft that differs on: dropped")]
    )
    drawing.words(0, 294, "A line joins each sample to the draft in its place; a dashed one joins two that differ.")
    return drawing


def _at(place: float) -> float:
    return 92 + place * 71


def _word(drawing: Drawing, place: int, top: float, kind: Kind, word: str) -> None:
    drawing.cell(_at(place), top, 66, 34, kind, word)


# -- tokens per step ---------------------------------------------------------------------------------------------------

DRAFTS = {1: GREY, 2: WASTE.stroke, 4: "#56B4E9", 8: NEW.fill}


def tokens() -> Drawing:
    expected = part("payoff").expected_tokens
    at = {drafts: expected(0.8, drafts) for drafts in DRAFTS}
    said = ", ".join(f"{value:.1f} with {drafts}" for drafts, value in at.items())
    drawing = Drawing(f"Expected tokens per step by acceptance rate. At 0.8: {said} drafts", 392)

    def place(rate: float, count: float) -> tuple[float, float]:
        return 60 + 640 * rate, 322 - 300 * (count - 1) / 8

    axes(drawing, place, [(tenth / 10, f"{tenth / 10:g}") for tenth in range(0, 11, 2)],
         [(float(count), str(count)) for count in (1, 3, 5, 7, 9)], "acceptance rate a")  # fmt: skip
    for drafts, color in DRAFTS.items():
        points = [place(rate / 50, expected(rate / 50, drafts)) for rate in range(51)]
        drawing.arrow(*points, head=False, color=color)
        drawing.words(points[-1][0] + 10, points[-1][1] + 5, f"k = {drafts}", bold=True, color=color)
    drawing.words(78, 20, "tokens per step")
    return drawing


# -- when it pays ------------------------------------------------------------------------------------------------------

MODEL = "llama-3.2-1b"
H200 = Machine(bandwidth=4.3e12, rate=780e12)  # as measured in bfloat16, rounded
RATES = {0.95: NEW.fill, 0.8: "#56B4E9", 0.6: WASTE.stroke, 0.4: GREY, 0.2: GREY}
LARGEST = 256


def predicted(rate: float, batch: int) -> float:
    """Predict the speed-up of Llama-3.2-1B on an H200 by drafts that cost nothing."""
    speed_up: float = part("payoff").speed_up(SHAPES[MODEL], H200, batch, rate)
    return speed_up


def payoff() -> Drawing:
    drafts, context = part("payoff").DRAFTS, part("payoff").CONTEXT
    ends = ", ".join(f"at {rate:g} {predicted(rate, 1):.1f} and {predicted(rate, LARGEST):.1f}" for rate in RATES)
    drawing = Drawing(
        f"Predicted speed-up of Llama-3.2-1B on an H200 by {drafts} drafts that cost nothing, behind {context} "
        f"positions, for a batch of 1 and of {LARGEST}, by acceptance rate: {ends}",
        402,
    )

    def place(batch: float, times: float) -> tuple[float, float]:
        return 60 + 726 * math.log2(batch) / math.log2(LARGEST), 330 - 310 * times / 5

    axes(drawing, place, [(float(1 << k), str(1 << k)) for k in range(0, 9, 2)],
         [(float(times), f"{times}×") for times in range(6)], "sequences in the batch")  # fmt: skip
    drawing.arrow(place(1, 1), place(LARGEST, 1), head=False, dashed=True)
    drawing.words(76, place(1, 1)[1] + 22, "no gain")
    batches = sorted({round(2 ** (quarter / 4)) for quarter in range(4 * 8 + 1)})
    for rate, color in RATES.items():
        points = [place(batch, predicted(rate, batch)) for batch in batches]
        drawing.arrow(*points, head=False, color=color, dashed=rate == min(RATES))
        drawing.words(196, points[0][1] - 7, f"a = {rate:g}", bold=True, color=color)
    drawing.words(78, 18, f"predicted speed-up, {drafts} drafts")
    return drawing


# -- how often each rule accepts ---------------------------------------------------------------------------------------

RULES: dict[str, tuple[str, bool]] = {  # color, dashed
    "rejection sampling": (GREY, True),
    "the same noise": (NEW.fill, False),
    "the drafter's likeliest token": (WASTE.stroke, False),
    "noise of its own": (GREY, False),
}


def rules() -> Drawing:
    module = part("rules")
    found = {degree: module.acceptance(degree) for degree in module.TEMPERATURES}
    last = found[module.TEMPERATURES[-1]]
    said = ", ".join(f"{name} {last[name]:.0%}" for name in RULES)
    drawing = Drawing(f"How often a draft is accepted, by temperature. At temperature 1: {said}", 392)

    def place(temperature: float, rate: float) -> tuple[float, float]:
        return 66 + 350 * temperature, 322 - 300 * rate

    axes(drawing, place, [(tenth / 10, f"{tenth / 10:g}") for tenth in range(0, 11, 2)],
         [(fifth / 5, f"{fifth * 20}%") for fifth in range(6)], "temperature")  # fmt: skip
    for name, (color, dashed) in RULES.items():
        points = [place(degree, found[degree][name]) for degree in module.TEMPERATURES]
        drawing.arrow(*points, head=False, dashed=dashed, color=color)
        x, y = points[-1]
        lift = -8 if name == "rejection sampling" else 14 if name == "the same noise" else 5
        drawing.words(x + 10, y + lift, f"{name}: {last[name]:.0%}", bold=True, color=color)
    drawing.words(84, 20, "drafts accepted")
    return drawing
