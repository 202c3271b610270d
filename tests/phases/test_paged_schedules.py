"""Random schedules over few pages: requests come, leave, are preempted and share, and each gets its own tokens.

After every step the books balance, and when all have ended not a page is held. The right tokens are those of p03, which
has no pages: each sequence has a slot, shares nothing and is never preempted.
"""

from collections.abc import Callable, Iterable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.course.probe import EngineProbe, Step, walk
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from gradus.errors import RequestError
from gradus.models import Model
from tests.phases import drive
from tests.phases.conftest import (
    EVERY_FAMILY,
    FAMILIES,
    build_engine,
    in_turn,
    limits_of,
    reached,
    rounded_otherwise,
    since,
)  # fmt: skip
from tests.phases.drive import Ending, nothing_is_left, record, run, step, submit

SHAPE = "tiny-llama"
BEGINNINGS = ((), (7, 8, 9), tuple(range(40, 57)), tuple(range(40, 74)))  # the last one begins with the one before
LONGEST = 48  # positions; a sequence in a larger pool needs no more


def ask(name: str, prompt=(5, 6, 7), shape: str = SHAPE, salt: str | None = None, **params) -> Request:
    settings = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **params})
    return Request.create(name, prompt, settings, limits_of(shape), SchedulingParams(cache_salt=salt))


@cache
def without_pages(shape: str, asked: tuple[tuple, ...], model: Model | None = None) -> dict[tuple[str, int], Ending]:
    """The right answers to requests, each a name, a prompt and the names and values of its parameters."""
    requests = [ask(name, prompt, shape, **dict(params)) for name, prompt, params in asked]
    return run(build_engine("p03", shape, max_sequences=8, model=model), requests)


def compare(shape: str, requests: dict[str, Request], done: dict[tuple[str, int], Ending]) -> None:
    names = ("max_tokens", "temperature", "seed", "n", "presence_penalty")
    asked = tuple(
        (name, request.prompt, tuple((each, getattr(request.params, each)) for each in names))
        for name, request in requests.items()
    )
    right, others = without_pages(shape, asked), rounded_otherwise
    drive.compare(requests, done, right, lambda: (without_pages(shape, asked, model) for model in others(shape)))


# -- random ------------------------------------------------------------------------------------------------------------


