"""The demos: a phase and the one before it on one small workload, in a minute, with a chart of the idea's effect.

    shown = run(DEMOS["p06"], workbench)
    print(charts.TEXTS[shown.demo.chart](shown.series, "seconds", "gap between two tokens, ms"))

Each runs once, so the sizes are this machine's at this minute; only the directions are certain. Numbers to
quote come from `gradus bench`.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from gradus import phases
from gradus.bench.contenders.workbench import EngineContender, Room, Workbench, forget_prefixes
from gradus.bench.measure.drive import Run, drive
from gradus.bench.statistics import median
from gradus.bench.workloads import Workload, burst, long_prompts, shared_prefix, single_stream
from gradus.course.probe import EngineProbe
from gradus.course.views import forms
from gradus.course.views.forms import Answered, Form
from gradus.errors import ConfigError
from gradus.loading import CATALOGUE

Points = list[tuple[float, float]]

REAL = "smollm2-135m"
RECORDING = Path(__file__).parents[4] / "benchmarks" / "lessons" / "demos.json"
SMOOTHED = 8  # tokens that a rate is taken over
WARM_TOKENS = 4
MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Observed:
    """One contender's run. at_once: the number of sequences that each step advanced.

    legal: how many tokens could come, for each token of an answer to a Form. answered: that answer.
    """

    run: Run
    at_once: Sequence[int] = ()
    legal: Sequence[int] = ()
    answered: Answered | None = None

    @property
    def gaps(self) -> Points:
        """(time, ms) of each gap between two tokens of a sequence, in order of time."""
        pairs = (pair for times in self.run.token_times for pair in pairwise(times))
        return sorted((later, 1e3 * (later - earlier)) for earlier, later in pairs)

    @property
    def first_tokens(self) -> list[float]:
        """TTFT of each request, in ms."""
        requests = zip(self.run.arrivals, self.run.token_times, strict=True)
        return [1e3 * (times[0] - arrival.at) for arrival, times in requests]

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.run.token_times)) / max(times[-1] for times in self.run.token_times)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run. more: whether more is better. gains, loses: the words for a better and a worse one."""

    name: str
    unit: str
    read: Callable[[Observed], float]
    more: bool
    gains: str
    loses: str


@dataclass(frozen=True, slots=True)
class Demo:
    """A phase and the one before it. look: explains the chart. batch, context, cache_tokens, token_budget: as in a
    benchmark's rows. points: selects the points of a run to draw. chart: the kind of chart."""

    phase: str
    before: str
    question: str
    work: Workload | Form
    look: str
    across: str
    up: str
    points: Callable[[Observed], Points]
    figures: tuple[Figure, ...]
    batch: int = 1
    context: int | None = None
    cache_tokens: int | None = None
    token_budget: int | None = None
    chart: Literal["plot", "areas", "bars"] = "plot"

    @property
    def workload(self) -> str:
        """The work in a phrase: "16 requests at once, 8 to 16 tokens in, 4 to 48 out"."""
        return self.work.what[:1].upper() + self.work.what[1:]

    @property
    def asks(self) -> dict[str, object]:
        """Name all that decides what runs, as plain data: a recording keeps it."""
        room = {"batch": self.batch, "context": self.context, "cache_tokens": self.cache_tokens}
        return {"before": self.before, "work": self.work.digest(), **room, "token_budget": self.token_budget}

    def room_for(self, work: Workload) -> Room:
        return Room(self.context or work.longest, self.batch, self.cache_tokens, self.token_budget)


@dataclass(frozen=True, slots=True)
class Shown:
    """The results of a demo. series: the points of each phase. table: each figure's name, both values, and a
    comparison. transcript: the answers, token by token, if the work is a Form."""

    demo: Demo
    series: dict[str, Points]
    table: list[tuple[str, str, str, str]]
    transcript: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A demo's run that benchmarks/lessons/demos.py has kept. machine: in words."""

    shown: Shown
    model: str
    machine: str


def recorded(phase: str, file: Path = RECORDING) -> Recorded:
    """Raises ConfigError if the demo is not the one that was recorded."""
    found, demo = json.loads(file.read_text(encoding="utf-8"))[phase], demo_of(phase)
    if found["asks"] != demo.asks:
        command = f"python benchmarks/lessons/demos.py {phase}"
        raise ConfigError(f"{file.name}: the demo of {phase} has changed: run {command}")
    series = {name: [(x, y) for x, y in points] for name, points in found["series"].items()}
    table = [(name, before, after, says) for name, before, after, says in found["table"]]
    return Recorded(Shown(demo, series, table), found["model"], found["machine"])


def usual_model() -> str:
    """smollm2-135m; random weights of its shape, which take the same time, if it has not been pulled."""
    return REAL if CATALOGUE[REAL].pulled else f"random:{REAL}"


