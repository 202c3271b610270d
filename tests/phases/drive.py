"""Drive an engine by hand, checking its books after every step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gradus.course.probe import EngineProbe, Step, plan_spans
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Sampled
from gradus.engine.request import Request
from gradus.engine.sequence import Output, SpanResult

MANY = 200  # steps, more than any driven engine needs


@dataclass
class Ending:
    """How one sample ended, and all its tokens."""

    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None


def run(engine: Engine, requests: Iterable[Request]) -> dict[tuple[str, int], Ending]:
    submit(engine, requests)
    endings: dict[tuple[str, int], Ending] = {}
    while engine.has_work:
        record(endings, step(engine))
    return endings


def run_schedule(
    engine: Engine, schedule: Sequence[dict[str, Any]], requests: Mapping[str, Request]
) -> dict[tuple[str, int], Ending]:
    """Submit and cancel at the steps that a drawn schedule says: "arrives" and "cancelled" of each "name"."""
    arrivals = sorted((item["arrives"], item["name"]) for item in schedule)
    coming = [(arrives, requests[name]) for arrives, name in arrivals]
    return served(engine, coming, {item["name"]: item["cancelled"] for item in schedule}, most=2500)


def served(
    engine: Engine,
    coming: Iterable[tuple[int, Request]],
    cancelled: Mapping[str, int | None] = MappingProxyType({}),
    most: int = 1000,
) -> dict[tuple[str, int], Ending]:
    """Step until all has ended. coming: requests in the order of the steps before which they come. cancelled: after
    which step, by request. most: more steps are a livelock."""
    endings: dict[tuple[str, int], Ending] = {}
    waiting, tick = list(coming), 0
    while waiting or engine.has_work:
        while waiting and waiting[0][0] <= tick:
            engine.submit(waiting.pop(0)[1])
        record(endings, step(engine))
        for name, after in cancelled.items():
            if after == tick:
                record(endings, engine.cancel(name))
        tick += 1
        assert tick < most, "livelock"
    return endings


def submit(engine: Engine, requests: Iterable[Request]) -> Engine:
    for request in requests:
        engine.submit(request)
    return engine


def step(engine: Engine) -> list[Output]:
    outputs = engine.step()
    EngineProbe(engine).check()
    return outputs


def record(endings: dict[tuple[str, int], Ending], outputs: Iterable[Output]) -> None:
    for output in outputs:
        ending = endings.setdefault((output.request_id, output.index), Ending())
        assert ending.finish_reason is None, "an output after the end"
        ending.tokens += output.tokens
        ending.finish_reason = output.finish_reason


class SamplesOnes:
    """A runner without a model, so that a mistake of the scheduler shows in the first plan that has it.

    It samples token 1 wherever a span asks for a token.
    """

    def run(self, plan: Plan) -> "Ones":
        return Ones(plan)


class Ones:
    """The result of one step."""

    rows = 0

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def get(self) -> Sampled:
        return Sampled.of(self.plan, [SpanResult((1,) * span.logits) for span in plan_spans(self.plan)])


def steps(engine: Engine) -> Iterator[Step]:
    """Each step until there is no work, with `SamplesOnes` in the runner's place for good; none is made ahead.

    The books are checked after every step, but only once the caller has seen it, and an error of its commit is raised
    then too: a wrong plan says more about a mistake than what it leads to.
    """
    with recorded(engine) as probe:
        for _ in range(MANY):
            if not engine.has_work:
                return
            step, error = attempt(engine, probe)
            yield step
            settle(probe, error)
    raise AssertionError(f"after {MANY} steps there still is work")


def next_step(engine: Engine) -> Step:
    """The step that comes next, the books checked after it."""
    with recorded(engine) as probe:
        step, error = attempt(engine, probe)
        settle(probe, error)
    return step


@contextmanager
def recorded(engine: Engine) -> Iterator[EngineProbe]:
    engine.runner, engine.lag = SamplesOnes(), 0
    probe = EngineProbe(engine)
    probe.guess_nothing()  # any n-gram guesses ones, and what is promised of plans is promised of steps without drafts
    probe.record()
    try:
        yield probe
    finally:
        probe.stop()


def attempt(engine: Engine, probe: EngineProbe) -> tuple[Step, Exception | None]:
    """One step, and the error that ended it once it was planned."""
    made, error = len(probe.steps), None
    try:
        engine.step()
    except Exception as raised:
        error = raised
    if len(probe.steps) == made:
        raise error or AssertionError("there is work to do, and the scheduler plans none")
    return probe.steps[-1], error


def settle(probe: EngineProbe, error: Exception | None) -> None:
    if error is not None:
        raise error
    probe.check()


Answers = Mapping[tuple[str, int], Ending]
"""How each sample ended, by its request's name and its number."""


def compare(
    requests: Mapping[str, Request], found: Answers, wanted: Answers, otherwise: Callable[[], Iterable[Answers]] = tuple
) -> None:
    """Every sample ended as it should; one that was cancelled, as far as it came.

    otherwise: makes the answers of sums that are rounded in other ways, where some sample is not as it should be. Among
    thousands of random requests, some come to a choice between two tokens that are as good as each other.
    """
    for sample, ending in found.items():
        right, name = wanted[sample], sample[0]
        if not agrees(ending, right) and not any(agrees(ending, answers[sample]) for answers in otherwise()):
            assert ending == right, f"{name}: {parting(requests[name].prompt, ending.tokens, right.tokens)}"


def agrees(ending: Ending, right: Ending) -> bool:
    if ending.finish_reason == "cancelled":
        return right.tokens[: len(ending.tokens)] == ending.tokens
    return ending == right


def nothing_is_left(engine: Engine) -> None:
    """All have ended: no sequence holds a page, and none is lost."""
    counts = EngineProbe(engine).pages()
    assert counts is not None and counts.held == 0, f"every sequence has ended, and pages are held: {counts}"
    assert counts.idle + counts.free == counts.total, f"a page is lost: {counts}"
    assert engine.metrics().waiting == engine.metrics().active == 0


def parting(prompt: Sequence[int], tokens: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Where an output leaves the right one, in a sentence."""
    differs = (i for i, (token, right) in enumerate(zip(tokens, expected, strict=False)) if token != right)
    at = next(differs, None)
    if at is None:
        return f"after {len(prompt)} prompt tokens {len(expected)} tokens should come, and {len(tokens)} came"
    return (
        f"after {len(prompt)} prompt tokens the output parts from the right one at its token {at + 1}, "
        f"position {len(prompt) + at}: {tokens[at]} instead of {expected[at]}"
    )
