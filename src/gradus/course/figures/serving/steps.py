"""Steps around a long prompt, recorded by the live X-ray, and what one of the other streams gets of them."""

from itertools import pairwise

from gradus.course.drawing import KEPT, NEW, WIDTH, Drawing
from gradus.course.figures.serving import load
from gradus.course.figures.timeline import round_step

LEFT, RIGHT, STEPS, STREAM, AXIS = 92, WIDTH - 6, 62, 148, 200


def steps() -> Drawing:
    found = load.recorded()["steps"]
    rows = found["steps"]
    chunks = [row for row in rows if row[3]]
    usual = sorted(after[1] - before[1] for before, after in pairwise(rows) if not before[3])[len(rows) // 4]
    drawing = Drawing(
        f"{len(rows)} steps. {len(chunks)} of them read a prompt of {sum(row[3] for row in chunks)} tokens next to "
        f"{max(row[2] for row in chunks)} decodes; a stream's tokens come every {usual:.0f} ms, and then "
        f"{found['longest_gap']:.0f} ms apart",
        AXIS + 104,
    )
    end = rows[-1][1]

    def place(ms: float) -> float:
        return LEFT + (RIGHT - LEFT) * ms / end

    drawing.words(0, STEPS + 5, "steps", bold=True)
    drawing.words(0, STREAM + 5, "a stream", bold=True)
    drawing.arrow((LEFT, STREAM), (RIGHT, STREAM), head=False)
    for (start, _, _, prefill), (after, *_) in pairwise([*rows, [rows[-1][1], 0, 0, 0]]):
        wide = place(after) - place(start)
        drawing.rectangle(place(start), STEPS - 22, max(1.5, wide - 1), 44, NEW if prefill else KEPT, radius=1)
        if prefill and wide > 40:
            middle = place(start) + wide / 2
            drawing.words(middle, STEPS + 6, str(prefill), size=16, color=NEW.ink, anchor="middle", mono=True)
    for _, sent, *_ in rows:
        drawing.arrow((place(sent), STREAM - 13), (place(sent), STREAM + 13), head=False, color=NEW.fill)
    size = round_step(end / 8)
    drawing.arrow((LEFT, AXIS), (RIGHT, AXIS), head=False)
    for tick in range(int(end / size) + 1):
        x = place(tick * size)
        drawing.arrow((x, AXIS), (x, AXIS + 5), head=False)
        if x < RIGHT - 30:
            drawing.words(x, AXIS + 22, f"{tick * size:g}{' ms' * (tick > 0)}", size=15, anchor="middle")
    legend = [(KEPT, "decodes alone"), (NEW, "a chunk of the prompt, in tokens, next to the decodes")]
    drawing.legend(AXIS + 60, legend, LEFT)
    drawing.words(LEFT, AXIS + 92, "A line is a token that the stream gets.")
    return drawing
