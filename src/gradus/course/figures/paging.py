"""p04's figures, drawn from caches and a scheduler that really run: slots against pages, a block table, a window's
pages, a preemption. All parts are the lesson's own, except for the windows, which only the final engine's cache has.
"""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gradus import phases
from gradus.bench.workloads import conversational
from gradus.cache.paged import PagedCache as WindowedCache
from gradus.course.drawing import BOX, FREE, KEPT, NEW, WASTE, WIDTH, Drawing, Kind
from gradus.course.xray.scenes import SCENES
from gradus.engine.plan import Plan, Sampled
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Sequence, SpanResult


def lesson(part: str) -> ModuleType:
    """A module of p04's folder."""
    return phases.find("p04").module(part)


# -- slots against pages -----------------------------------------------------------------------------------------------

CONTEXT, PAGE_SIZE, PEOPLE = 1024, 16, 16


def lengths() -> list[int]:
    """Lengths of conversations, prompt and answer. Each of them has reserved CONTEXT tokens."""
    return [job.prompt + job.output for job in conversational(PEOPLE).jobs]


def filled() -> Any:
    """Make a pool as large as the slots would be, and fill it with all conversations."""
    cache = lesson("cache").PagedCache(PEOPLE * CONTEXT // PAGE_SIZE, PAGE_SIZE)
    for name, length in enumerate(lengths()):
        assert cache.reserve(name, length)
    return cache


def memory() -> Drawing:
    usage = filled().usage()
    in_slots = 1 - usage.stored_positions / (PEOPLE * CONTEXT)
    drawing = Drawing(
        f"{PEOPLE} conversations leave {in_slots:.0%} of their slots empty, and {usage.internal_fragmentation:.1%} of "
        "their pages",
        418,
    )
    width, height, left = 296, 15, 0
    drawing.words(left, 18, f"In slots of {CONTEXT:,} positions", bold=True)
    for row, length in enumerate(lengths()):
        y = 32 + row * (height + 3)
        drawing.rectangle(left, y, width, height, WASTE, radius=1)
        drawing.rectangle(left, y, width * length / CONTEXT, height, KEPT, radius=1)
    drawing.words(left, 344, f"{in_slots:.0%} of it is empty; room for {PEOPLE}")
    _pool(drawing, 352, usage.held, usage.pages)
    drawing.words(352, 344, f"Only {usage.internal_fragmentation:.1%} of what they hold is empty;")
    drawing.words(352, 366, f"{usage.free} of {usage.pages:,} pages are free for others")
    drawing.legend(410, [(KEPT, "keys and values"), (WASTE, "reserved, stores nothing"), (FREE, "free pages")])
    return drawing


def _pool(drawing: Drawing, left: float, held: int, pages: int) -> None:
    """Draw all pages as one grid, a cell for a few of them; the last held cell may be partly free."""
    columns, rows, each = 16, 16, 4
    drawing.words(left, 18, f"On pages of {PAGE_SIZE} (a cell: {each} pages)", bold=True)
    size = (WIDTH - left) / columns
    for cell in range(pages // each):
        x, y = left + cell % columns * size, 32 + cell // columns * (288 / rows)
        drawing.rectangle(x, y, size - 3, 288 / rows - 3, KEPT if cell * each < held else FREE, radius=1)


# -- a block table -----------------------------------------------------------------------------------------------------

SMALL, POOL = 4, 12  # positions per page, pages
COLORS: dict[str, Kind] = {"Ann": NEW, "Ben": BOX}


def scattered() -> Any:
    """Let Ann's and Ben's chats grow in turns; Cy's two come and go in between, and leave their pages to them."""
    cache = lesson("cache").PagedCache(POOL, SMALL)
    for name, end in (("Cy", 3), ("Ann", 4), ("Ben", 7), ("Cy again", 11), ("Ann", 7), ("Ben", 9)):
        assert cache.reserve(name, end)
    cache.release("Cy again")
    assert cache.reserve("Ann", 10)
    cache.release("Cy")
    assert cache.reserve("Ann", 14)
    return cache


def block_table() -> Drawing:
    cache = scattered()
    usage = cache.usage()
    drawing = Drawing("A block table leads from a sequence's positions to pages that lie anywhere in the pool", 388)
    (table,) = cache.tables("Ann")
    owner = {page: name for name in COLORS for page in cache.tables(name)[0]}
    stored = cache.stored("Ann")
    drawing.words(0, 20, f"Ann's chat: {stored} positions on pages of {SMALL}, and its block table", bold=True)
    entry, cell = 180, WIDTH / POOL
    for index, page in enumerate(table):
        x = index * (entry + 20)
        first, last = index * SMALL, min(stored, (index + 1) * SMALL) - 1
        drawing.cell(x, 34, entry, 36, NEW, f"{first}–{last}")
        drawing.cell(x, 74, entry, 36, KEPT, f"page {page}")
        drawing.arrow((x + entry / 2, 112), ((page - 0.5) * cell, 226))
    drawing.words(WIDTH, 216, "The pool", bold=True, anchor="end")
    for page in range(1, POOL + 1):
        kind = COLORS[owner[page]] if page in owner else FREE
        drawing.cell((page - 1) * cell, 230, cell - 4, 44, kind, f"{page} {owner.get(page, '')}".strip())
    position = 6
    page = table[position // SMALL]
    drawing.words(
        0,
        304,
        f"Position {position} is in entry {position} // {SMALL} = {position // SMALL}, page {page}: row "
        f"{page} · {SMALL} + {position} % {SMALL} = {page * SMALL + position % SMALL} of every layer.",
    )
    drawing.words(
        0,
        336,
        f"{usage.free} pages are free, at most {usage.longest_free_run} side by side: external fragmentation "
        f"{usage.external_fragmentation:.0%}, and it costs nothing.",
    )
    drawing.legend(378, [(NEW, "Ann's page, by number"), (BOX, "Ben's"), (FREE, "free: Cy's two chats have ended")])
    return drawing


# -- two lifetimes -----------------------------------------------------------------------------------------------------

WINDOW, DECODED = 8, 26


def windows() -> Drawing:
    """Draw one sequence in two layer groups: one sees all positions, one a window."""
    cache = WindowedCache(POOL, SMALL, windows=(None, WINDOW))
    assert cache.reserve("Ann", 6)
    for end in range(7, DECODED + 1):
        assert cache.reserve("Ann", end)
    cache.check()
    full, windowed = cache.tables("Ann")
    drawing = Drawing(
        "The same sequence in two layer groups: behind a window, pages are given back as it moves on", 226
    )
    cell = 82
    for row, (table, name) in enumerate(((full, "full attention"), (windowed, f"window of {WINDOW}"))):
        y = 36 + row * 62
        drawing.words(0, y + 26, name)
        for index, page in enumerate(table):
            drawing.cell(150 + index * cell, y, cell - 5, 42, KEPT if page else FREE, f"page {page}" if page else "0")
    for index in range(len(full)):
        last = min(DECODED, (index + 1) * SMALL) - 1
        drawing.words(150 + index * cell + 38, 20, f"{index * SMALL}–{last}", anchor="middle", mono=True, size=15)
    oldest = DECODED - WINDOW
    drawing.words(
        0, 186, f"Position {DECODED - 1} is computed, and sees {oldest} to {DECODED - 1} in the second group."
    )
    drawing.legend(216, [(KEPT, "held"), (FREE, "given back: it will not be read again")])
    return drawing


# -- a preemption ------------------------------------------------------------------------------------------------------

REQUESTS = {asked.name: (asked.length - asked.output, asked.output) for asked in SCENES["p04"].asked}  # prompt, answer
PAGES = 6


@dataclass(slots=True)
class Run:
    """Each sequence's history by step: the rows computed for it (0: it waits), and the pages that it held."""

    rows: dict[str, list[int]] = field(default_factory=dict)
    pages: dict[str, list[int]] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    preemptions: int = 0


class EachSpanSamplesOne:
    """A step's result without a model: token 1 for each span."""

    def __init__(self, plan: Plan) -> None:
        self.rows = plan.tokens
        self._plan = plan

    def get(self) -> Sampled:
        return Sampled.of(self._plan, [SpanResult((1,)) for _ in range(self._plan.size)])


def pressure() -> Run:
    """Run three requests on a pool that holds two of them, and not to their ends."""
    limits = ModelLimits(vocab_size=10, context_length=PAGES * SMALL)
    cache = lesson("cache").PagedCache(PAGES, SMALL)
    scheduler = lesson("scheduler").PagedBatching(cache, max_sequences=len(REQUESTS))
    for name, (prompt, answer) in REQUESTS.items():
        params = SamplingParams(max_tokens=answer, ignore_eos=True)
        scheduler.add([Sequence(Request.create(name, [2] * prompt, params, limits), index=0)])
    run = Run({name: [] for name in REQUESTS}, {name: [] for name in REQUESTS})
    while (plan := scheduler.schedule()) is not None:
        rows = {span.sequence.request.id: len(span.tokens) for span in plan.expanded() if span.sequence is not None}
        for name in REQUESTS:
            run.rows[name].append(rows.get(name, 0))
            run.pages[name].append(sum(map(len, cache.tables((name, 0)))))
        run.free.append(cache.pages().free)
        scheduler.commit(plan, EachSpanSamplesOne(plan))
        scheduler.check()
    run.preemptions = scheduler.preemptions
    return run


def preemption() -> Drawing:
    run = pressure()
    steps = len(run.free)
    title = (
        f"{len(REQUESTS)} requests on {PAGES} pages: when none is free, the last to come goes back and is recomputed"
    )
    drawing = Drawing(title, 332)
    left, height = 66, 40
    size = (WIDTH - left) / steps
    drawing.words(0, 18, f"Pages held in each of {steps} steps; {PAGES} are all there are", bold=True)
    for row, name in enumerate(REQUESTS):
        y = 32 + row * (height + 8)
        drawing.words(0, y + 26, name)
        started = False
        for step, (rows, pages) in enumerate(zip(run.rows[name], run.pages[name], strict=True)):
            done = not any(run.rows[name][step:])
            if done:
                break
            kind = FREE if not rows else KEPT if rows == 1 else WASTE if started else NEW
            started = started or rows > 0
            drawing.cell(left + step * size, y, size - 3, height, kind, str(pages) if pages else "")
    y = 32 + len(REQUESTS) * (height + 8)
    drawing.words(0, y + 20, "free")
    for step, free in enumerate(run.free):
        drawing.words(left + (step + 0.5) * size - 1, y + 20, str(free), anchor="middle", mono=True, size=16)
    drawing.legend(234, [(NEW, "its prompt"), (KEPT, "a decode"), (FREE, "it waits")])
    drawing.legend(262, [(WASTE, "prompt and answer so far, computed again after a preemption")])
    drawing.words(
        0, 298, f"Cy waits, with {run.free[0]} pages free: it needs one, and Ann and Ben each one to grow into."
    )
    again = sum(rows for name in REQUESTS for rows in run.rows[name]) - sum(p + a - 1 for p, a in REQUESTS.values())
    drawing.words(
        0, 326, f"{run.preemptions} preemption, {again} rows computed twice; the output is unchanged.", bold=True
    )
    return drawing
