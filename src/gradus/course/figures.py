"""The figures of the lessons and of docs/architecture.md. `python -m gradus.course.figures` draws them all.

A test compares the files in the repository with what is drawn here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradus import phases
from gradus.course import (
    figures_architecture,
    figures_budget,
    figures_forward,
    figures_graphs,
    figures_kernels,
    figures_paging,
    figures_prefix,
    figures_quantization,
    figures_scene,
    figures_speculation,
    figures_timeline,
)
from gradus.course.drawing import FREE, KEPT, NEW, WASTE, Drawing, Kind
from gradus.course.xray.scenes import SCENES
from gradus.exercises.declaration import repository

ANN = (["A", "sea", "poem"], ["The", "tide", "came", "in", "at", "dawn"])
"""Ann's prompt, and the poem. The lessons let her have it whole, or only its beginning."""


# -- p00 and p01: what each step computes ------------------------------------------------------------------------------


PROMPT, STEPS = len(ANN[0]), 4
STORY = [*ANN[0], *ANN[1][:STEPS]]


def recomputed() -> Drawing:
    rows = sum(PROMPT + step for step in range(STEPS))
    drawing = Drawing(f"Without a cache, {STEPS} steps compute {rows} rows, of which {PROMPT + STEPS - 1} are new", 258)
    _staircase(drawing, old=WASTE)
    drawing.legend(212, [(NEW, "a new row"), (WASTE, "computed again, with the same result")])
    drawing.words(0, 246, f"Ann's poem: {rows} rows in {STEPS} steps, where {PROMPT + STEPS - 1} would do.", bold=True)
    return drawing


def kept() -> Drawing:
    new, read = PROMPT + STEPS - 1, sum(PROMPT + step for step in range(STEPS - 1))
    drawing = Drawing(f"With a cache, {STEPS} steps compute {new} rows and read the keys and values of the others", 258)
    _staircase(drawing, old=KEPT)
    drawing.legend(212, [(NEW, "a row computed in this step"), (KEPT, "its key and value are kept, and read")])
    drawing.words(
        0, 246, f"Ann's poem: {new} rows in {STEPS} steps; the other {read} are read from the cache.", bold=True
    )
    return drawing


def _staircase(drawing: Drawing, old: Kind) -> None:
    """A row of cells for each step: what was there before it, and what is new."""
    width, height = 72, 34
    for step in range(STEPS):
        y = 4 + step * (height + 10)
        known = PROMPT + step
        drawing.words(0, y + 23, f"step {step + 1}")
        for position in range(known):
            is_new = step == 0 or position == known - 1
            x = 74 + position * (width + 6)
            drawing.cell(x, y, width, height, NEW if is_new else old, STORY[position])
        x = 74 + known * (width + 6)
        drawing.arrow((x, y + height / 2), (x + 24, y + height / 2))
        drawing.words(x + 32, y + 23, STORY[known], mono=True, size=16)


def contiguous() -> Drawing:
    """p01: where one sequence's keys lie in memory."""
    drawing = Drawing(
        "The contiguous cache: in each layer and head, positions lie side by side up to the capacity", 392
    )
    heads, capacity, length = 3, 16, 7
    left, size = 176, 36
    for layer, top in ((0, 36), (1, 190)):
        drawing.words(0, top + 70, f"layer {layer}", bold=True)
        for head in range(heads):
            y = top + head * (size + 6)
            drawing.words(left - 16, y + 24, f"head {head}", anchor="end")
            for position in range(capacity):
                kind = KEPT if position < length - 1 else NEW if position == length - 1 else FREE
                word = str(position) if layer == head == 0 else ""
                drawing.cell(left + position * size, y, size - 3, size, kind, word)
    drawing.words(left, 22, "position")
    drawing.words(28, 336, "…", bold=True, size=22)
    drawing.words(0, 386, "A cell is one key: Dh numbers. The values lie in a second tensor, in the same way.")
    drawing.bracket(left, left + length * size - 3, 330, "read in this step")
    drawing.bracket(left + length * size, left + capacity * size - 3, 330, "reserved for what may come")
    return drawing


# -- p02: a rectangle --------------------------------------------------------------------------------------------------

