"""A pipeline's schedules, as p12's own code makes them: four stages with 1, 2 and 4 micro-batches, and the bubble."""

from gradus import phases
from gradus.course.drawing import BOX, KEPT, NEW, WASTE, Drawing, Kind

STAGES, ROUNDS, TURNS = 4, 3, (1, 2, 4)
LEFT, CELL, HEIGHT, PANEL = 84, 46, 22, 148
KINDS: tuple[Kind, ...] = (NEW, KEPT, BOX, Kind("#d9d9d9", "#10202c", "#747c84"))


def pipeline() -> Drawing:
    schedule = phases.find("p12").module("schedule")
    tables = {count: schedule.timetable(STAGES, count, ROUNDS) for count in TURNS}
    said = ", ".join(f"{schedule.bubble(table):.0%} with {count}" for count, table in tables.items())
    drawing = Drawing(
        f"Four stages, three rounds: the share of ticks without work is {said} micro-batches", 3 * PANEL + 4
    )
    for panel, (count, table) in enumerate(tables.items()):
        top = panel * PANEL + 26
        name = "1 micro-batch" if count == 1 else f"{count} micro-batches"
        drawing.words(0, top - 8, f"{name}: {schedule.bubble(table):.0%} of the ticks are lost", bold=True)
        for stage, row in enumerate(table):
            y = top + stage * (HEIGHT + 4)
            drawing.words(0, y + 17, f"stage {stage}")
            for tick, each in enumerate(row):
                kind, word = (WASTE, "") if each is None else (KINDS[each], "abcd"[each])
                drawing.cell(LEFT + tick * CELL, y, CELL - 4, HEIGHT, kind, word)
    return drawing