def demo_of(name: str) -> Demo:
    """Look up a phase's demo. Raises ConfigError for a phase without one."""
    if name not in DEMOS:
        programs = (phase.name for phase in phases.available() if phase.has("demo"))
        known = ", ".join(sorted({*DEMOS, *programs}))
        raise ConfigError(f"there are demos of {known}, none of {name}: try `gradus bench {name} --quick`")
    return DEMOS[name]


def run(demo: Demo, bench: Workbench, running: Callable[[str], AbstractContextManager[object]] = nullcontext) -> Shown:
    """Run the workload in the phase before, then in the phase. running: of each one's name, entered for its run."""
    seen: dict[str, Observed] = {}
    for name in (demo.before, demo.phase):
        with running(name):
            seen[name] = observe(name, demo, bench)
    before, after = seen[demo.before], seen[demo.phase]
    told = ""
    if before.answered is not None and after.answered is not None:
        told = forms.transcript(before.answered, after.answered, forms.words_of(bench))
    return Shown(
        demo,
        {name: demo.points(one) for name, one in seen.items()},
        [_line(figure, figure.read(before), figure.read(after)) for figure in demo.figures],
        told,
    )


def observe(name: str, demo: Demo, bench: Workbench) -> Observed:
    """Build the engine, let it run a few tokens to warm up, then the workload. Raises ContenderFailed if it fails."""
    if isinstance(demo.work, Form):
        return observe_form(forms.answer(name, demo.work, bench), bench.model.config.vocab_size)
    contender = EngineContender(name, bench, demo.room_for(demo.work))
    contender.build()
    engine = contender.engine
    assert engine is not None
    config, probe = bench.model.config, EngineProbe(engine, kept=MOST_STEPS)
    short = demo.work.shrunk(2, 16, WARM_TOKENS).within(0.0)
    contender.run(short.arrivals(config.vocab_size, config.context_length))
    forget_prefixes(engine)
    arrivals = demo.work.arrivals(config.vocab_size, config.context_length)
    probe.record()
    done = drive(engine, arrivals, bench.device)
    probe.stop()
    contender.close()
    return Observed(done, [len(step.spans) for step in probe.steps])


def observe_form(answered: Answered, vocab_size: int) -> Observed:
    """Without a form, every token of the vocabulary may come at each place."""
    free = [vocab_size] * len(answered.tokens)
    legal = [choice.legal for choice in answered.choices] or free
    return Observed(answered.run, legal=legal, answered=answered)


def _line(figure: Figure, before: float, after: float) -> tuple[str, str, str, str]:
    return figure.name, shown(before, figure.unit), shown(after, figure.unit), compared(figure, before, after)


def shown(value: float, unit: str) -> str:
    """Format three digits, with a comma from thousands on: "1,270 ms", "41.2"."""
    digits = max(0, 2 - math.floor(math.log10(value))) if 0 < value < 1000 else 0
    number = f"{value:,.{digits}f}"
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number}{unit and ' ' + unit}"


def compared(figure: Figure, before: float, after: float) -> str:
    """Compare two values in words: "7.1 times shorter", "none left", "about the same"."""
    if before == after:
        return "the same"
    if not after:
        return "none left"
    if not before:
        return "there were none"
    gain = after / before if figure.more else before / after
    if 0.95 < gain < 1.05:
        return "about the same"
    times, word = (gain, figure.gains) if gain > 1 else (1 / gain, figure.loses)
    return f"{times:,.{1 if times < 100 else 0}f} times {word}"


# -- points and figures ------------------------------------------------------------------------------------------------


def rates(seen: Observed) -> Points:
    """(tokens so far, tokens per second) of the only sequence."""
    (times,) = seen.run.token_times
    return [
        (count, SMOOTHED / (times[count - 1] - times[count - 1 - SMOOTHED]))
        for count in range(SMOOTHED + 1, len(times) + 1, SMOOTHED)
    ]


def places(seen: Observed) -> Points:
    return [(step, count) for step, count in enumerate(seen.at_once)]


def first_tokens(seen: Observed) -> Points:
    return [(number, ms) for number, ms in enumerate(seen.first_tokens, start=1)]


def gaps(seen: Observed) -> Points:
    """The gaps of the sequences that decode all the time."""
    return seen.gaps


def choices(seen: Observed) -> Points:
    """(token of the answer, how many could come there, as a power of ten)."""
    return [(place, math.log10(legal)) for place, legal in enumerate(seen.legal, start=1)]


def forced(seen: Observed) -> float:
    """The percentage of tokens in whose place no other could come."""
    return 100 * sum(legal == 1 for legal in seen.legal) / len(seen.legal)


def padding(seen: Observed) -> float:
    """The percentage of padding rows."""
    return 100 * (seen.run.padding_rows or 0) / (seen.run.rows or 1)


