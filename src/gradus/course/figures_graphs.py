"""p10's figures: launches one by one and a replay, what a graph finds where, and steps that overlap.

The kernels' times are their bytes at the H200's bandwidth, for the model named here; what overlaps is the real loop and
the real scheduler, on a simulated clock.
"""

from dataclasses import dataclass, field

from gradus.cache.paged import PagedCache
from gradus.course.drawing import BOX, FREE, KEPT, NEW, WASTE, Drawing
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Sampled
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import SpanResult
from gradus.models.shapes import SHAPES
from gradus.scheduling.scheduler import Scheduler

# -- launches, one by one and replayed ---------------------------------------------------------------------------------

QWEN = SHAPES["qwen3-0.6b"]
BANDWIDTH = 4.3e6  # bytes a microsecond, of an H200, as measured and rounded
LAUNCH, SHORTEST, GAP = 10.0, 1.0, 1.0  # µs: the host's, per launch; of a kernel at least; between two of a graph
POSITIONS = 512  # of context


def kernels() -> dict[str, float]:
    """A decode's kernels in one layer, and the microseconds that their bytes take (bfloat16)."""
    queries, keys = QWEN.q_width, QWEN.kv_width
    numbers = {
        "qkv": QWEN.hidden_size * (queries + 2 * keys),
        "heads": queries + 2 * keys,
        "attend": 2 * POSITIONS * keys,
        "out": queries * QWEN.hidden_size,
        "gate_up": 2 * QWEN.hidden_size * QWEN.intermediate_size,
        "down": QWEN.intermediate_size * QWEN.hidden_size,
    }
    return {name: max(SHORTEST, 2 * count / BANDWIDTH) for name, count in numbers.items()}


def replay() -> Drawing:
    times = kernels()
    eager, layer = LAUNCH * len(times), sum(times.values()) + GAP * len(times)
    drawing = Drawing(
        f"Launched one by one, a layer takes {eager:.0f} µs, as long as the host; replayed, {layer:.0f} µs, as long as "
        "the GPU",
        336,
    )
    left, scale = 62, (796 - 62) / (eager + times["down"])
    for top, title in ((0, f"one by one: a layer in {eager:.0f} µs"), (160, f"replayed: a layer in {layer:.0f} µs")):
        drawing.words(0, top + 18, title, bold=True)
        drawing.words(0, top + 51, "host")
        drawing.words(0, top + 91, "GPU")
    for number, time in enumerate(times.values()):
        drawing.cell(left + number * LAUNCH * scale, 30, LAUNCH * scale - 3, 32, BOX, "launch")
        drawing.rectangle(left + (number + 1) * LAUNCH * scale, 70, time * scale, 32, NEW)
    drawing.cell(left, 190, LAUNCH * scale - 3, 32, BOX, "replay")
    drawing.rectangle(left + LAUNCH * scale, 190, (eager - LAUNCH) * scale, 32, FREE)
    drawing.words(left + (eager + LAUNCH) / 2 * scale, 212, "free to plan the next step", size=16, anchor="middle")
    at, layers = LAUNCH, 0
    while at + layer <= eager:
        for time in times.values():
            drawing.rectangle(left + at * scale, 230, time * scale, 32, KEPT if layers % 2 else NEW)
            at += time + GAP
        layers += 1
    drawing.legend(296, [(BOX, "the host's calls"), (NEW, "kernels of a layer"), (KEPT, "of the next")])
    drawing.words(0, 330, f"{layers} layers run in less time than the host takes to launch one.", bold=True)
    return drawing


# -- what a graph finds where ------------------------------------------------------------------------------------------


def inside() -> Drawing:
    """The tables on the device, one row per slot, and the step that reads and writes them."""
    drawing = Drawing(
        "A replayed step reads everything from fixed places, and leaves its tokens where the next looks", 368
    )
    drawing.words(0, 20, "host", bold=True)
    for row, (name, numbers) in enumerate((("slot", "201"), ("length", "756"), ("token", "---"))):
        drawing.words(0, 51 + row * 36, name)
        for place, number in enumerate(numbers):
            text = "−1" if number == "-" else number
            drawing.cell(62 + place * 40, 30 + row * 36, 36, 32, BOX, text)
    drawing.words(0, 158, "3 numbers per sequence")
    drawing.arrow((184, 82), (226, 82))
    drawing.rectangle(230, 30, 430, 104, FREE, radius=8)
    drawing.words(445, 20, "one graph", anchor="middle", bold=True)
    steps = ("ids", "work", "model", "head", "draw")
    for place, name in enumerate(steps):
        drawing.cell(242 + place * 84, 58, 70, 46, NEW, name)
        if place:
            drawing.arrow((228 + place * 84, 81), (240 + place * 84, 81))
    drawing.arrow((662, 82), (702, 82))
    drawing.words(708, 20, "host", bold=True)
    for place, token in enumerate(("31", "8", "77")):
        drawing.cell(708, 30 + place * 36, 44, 32, BOX, token)
    drawing.words(708, 158, "later")
    tables = [
        (242, "latest tokens", ("8", "77", "31", "", "·")),
        (420, "block tables", ("▤", "▤", "▤", "", "0")),
        (578, "seed, temperature", ("▪", "▪", "▪", "", "·")),
    ]
    for x, name, cells in tables:
        drawing.words(x, 226, name)
        for slot, cell in enumerate(cells):
            kind = WASTE if slot == len(cells) - 1 else KEPT if cell else FREE
            drawing.cell(x + slot * 30, 236, 27, 32, kind, cell)
    drawing.words(62, 257, "one row per slot")
    for slot in range(4):
        drawing.words(255 + slot * 30, 288, str(slot), size=15, anchor="middle")
    drawing.arrow((266, 206), (266, 106))
    drawing.arrow((446, 206), (446, 180), (361, 180), (361, 106))
    drawing.arrow((624, 206), (624, 106))
    drawing.arrow((598, 106), (598, 160), (302, 160), (302, 206))
    drawing.legend(324, [(WASTE, "the padding's slot"), (FREE, "a slot that is free")])
    drawing.words(0, 360, "What was sampled goes back to its slot: the next step finds it there, unseen.", bold=True)
    return drawing