@st.composite
def pools(draw) -> dict[str, int]:
    """Page size, pages (per layer group), sequences at once, tokens per step: storms need a pool that is tight."""
    page_size = draw(st.sampled_from([1, 4, 4, 16]))
    pages = draw(st.integers(2, 64) | st.integers(2, max(4, 40 // page_size)))
    return dict(
        page_size=page_size,
        cache_tokens=pages * page_size,
        max_sequences=draw(st.integers(1, 6)),
        token_budget=draw(st.sampled_from([1, 2, 3, 5, 8, 17, 64, 512])),
    )


@st.composite
def requests(draw, longest: int) -> list[dict]:
    """Requests that the pool could hold one at a time, and the steps at which they come and are cancelled."""
    plan = []
    for i in range(draw(st.integers(2, 6))):
        beginning = draw(st.sampled_from(BEGINNINGS))
        prompt = (*beginning, *draw(st.lists(st.integers(0, 9), min_size=1, max_size=8)))[: max(1, longest // 2)]
        plan.append(
            dict(
                name=f"r{i}",
                prompt=prompt,
                params=dict(
                    max_tokens=min(draw(st.sampled_from([1, 4, 12, 24, 40])), longest - len(prompt)),
                    temperature=draw(st.sampled_from([0.0, 0.0, 1.0])),
                    seed=i,
                    n=draw(st.sampled_from([1, 1, 1, 2, 3])),
                    presence_penalty=draw(st.sampled_from([0.0, 1.0])),
                ),
                salt=draw(st.sampled_from([None, None, "x"])),
                arrives=draw(st.sampled_from([0, 0, 0, 1, 2, 5, 10])),
                follow_up=draw(st.booleans()),
                cancelled=draw(st.none() | st.none() | st.integers(0, 30)),
            )
        )
    return plan


@since("p04")
@settings(max_examples=-(-settings.default.max_examples // 3))  # a schedule is long: up to hundreds of steps
@given(data=st.data(), shape=st.sampled_from(EVERY_FAMILY), pool=pools())
def test_whatever_the_schedule_each_request_gets_its_own_tokens_and_no_page_is_lost(phase, data, shape, pool):
    longest = min(pool["cache_tokens"], LONGEST)
    plan = data.draw(requests(longest))
    engine = build_engine(phase, shape, **pool)
    asked = {item["name"]: ask(item["name"], item["prompt"], shape, item["salt"], **item["params"]) for item in plan}
    arrivals = [(item["arrives"], asked[item["name"]]) for item in plan]
    follow_ups = {item["name"]: item for item in plan if item["follow_up"]}
    done: dict[tuple[str, int], Ending] = {}
    tick = 0
    while arrivals or engine.has_work:
        for due in [arrival for arrival in arrivals if arrival[0] <= tick]:
            engine.submit(due[1])
            arrivals.remove(due)
        for item in plan:
            if item["cancelled"] == tick:
                record(done, engine.cancel(item["name"]))
                EngineProbe(engine).check()
        outputs = step(engine)
        record(done, outputs)
        for output in outputs:
            if output.finish_reason == "length" and output.index == 0 and output.request_id in follow_ups:
                item = follow_ups.pop(output.request_id)
                longer = (*item["prompt"], *done[output.request_id, 0].tokens, 9)
                if len(longer) < longest:
                    name, params = f"{item['name']}-next", item["params"] | {"max_tokens": 1}
                    asked[name] = ask(name, longer, shape, item["salt"], **params)
                    arrivals.append((tick + 1, asked[name]))
        tick += 1
        assert tick < 2500, "livelock"
    compare(shape, asked, done)
    nothing_is_left(engine)


# -- one thing at a time -----------------------------------------------------------------------------------------------


def crowd() -> dict[str, Request]:
    """More than a small pool holds, some of it shared: chunks, preemptions and hits happen within 30 steps."""
    shared = tuple(range(40, 49))
    made = [
        ask("a", (*shared, 1), max_tokens=9),
        ask("b", (*shared, 2, 3), max_tokens=7, n=2, temperature=1.0, seed=3),
        ask("c", (4, 5, 6), max_tokens=10),
        ask("d", (*shared, 1, 4), max_tokens=3),
    ]
    return {request.id: request for request in made}


def small(phase: str) -> Engine:
    return build_engine(phase, SHAPE, page_size=4, cache_tokens=28, token_budget=5)


@since("p04")
@pytest.mark.parametrize("every", [14, pytest.param(1, marks=pytest.mark.stress)])
@pytest.mark.parametrize(("victim", "first"), [("a", 0), ("b", 3), ("c", 6), ("d", 9), ("b", 12)])
def test_a_request_can_be_cancelled_between_any_two_steps(phase, victim, first, every):
    """Queued, in the middle of a chunked prompt, decoding, preempted, as one of n, after its end.

    every: so many steps lie between the moments that are tried.
    """
    for moment in range(first % every, 70, every):
        engine, done = submit(small(phase), crowd().values()), {}
        for tick in range(400):
            if tick == moment:
                record(done, engine.cancel(victim))
                EngineProbe(engine).check()
            if not engine.has_work:
                break
            record(done, step(engine))
        compare(SHAPE, crowd(), done)
        nothing_is_left(engine)
        if tick < moment:
            return  # everything had ended by then: no later moment is any different
    raise AssertionError("70 steps should have been enough")


class CancelsOnce:
    """Takes the runner's place for one step, and cancels a request once that step is launched."""

    def __init__(self, engine: Engine, cancel: Callable[[], None]) -> None:
        self.engine, self.runner, self.cancel = engine, engine.runner, cancel

    def run(self, plan: Plan) -> Result:
        self.engine.runner = self.runner
        result = self.runner.run(plan)
        self.cancel()
        return result


@since("p10")
@pytest.mark.parametrize(("victim", "moment"), [("a", 0), ("a", 1), ("b", 3), ("c", 5), ("d", 9), ("c", 14)])
def test_a_request_can_be_cancelled_while_its_step_is_under_way(phase, victim, moment):
    engine, done = submit(small(phase), crowd().values()), {}
    for _ in range(moment):
        record(done, step(engine))
    engine.runner = CancelsOnce(engine, lambda: record(done, engine.cancel(victim)))
    while engine.has_work:
        record(done, step(engine))
    compare(SHAPE, crowd(), done)
    nothing_is_left(engine)


SHARING = in_turn(reached("p05"), FAMILIES, [(name, "tiny-gemma3") for name in reached("p05")])


def resumed_from_a_prefix(steps: Iterable[Step]) -> bool:
    """Whether some preempted sequence's next span starts behind position 0."""
    preempted: set[tuple[str, int]] = set()
    for each in steps:
        if any(span.start > 0 for span in each.spans if span.id in preempted):
            return True
        preempted -= {span.id for span in each.spans}
        preempted |= set(each.preempted)
    return False


@pytest.mark.parametrize(("phase", "shape"), SHARING)
def test_preempted_and_prefix_hit_requests_run_together(phase, shape):
    """A preempted sequence resumes from a prefix that another one still holds, or has left in the index."""
    shared = tuple(range(40, 52))
    asked = {f"r{i}": ask(f"r{i}", (*shared, i), shape, max_tokens=14) for i in range(5)}
    engine = build_engine(phase, shape, max_sequences=4, page_size=4, cache_tokens=44)
    done: dict[tuple[str, int], Ending] = {}
    probe = EngineProbe(engine)
    probe.record()
    submit(engine, asked.values())
    while engine.has_work:
        record(done, step(engine))
    assert engine.metrics().preemptions > 0 and engine.metrics().cached_tokens > 0
    assert resumed_from_a_prefix(probe.steps), "none resumed from a prefix: the case is not the one that is meant"
    compare(shape, asked, done)
    nothing_is_left(engine)


def kept_pages(probe: EngineProbe) -> set[int]:
    """Pages of the first layer group that a sequence or the prefix tree has."""
    held = {page for id in probe.running() for page in probe.tables(*id)[0]}
    return held | {page for node in walk(probe.tree()) for page in node.pages[0]}


@pytest.mark.parametrize(("phase", "shape"), SHARING)
def test_pages_freed_by_an_insert_are_not_read_by_the_request_that_mapped_them(phase, shape):
    """Two requests compute the same prompt at once; the second copy is freed at commit, and a new request overwrites
    it."""
    shared = tuple(range(40, 52))
    asked = {
        "first": ask("first", (*shared, 1), shape, max_tokens=10),
        "second": ask("second", (*shared, 2), shape, max_tokens=10),
        "newcomer": ask("newcomer", tuple(range(90, 110)), shape, max_tokens=4),
    }
    engine, done = build_engine(phase, shape, page_size=4, cache_tokens=60), {}
    engine.lag = 0  # so that the first step's pages are published before the new request's step is planned
    probe = EngineProbe(engine)
    probe.record()
    submit(engine, [asked["first"], asked["second"]])
    record(done, step(engine))
    mapped = {page for tables in probe.steps[0].tables.values() for page in tables[0]}
    freed = mapped - kept_pages(probe)
    assert len(freed) == 3, "the three shared pages were computed twice, so one copy of each is free"
    engine.submit(asked["newcomer"])
    while engine.has_work:
        record(done, step(engine))
    taken = {page for each in probe.steps for page in each.tables.get(("newcomer", 0), ((),))[0]}
    assert taken & freed, "the newcomer should have got freed pages: the case is not the one that is meant"
    compare(shape, asked, done)
    nothing_is_left(engine)


@since("p04")
def test_a_preemption_storm_ends(phase):
    """Each request fits alone, and hardly any two together."""
    asked = {f"r{i}": ask(f"r{i}", (i,) * (1 + i), max_tokens=12) for i in range(5)}
    for page_size, pages in ((1, 17), (4, 5), (16, 2)):
        engine = build_engine(phase, SHAPE, max_sequences=5, page_size=page_size, cache_tokens=pages * page_size)
        compare(SHAPE, asked, run(engine, asked.values()))
        assert page_size == 16 or engine.metrics().preemptions > 2
        nothing_is_left(engine)


@since("p04")
def test_in_the_bytes_of_two_slots_twenty_short_sequences_run(phase):
    """Memory depends on actual lengths, not on the longest possible one."""
    asked = {f"r{i}": ask(f"r{i}", (7 + i,) * (1 + i % 4), max_tokens=3) for i in range(20)}
    engine = build_engine(phase, SHAPE, max_sequences=20, cache_tokens=2 * limits_of(SHAPE).context_length)
    compare(SHAPE, asked, run(engine, asked.values()))
    assert engine.metrics().max_batch == 20 and engine.metrics().preemptions == 0


@since("p05")
def test_rows_count_what_was_computed_and_not_what_was_shared(phase):
    engine = build_engine(phase, SHAPE, page_size=4)
    run(engine, [ask("a", range(18), max_tokens=1)])
    run(engine, [ask("b", [*range(16), 90, 91, 92], max_tokens=1)])
    assert (engine.metrics().rows, engine.metrics().cached_tokens) == (18 + 3, 16)


@since("p04")
def test_what_the_pool_could_never_hold_is_refused_and_nothing_is_kept(phase):
    engine = build_engine(phase, SHAPE, page_size=4, cache_tokens=16)
    with pytest.raises(RequestError, match="17 tokens"):
        engine.submit(ask("a", range(10), max_tokens=7))
    assert not engine.has_work
    assert len(run(engine, [ask("a", range(10), max_tokens=6)])["a", 0].tokens) == 6
