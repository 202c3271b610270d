"""p06's figures: a long prompt among decodes, whole and in chunks, and where a step's fixed cost ends.

The steps are those of the lessons' schedulers (p05's without a budget, p06's with one), their lengths the roofline's
floor for the model and machine named here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gradus import phases
from gradus.bench.roofline import Machine, SpanShape, Widths, step_cost
from gradus.course.drawing import BOX, KEPT, NEW, WASTE, Drawing
from gradus.engine.plan import Plan, Sampled
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Sequence, SpanResult
from gradus.models.shapes import SHAPES

LLAMA, SMOL = SHAPES["llama-3.2-1b"], SHAPES["smollm2-135m"]
H200, TWO_CORES = Machine(bandwidth=4.3e12, rate=780e12), Machine(bandwidth=33e9, rate=160e9)  # as measured, rounded
BFLOAT16, MIXED = Widths(weight=2, kv=2), Widths(weight=2, kv=4)  # on the CPU, only the weights are narrow

PROMPT, BUDGET, BEFORE, SHOWN = 4000, 512, 4, 18.0
PEOPLE, LONG = ("Ann", "Ben", "Cy"), "Ben"


@dataclass(slots=True)
class Done:
    """A step's result without a model: token 1 wherever there are logits."""

    plan: Plan
    rows: int = 0

    def get(self) -> Sampled:
        return Sampled.of(self.plan, [SpanResult((1,) * span.logits) for span in self.plan.expanded()])


@dataclass(slots=True)
class Step:
    """start, end: milliseconds. tokens: of each sequence by name."""

    start: float
    end: float
    tokens: dict[str, int]


@dataclass(slots=True)
class Run:
    """A scheduler at work on a simulated clock: decodes under way, and then a long prompt."""

    budget: int | None
    now: float = 0.0
    steps: list[Step] = field(default_factory=list)

    def play(self) -> "Run":
        """Steps until the long prompt's fourth token. Time counts from a step of decodes alone."""
        scheduler = self._scheduler()
        limits = ModelLimits(LLAMA.vocab_size, LLAMA.context_length)

        def ask(name: str, prompt: int) -> None:
            tokens = [ord(name[0])] * prompt  # prompts that have nothing in common
            request = Request.create(name, tokens, SamplingParams(max_tokens=500, ignore_eos=True), limits)
            scheduler.add([Sequence(request, 0)])

        for name in (one for one in PEOPLE if one != LONG):
            ask(name, prompt=120)
        while len(self.steps) < BEFORE + 1:
            self._step(scheduler)
        self.now, self.steps = 0.0, self.steps[:0]
        for _ in range(BEFORE):
            self._step(scheduler)
        ask(LONG, PROMPT)
        generated = 0
        while generated < 4:
            plan = self._step(scheduler)
            generated += sum(
                span.logits for span in plan.expanded() if span.sequence and span.sequence.request.id == LONG
            )
        return self

    def _scheduler(self) -> Any:
        cache = phases.find("p05").module("cache").PrefixCache(1000, 16)
        if self.budget is None:
            return phases.find("p05").module("scheduler").PrefixBatching(cache, len(PEOPLE))
        return phases.find("p06").module("scheduler").ChunkedPrefill(cache, len(PEOPLE), self.budget)

    def _step(self, scheduler: Any) -> Plan:
        plan: Plan | None = scheduler.schedule()
        assert plan is not None
        shapes = [SpanShape(span.start, len(span.tokens), span.logits) for span in plan.expanded()]
        started = self.now
        self.now += 1000 * step_cost(LLAMA, shapes, BFLOAT16).seconds(H200)
        scheduler.commit(plan, Done(plan))
        scheduler.check()
        tokens = {span.sequence.request.id: len(span.tokens) for span in plan.expanded() if span.sequence}
        self.steps.append(Step(started, self.now, tokens))
        return plan

    @property
    def longest_gap(self) -> float:
        """Between two tokens of a sequence that decodes: it gets one per step, so a gap is a step."""
        return max(step.end - step.start for step in self.steps)

    @property
    def first_token(self) -> float:
        """Of the long prompt, from its arrival."""
        arrived = self.steps[BEFORE].start
        return max(step.end for step in self.steps if step.tokens.get(LONG, 0) > 1) - arrived


# -- steps over time ---------------------------------------------------------------------------------------------------


def steps() -> Drawing:
    whole, chunked = Run(None).play(), Run(BUDGET).play()
    drawing = Drawing(
        f"{LONG}'s prompt of {PROMPT:,} tokens among {len(PEOPLE) - 1} decodes: whole, the slowest gap between two "
        f"tokens is {whole.longest_gap:.1f} ms; in chunks, {chunked.longest_gap:.1f} ms",
        386,
    )
    for top, title, run in (
        (0, f"{LONG}'s prompt in one span", whole),
        (176, f"At most {BUDGET} tokens per step", chunked),
    ):
        gap, first = f"slowest gap {run.longest_gap:.1f} ms", f"first token after {run.first_token:.1f} ms"
        drawing.words(0, top + 18, title, bold=True)
        drawing.words(800, top + 18, f"{gap}, {first}", anchor="end")
        _lanes(drawing, top + 30, run)
    drawing.legend(
        376, [(KEPT, "a decode"), (NEW, f"tokens of {LONG}'s prompt"), (WASTE, "a decode that waits for them")]
    )
    return drawing


