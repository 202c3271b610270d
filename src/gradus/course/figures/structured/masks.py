"""The tokens and the probability that masks leave, token by token, in answers of a real model. No torch here."""

import math

from gradus.course.drawing import NEW, WASTE, Drawing, Kind, axes
from gradus.course.figures.structured.recorded import recorded

# -- how many tokens a mask leaves -------------------------------------------------------------------------------------

BARS, LOW = 232, 300  # height of the tallest bar; the baseline
VOCABULARY = 49_152


def legal() -> Drawing:
    """Show the number of legal tokens, on a logarithmic axis, for each token of an answer."""
    found = recorded("person")
    most = max(row.legal for row in found.rows)
    drawing = Drawing(
        f"How many of {VOCABULARY:,} tokens could come in each place of {found.text}: from 1 to {most:,}", LOW + 96
    )
    drawing.words(0, 18, f"tokens that may come, of {VOCABULARY:,} (each line: ten times as many)", bold=True)
    for power in range(5):
        y = LOW - BARS * power / math.log10(VOCABULARY)
        drawing.arrow((62, y), (796, y), head=False, dashed=True)
        drawing.words(54, y + 5, f"{10**power:,}", size=15, anchor="end")
    pitch = (796 - 70) / len(found.rows)
    for place, row in enumerate(found.rows):
        height = max(3.0, BARS * math.log10(row.legal) / math.log10(VOCABULARY))
        x = 70 + place * pitch
        drawing.rectangle(x, LOW - height, pitch - 8, height, NEW)
        drawing.words(x + (pitch - 8) / 2, LOW - height - 7, f"{row.legal:,}", size=15, anchor="middle")
        drawing.words(x + (pitch - 8) / 2, LOW + 24, _written(row.drawn), size=15, anchor="middle", mono=True)
    drawing.words(0, LOW + 24, "drawn", size=15)
    drawing.words(
        0, LOW + 58, r'The answer must match \{"name": "[A-Z][a-z]{1,15}", "age": [1-9]\d?\}', mono=True, size=15
    )
    drawing.words(
        0,
        LOW + 88,
        "Inside the name thousands of tokens are legal, elsewhere only a few.",
        bold=True,
    )
    return drawing


def _written(token: str) -> str:
    return {"<|im_end|>": "end"}.get(token, token.replace(" ", "␣").replace("\n", "⏎"))


# -- how much probability a mask leaves --------------------------------------------------------------------------------

SHOWN = {
    "word": ("must be Paris or London", WASTE.stroke),
    "sentence": ("must be a sentence with one of them", NEW.fill),
}
FLOOR = 1e-6


def probability() -> Drawing:
    answers = {name: recorded(name) for name in SHOWN}
    told = "; ".join(f"{answer.text} ({answer.rows[0].probability:.1%} at first)" for answer in answers.values())
    drawing = Drawing(f"The model's probability for all legal tokens, token by token: {told}", 420)

    def place(token: float, share: float) -> tuple[float, float]:
        return 146 + 80 * token, 20 + 300 * math.log10(max(share, FLOOR)) / math.log10(FLOOR)

    most = max(len(answer.rows) for answer in answers.values())
    ticks = [(10.0**power, f"{'≤ ' * (power == -6)}{100 * 10.0**power:g}%") for power in range(-6, 1, 2)]
    axes(
        drawing,
        place,
        [(-0.5, ""), *((float(token), str(token + 1)) for token in range(most))],
        ticks,
        "token of the answer",
    )
    for name, answer in answers.items():
        said, color = SHOWN[name]
        points = [place(token, row.probability) for token, row in enumerate(answer.rows)]
        drawing.arrow(*points, head=False, color=color)
        above = name == "sentence"
        for (x, y), row in zip(points, answer.rows, strict=True):
            drawing.rectangle(x - 4, y - 4, 8, 8, Kind(color, color, color), radius=4)
            drawing.words(x + (0 if above else 10), y + (26 if above else -8), _written(row.drawn), size=15,
                          anchor="middle" if above else "start", color=color, mono=True)  # fmt: skip
        drawing.words(*((430, 80) if above else (490, 262)), said, bold=True, color=color)
        drawing.words(*((430, 102) if above else (490, 284)), f"answers {answer.text}", size=16, color=color)
    drawing.words(0, 406, f"{answers['word'].prompt} Freely: {answers['word'].free}", bold=True)
    return drawing