# prompts and answers of the lesson's lengths; the last token of an answer is sampled, and never computed
BATCH = {
    "Ann": ANN,
    "Ben": (["Sum", "up:", "we", "met", "Jo", "and", "ate", "fig", "pie"], ["You", "ate", "pie"]),
    "Cy": (["2+2", "="], ["It's", "4"]),
}


def padded() -> Drawing:
    prompts, answers = zip(*BATCH.values(), strict=True)
    width, steps = max(map(len, prompts)), max(map(len, answers)) - 1
    real = sum(len(prompt) + len(answer) - 1 for prompt, answer in BATCH.values())
    cells = len(BATCH) * (width + steps)
    title = f"A batch as a rectangle: {cells - real} of {cells} rows are filler"
    drawing = Drawing(title, 262)
    left, narrow, wide, height, gap = 44, 47, 50, 36, 20
    decodes = left + width * narrow + gap
    end = decodes + steps * wide + 4
    drawing.words(left, 20, f"prefill: {len(BATCH)} × {width} rows in one step")
    drawing.words(decodes, 20, f"decode: {len(BATCH)} rows per step")
    drawing.words(end, 20, "last")
    for slot, (name, (prompt, answer)) in enumerate(BATCH.items()):
        y = 34 + slot * (height + 8)
        drawing.words(0, y + 24, name)
        for column in range(width):
            word = prompt[column] if column < len(prompt) else ""
            drawing.cell(left + column * narrow, y, narrow - 5, height, KEPT if word else WASTE, word)
        for column in range(steps):
            word = answer[column] if column < len(answer) - 1 else ""
            drawing.cell(decodes + column * wide, y, wide - 5, height, NEW if word else WASTE, word)
        drawing.words(end, y + 24, answer[-1], mono=True, size=16)
    drawing.arrow((decodes - gap / 2 - 3, 30), (decodes - gap / 2 - 3, 166), head=False, dashed=True)
    drawing.legend(
        204, [(KEPT, "prompt"), (NEW, "answer"), (WASTE, "filler: computed like all the others, then dropped")]
    )
    drawing.words(0, 244, f"{cells - real} of {cells} rows are filler.", bold=True)
    drawing.words(236, 244, "An answer's last token is sampled, and no row is computed for it.")
    return drawing


# -- p03: slots over time ----------------------------------------------------------------------------------------------

SLOTS = 2
REQUESTS = {asked.name: asked.output for asked in SCENES["p03"].asked}  # the steps that each takes


def timeline(continuous: bool) -> list[list[str]]:
    """For each step, which request each slot serves; "" for an idle slot."""
    waiting, left, slots, steps = list(REQUESTS), dict(REQUESTS), [""] * SLOTS, []
    while waiting or any(slots):
        if continuous or not any(slots):
            slots = [name or (waiting.pop(0) if waiting else "") for name in slots]
        steps.append(list(slots))
        for name in filter(None, slots):
            left[name] -= 1
        slots = [name if name and left[name] else "" for name in slots]
    return steps


def slots() -> Drawing:
    static, continuous = timeline(False), timeline(True)
    title = (
        f"The same three requests take {len(static)} steps in static batches, "
        f"{len(continuous)} with continuous batching"
    )
    drawing = Drawing(title, 358)
    _slots(
        drawing,
        0,
        f"Static batching, {len(static)} steps: the next batch waits for the last of this one",
        static,
        WASTE,
    )
    _slots(
        drawing,
        164,
        f"Continuous batching, {len(continuous)} steps: a sequence that ends makes room at once",
        continuous,
        FREE,
    )
    drawing.legend(
        350, [(NEW, "the prompt"), (KEPT, "a decode"), (WASTE, "computed in vain"), (FREE, "empty: none waits")]
    )
    return drawing