def _lanes(drawing: Drawing, top: float, run: Run) -> None:
    left, height = 52, 26
    scale = (796 - left) / SHOWN
    typical = run.steps[0].end - run.steps[0].start
    for lane, name in enumerate(PEOPLE):
        y = top + lane * (height + 6)
        drawing.words(0, y + 19, name)
        for step in run.steps:
            if name in step.tokens and step.end <= SHOWN:
                x, width = left + step.start * scale, (step.end - step.start) * scale
                if step.tokens[name] > 1:
                    drawing.cell(x, y, width - 3, height, NEW, f"{step.tokens[name]:,}" if width > 48 else "")
                else:
                    drawing.cell(x, y, width - 3, height, WASTE if step.end - step.start > 4 * typical else KEPT)
    base = top + len(PEOPLE) * (height + 6) + 2
    drawing.arrow((left, base), (796, base))
    for tick in range(0, int(SHOWN), 4):
        drawing.arrow((left + tick * scale, base), (left + tick * scale, base + 5), head=False)
        drawing.words(left + tick * scale, base + 20, f"{tick} ms" if tick else "0", size=15, anchor="middle")


# -- where the fixed cost ends -----------------------------------------------------------------------------------------

CURVES = {
    "SmolLM2-135M, two CPU cores": (SMOL, TWO_CORES, MIXED),
    "Llama-3.2-1B, H200": (LLAMA, H200, BFLOAT16),
}
MOST, HIGHEST = 8192, 4096
LABELS = {"SmolLM2-135M, two CPU cores": (150, 132), "Llama-3.2-1B, H200": (524, 216)}


def slower(name: str, tokens: int) -> float:
    """How many times as long as a step of one token a step takes that begins a prompt with so many, at least."""
    config, machine, widths = CURVES[name]
    one, many = (step_cost(config, [SpanShape(0, count)], widths).seconds(machine) for count in (1, tokens))
    return many / one


def knee(name: str) -> int:
    """The most tokens whose arithmetic takes no longer than reading the weights does."""
    config, machine, widths = CURVES[name]
    costs = {tokens: step_cost(config, [SpanShape(0, tokens)], widths) for tokens in range(1, 1024)}
    return max(
        tokens
        for tokens, cost in costs.items()
        if cost.matrix_flops / machine.rate <= cost.weight_bytes / machine.bandwidth
    )


def budget() -> Drawing:
    knees = {name: knee(name) for name in CURVES}
    said = " and ".join(f"{tokens} tokens for {name}" for name, tokens in knees.items())
    drawing = Drawing(f"A step takes as long as its weights up to {said}; beyond, each token adds its own time", 404)
    left, right, top, bottom = 74, 786, 16, 322

    def place(tokens: float, times: float) -> tuple[float, float]:
        x = left + (right - left) * math.log2(tokens) / math.log2(MOST)
        return x, bottom - (bottom - top) * math.log2(times) / math.log2(HIGHEST)

    _axes(drawing, place)
    for name, tokens in knees.items():
        counts = sorted({round(2 ** (quarter / 4)) for quarter in range(4 * 13 + 1)})
        drawing.arrow(*(place(count, slower(name, count)) for count in counts), head=False, color=NEW.fill)
        (x, y), label = place(tokens, slower(name, tokens)), LABELS[name]
        drawing.arrow((x, label[1] + 32), (x, y - 9), dashed=True)
        drawing.rectangle(x - 6, y - 6, 12, 12, BOX, radius=6)
        drawing.words(*label, name, bold=True)
        drawing.words(label[0], label[1] + 22, f"{tokens} tokens")
    drawing.legend(396, [(BOX, "up to here, arithmetic takes no longer than reading the weights")])
    return drawing


def _axes(drawing: Drawing, place: Callable[[float, float], tuple[float, float]]) -> None:
    (left, bottom), (right, top) = place(1, 1), place(MOST, HIGHEST)
    drawing.arrow((left, top - 10), (left, bottom), (right, bottom), head=False)
    for exponent in range(0, 14, 2):
        x, _ = place(2**exponent, 1)
        drawing.arrow((x, bottom), (x, bottom + 6), head=False)
        drawing.words(x, bottom + 24, f"{2**exponent:,}", size=15, anchor="middle")
    for exponent in range(0, 13, 3):
        _, y = place(1, 2**exponent)
        drawing.arrow((left - 6, y), (left, y), head=False)
        drawing.words(left - 12, y + 5, f"{2**exponent:,}×", size=15, anchor="end")
    drawing.words(left + 14, top + 6, "step time, against a step of one token")
    drawing.words(right, bottom + 46, "tokens in the step", anchor="end")