# -- steps that overlap ------------------------------------------------------------------------------------------------

PLAN, STEP, COMMIT, SLOTS = 1.0, 4.0, 1.0, 2
ANSWERS = {"a": (9, 13), "b": (6, None), "c": (3, None)}  # most tokens, and the token that ends it sooner
PROMPT = 1


@dataclass(slots=True)
class Span:
    """A stretch of time: of the host, planning or committing a step, or of the GPU, running it."""

    step: int
    start: float
    end: float


@dataclass(slots=True)
class Run:
    """The loop over a device that takes STEP for a step. Names and waste are by slot: whose span, and if in vain."""

    lag: int
    now: float = 0.0
    free: float = 0.0  # when the device will be
    plans: list[Span] = field(default_factory=list)
    commits: list[Span] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    names: list[dict[int, str]] = field(default_factory=list)
    waste: list[set[int]] = field(default_factory=list)

    def play(self) -> "Run":
        scheduler = Scheduler(PagedCache(64, 16), SLOTS)
        limits = ModelLimits(vocab_size=100, context_length=64)
        engine = Engine(scheduler, self, limits, self.lag)
        for name, (most, stop) in ANSWERS.items():
            params = SamplingParams(max_tokens=most, stop_token_ids=() if stop is None else (stop,))
            engine.submit(Request.create(name, [1] * PROMPT, params, limits))
        while engine.has_work:
            engine.step()
            scheduler.check()
        return self

    def run(self, plan: Plan) -> "Launched":
        number = len(self.plans) + 1
        self.plans.append(Span(number, self.now, self.now + PLAN))
        self.now += PLAN
        start = max(self.now, self.free)
        self.free = start + STEP
        self.steps.append(Span(number, start, self.free))
        self.names.append({span.slot: span.sequence.request.id for span in plan.expanded() if span.sequence})
        self.waste.append(set())
        return Launched(self, plan, number)

    @property
    def idle(self) -> float:
        """How long the device waited between its first step and its last."""
        return self.steps[-1].end - self.steps[0].start - STEP * len(self.steps)


@dataclass(slots=True)
class Launched:
    """A step under way. The token at position p is 10 + p."""

    run: Run
    plan: Plan
    number: int
    rows: int = 0

    def get(self) -> Sampled:
        run = self.run
        run.now = max(run.now, run.steps[self.number - 1].end)
        run.commits.append(Span(self.number, run.now, run.now + COMMIT))
        run.now += COMMIT
        ended = {span.slot for span in self.plan.expanded() if span.sequence and span.sequence.finish_reason}
        run.waste[self.number - 1] = ended
        spans = self.plan.expanded()
        return Sampled.of(self.plan, [SpanResult((10 + span.start + len(span.tokens),)) for span in spans])


def overlap() -> Drawing:
    waiting, ahead = Run(lag=0).play(), Run(lag=1).play()
    saved = 1 - ahead.now / waiting.now
    drawing = Drawing(
        f"Planned one step ahead, {len(ahead.steps)} steps take {saved:.0%} less time than {len(waiting.steps)} that "
        "are waited for",
        422,
    )
    for top, title, run in (
        (0, f"Each step waited for: the GPU idles {waiting.idle:.0f} of {waiting.now:.0f} units", waiting),
        (186, f"One step ahead: it idles {ahead.idle:.0f} of {ahead.now:.0f} units, with a step more", ahead),
    ):
        drawing.words(0, top + 18, title, bold=True)
        _lanes(drawing, top + 30, run, scale=(796 - 62) / waiting.now)
    drawing.legend(382, [(BOX, "plan"), (FREE, "commit"), (NEW, "first span"), (KEPT, "decode"), (WASTE, "in vain")])
    drawing.words(0, 416, "a's stop is in step 3. Seen late, it costs one span in step 4.", bold=True)
    return drawing


def _lanes(drawing: Drawing, top: float, run: Run, scale: float) -> None:
    left, height = 62, 32
    drawing.words(0, top + 22, "host")
    for spans, kind in ((run.plans, BOX), (run.commits, FREE)):
        for span in spans:
            width = (span.end - span.start) * scale - 2
            drawing.cell(left + span.start * scale, top, width, height, kind, str(span.step))
    seen: set[str] = set()
    for slot in range(SLOTS):
        drawing.words(0, top + (slot + 1) * (height + 6) + 22, f"slot {slot}")
    for span, names, waste in zip(run.steps, run.names, run.waste, strict=True):
        for slot, name in names.items():
            y = top + (slot + 1) * (height + 6)
            kind = WASTE if slot in waste else KEPT if name in seen else NEW
            drawing.cell(left + span.start * scale, y, STEP * scale - 3, height, kind, name)
        seen.update(names.values())
    base = top + (SLOTS + 1) * (height + 6)
    drawing.arrow((left, base), (796, base))