def _slots(drawing: Drawing, top: float, title: str, steps: list[list[str]], ended: Kind) -> None:
    """One row per slot. ended: how a slot looks whose sequence has ended, while others of its batch run."""
    left, size, height = 66, 80, 36
    drawing.words(0, top + 18, title, bold=True)
    seen: set[str] = set()
    batch: set[int] = set()  # the slots of the sequences that started together
    for step, names in enumerate(steps):
        x = left + step * size
        drawing.words(x + (size - 5) / 2, top + 46, str(step + 1), size=15, anchor="middle")
        if seen.isdisjoint(names):
            batch = {slot for slot, name in enumerate(names) if name}
        for slot, name in enumerate(names):
            idle = ended if slot in batch else FREE
            kind = idle if not name else KEPT if name in seen else NEW
            drawing.cell(x, top + 56 + slot * (height + 6), size - 5, height, kind, name)
        seen.update(filter(None, names))
    drawing.words(0, top + 46, "step", size=15)
    for slot in range(SLOTS):
        drawing.words(0, top + 56 + slot * (height + 6) + 24, f"slot {slot}")


# -- all of them -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """path: in the repository."""

    path: str
    draw: Callable[[], Drawing]


FIGURES = [
    Figure("phases/p00_baseline/figures/whole.svg", figures_forward.whole),
    Figure("phases/p00_baseline/figures/rotated.svg", figures_forward.rotated),
    Figure("phases/p00_baseline/figures/triangle.svg", figures_forward.triangle),
    Figure("phases/p00_baseline/figures/recomputed.svg", recomputed),
    Figure("phases/p01_kv_cache/figures/kept.svg", kept),
    Figure("phases/p01_kv_cache/figures/contiguous.svg", contiguous),
    Figure("phases/p02_static_batching/figures/padded.svg", padded),
    Figure("phases/p03_continuous_batching/figures/slots.svg", slots),
    Figure("phases/p04_paged_cache/figures/memory.svg", figures_paging.memory),
    Figure("phases/p04_paged_cache/figures/block_table.svg", figures_paging.block_table),
    Figure("phases/p04_paged_cache/figures/windows.svg", figures_paging.windows),
    Figure("phases/p04_paged_cache/figures/preemption.svg", figures_paging.preemption),
    Figure("phases/p05_prefix_cache/figures/growing.svg", figures_prefix.growing),
    Figure("phases/p05_prefix_cache/figures/evicting.svg", figures_prefix.evicting),
    Figure("phases/p06_chunked_prefill/figures/steps.svg", figures_budget.steps),
    Figure("phases/p06_chunked_prefill/figures/budget.svg", figures_budget.budget),
    Figure("phases/p07_quantization/figures/rows.svg", figures_quantization.rows),
    Figure("phases/p07_quantization/figures/grids.svg", figures_quantization.grids),
    Figure("phases/p07_quantization/figures/search.svg", figures_quantization.search),
    Figure("phases/p07_quantization/figures/columns.svg", figures_quantization.columns),
    Figure("phases/p07_quantization/figures/bits.svg", figures_quantization.bits),
    Figure("phases/p08_speculation/figures/verified.svg", figures_speculation.verified),
    Figure("phases/p08_speculation/figures/rules.svg", figures_speculation.rules),
    Figure("phases/p08_speculation/figures/tokens.svg", figures_speculation.tokens),
    Figure("phases/p08_speculation/figures/payoff.svg", figures_speculation.payoff),
    Figure("phases/p09_triton_attention/figures/traffic.svg", figures_kernels.traffic),
    Figure("phases/p09_triton_attention/figures/items.svg", figures_kernels.items),
    Figure("phases/p09_triton_attention/figures/layer.svg", figures_kernels.layer),
    Figure("phases/p10_cuda_graphs/figures/replay.svg", figures_graphs.replay),
    Figure("phases/p10_cuda_graphs/figures/inside.svg", figures_graphs.inside),
    Figure("phases/p10_cuda_graphs/figures/overlap.svg", figures_graphs.overlap),
    Figure("docs/figures/architecture.svg", figures_architecture.way),
    Figure("docs/figures/three_chats.svg", figures_scene.three_chats),
]
if figures_timeline.recorded():  # on a GPU: without its recording there is nothing to draw
    FIGURES.append(Figure("phases/p10_cuda_graphs/figures/timeline.svg", figures_timeline.steps))


def write_all(root: Path) -> None:
    for figure in FIGURES:
        path = root / figure.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(figure.draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    write_all(repository(phases.highest()))