RATE = Figure("tokens per second", "", lambda seen: seen.tokens_per_second, True, "as many", "fewer")
ROWS = Figure("rows computed", "", lambda seen: seen.run.rows or 0, False, "fewer", "more")
STEPS = Figure("steps", "", lambda seen: seen.run.steps or 0, False, "fewer", "more")
PADDING = Figure("rows that are padding", "%", padding, False, "fewer", "more")
AT_ONCE = Figure("most sequences at once", "", lambda seen: max(seen.at_once), True, "as many", "fewer")
TTFT = Figure(
    "median time to the first token", "ms", lambda seen: median(seen.first_tokens[1:]), False, "shorter", "longer"
)
WORST = Figure(
    "worst gap between tokens", "ms", lambda seen: max(ms for _, ms in seen.gaps), False, "shorter", "longer"
)
USUAL = Figure(
    "usual gap between tokens", "ms", lambda seen: median([ms for _, ms in seen.gaps]), False, "shorter", "longer"
)
LONGEST = Figure(
    "time to the long prompt's first token", "ms", lambda seen: seen.first_tokens[-1], False, "shorter", "longer"
)
LEGAL = Figure("tokens that may come, median", "", lambda seen: median(list(seen.legal)), False, "fewer", "more")
FORCED = Figure("tokens that are forced", "%", forced, True, "as many", "fewer")

DEMOS: dict[str, Demo] = {
    demo.phase: demo
    for demo in (
        Demo(
            "p01",
            "p00",
            "As the answer grows, what does each further token cost?",
            single_stream(16, 97),
            "Without a cache every token computes all rows again, so the rate falls. With it, a token is one row.",
            "tokens so far",
            "tokens per second",
            rates,
            (RATE, ROWS),
            batch=1,
        ),
        Demo(
            "p02",
            "p01",
            "Sixteen requests at once: how often are the weights read, and how many rows are filler?",
            burst(16, (8, 16), (4, 24)),
            "Alone, each sequence reads all weights for each of its tokens. A batch reads them once per step for all "
            "that still run, and computes filler for those that have ended.",
            "step",
            "sequences that run",
            places,
            (STEPS, PADDING),
            batch=16,
            chart="areas",
        ),
        Demo(
            "p03",
            "p02",
            "Answers of all lengths: how many of four places are in use?",
            burst(16, (8, 16), (4, 48)),
            "A static batch starts again only when its last sequence has ended. Chosen anew at every step, places are "
            "filled as they become free.",
            "step",
            "sequences that run",
            places,
            (PADDING, STEPS),
            batch=4,
            chart="areas",
        ),
        Demo(
            "p04",
            "p03",
            "The same memory for both: how many sequences fit in it?",
            burst(16, (8, 32), (8, 32)),
            "A slot reserves all of a 256-token context for each sequence. Pages are taken only as a sequence grows.",
            "step",
            "sequences that run",
            places,
            (AT_ONCE, STEPS, RATE),
            batch=16,
            context=256,
            cache_tokens=768,
            chart="areas",
        ),
        Demo(
            "p05",
            "p04",
            "Seven requests begin with the same 256 tokens: how long until the first token?",
            shared_prefix(7, math.inf, 256, (8, 16), 8, lead=5.0),
            "The first request computes the shared prefix. With the prefix cache the others find its pages.",
            "request",
            "time to the first token, ms",
            first_tokens,
            (TTFT, ROWS),
            batch=7,
            chart="bars",
        ),
        Demo(
            "p06",
            "p05",
            "Three sequences decode, and a prompt of 400 tokens arrives: how long do they wait?",
            long_prompts(3, 72, 1, 400, 1.0, output=4),
            "Whole, the prompt is one long step, and every sequence waits for it. In chunks of at most 48 tokens per "
            "step, each wait is short.",
            "seconds",
            "gap between two tokens, ms",
            gaps,
            (WORST, USUAL, LONGEST),
            batch=4,
            token_budget=48,
        ),
        Demo(
            "p07",
            "p06",
            "One sequence alone: what is a token worth that reads fewer bytes?",
            single_stream(16, 97),
            "Both read every weight for each token. On a CPU p07's layers have four bits, multiplied as they are; "
            "attention, the head and the rest of a step stay. On a GPU torch widens eight bits first, which is slower.",
            "tokens so far",
            "tokens per second",
            rates,
            (RATE, USUAL),
            batch=1,
        ),
        Demo(
            "p11",
            "p10",
            "An answer has to be a line of JSON: how many tokens may come at each place?",
            Form("Alice is 34 years old. As JSON: ", {"regex": r'\{"name": "[A-Z][a-z]{1,15}", "age": [1-9]\d?\}'}, 48),
            "Freely, any token of the vocabulary may come at each place. In the form, few tokens may. At 0 on the axis "
            "only one may, so it is forced. Filling a mask takes much less time than a step of the model.",
            "token of the answer",
            "tokens that may come, as a power of ten",
            choices,
            (LEGAL, FORCED),
        ),
    )
}
