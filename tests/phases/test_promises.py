"""What a phase promises beyond the right tokens: whom it runs when, and what it computes and keeps.

Most of these drive the scheduler alone, with a stand-in for the model, so that a mistake shows in the first plan that
has it. Each runs for the phase that makes the promise and for those that keep it.
"""

from collections.abc import Iterator

import pytest

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan
from gradus.engine.request import Request, SamplingParams
from gradus.engine.sequence import SpanResult
from tests.phases.conftest import PHASES, limits_of, tiny_model
from tests.phases.drive import parting, run

SHAPE = "tiny-llama"
LIMITS = limits_of(SHAPE)


def of(*names: str):
    """Run the test for these phases, as far as they exist."""
    return pytest.mark.parametrize("phase", [name for name in PHASES if name in names])


def since(first: str):
    return pytest.mark.parametrize("phase", [name for name in PHASES if name >= first])


def ask(name: str, prompt=(5, 6, 7), max_tokens: int = 4) -> Request:
    return Request.create(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), LIMITS)


def engine_of(phase: str, *requests: Request, max_sequences: int = 2) -> Engine:
    engine = phases.load(phase).build(tiny_model(SHAPE), EngineOptions(LIMITS, max_sequences=max_sequences))
    for request in requests:
        engine.submit(request)
    return engine


class EachSpanSamplesOne:
    """A step's result without a model: token 1 for each span that asks for one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def get(self) -> list[SpanResult]:
        return [SpanResult((1,) * span.logits) for span in self.plan.spans]


def plans(engine: Engine) -> Iterator[Plan]:
    """Each plan, before it is committed, until there is no work; the books are checked in between."""
    for _ in range(200):
        if not engine.has_work:
            return
        plan = engine.scheduler.schedule()
        assert plan is not None, "there is work to do, and the scheduler plans none"
        yield plan
        engine.scheduler.commit(plan, EachSpanSamplesOne(plan))
        engine.scheduler.check()
    raise AssertionError("after 200 steps there still is work")


def names(plan: Plan) -> list[str]:
    return [span.sequence.request.id for span in plan.spans]


# -- p00: one at a time, everything every time ------------------------------------------------------------------------


@of("p00", "p01")
def test_a_sequence_runs_to_its_end_before_the_next_one_starts(phase):
    engine = engine_of(phase, ask("a", max_tokens=3), ask("b", max_tokens=2))
    ran = []
    for plan in plans(engine):
        assert len(plan.spans) == 1, f"one sequence runs at a time, and this plan has {len(plan.spans)} spans"
        ran += names(plan)
    assert ran == list("aaabb"), f"the request that came first takes 3 steps, the next one 2; yours ran {ran}"


@of("p00", "p01")
def test_a_sequence_is_admitted_once_in_the_plan_of_its_first_step(phase):
    engine = engine_of(phase, ask("a", max_tokens=3), ask("b", max_tokens=2))
    admitted = [[admission.request.id for admission in plan.admissions] for plan in plans(engine)]
    assert admitted == [["a"], [], [], ["b"], []], f"admissions belong in a sequence's first plan; yours: {admitted}"


@of("p00")
def test_every_step_computes_the_whole_sequence(phase):
    spans = [(plan.spans[0].start, list(plan.spans[0].tokens)) for plan in plans(engine_of(phase, ask("a")))]
    whole = [5, 6, 7, 1, 1, 1]
    assert spans == [(0, whole[: 3 + step]) for step in range(4)], f"spans (0, all tokens) are needed; yours: {spans}"


# -- p01: nothing twice ------------------------------------------------------------------------------------------------


@since("p01")
def test_each_position_is_computed_once(phase):
    spans = [(plan.spans[0].start, len(plan.spans[0].tokens)) for plan in plans(engine_of(phase, ask("a")))]
    wanted = [(0, 3), (3, 1), (4, 1), (5, 1)]
    assert spans == wanted, f"the prompt once, then one token a step: spans (start, count) {wanted}; yours: {spans}"


@since("p01")
def test_the_cache_counts_what_was_reserved(phase):
    cache = engine_of(phase).scheduler.cache
    assert cache.stored("a") == 0, f"of a sequence never seen 0 positions are stored; yours says {cache.stored('a')}"
    for end in (5, 6):
        assert cache.reserve("a", end), f"there is room for {end} positions, and reserve says there is none"
        assert cache.stored("a") == end, f"after reserve(id, {end}), {end} are stored; yours says {cache.stored('a')}"
        cache.check()
    cache.release("a")
    assert cache.stored("a") == 0, f"a released sequence has 0 positions stored; yours says {cache.stored('a')}"


@since("p01")
def test_the_cache_refuses_what_it_has_no_room_for_and_stays_as_it_was(phase):
    cache = engine_of(phase, max_sequences=2).scheduler.cache
    most = LIMITS.context_length * (1 if phase < "p04" else 2)  # of pages, one sequence may take all
    assert cache.reserve("a", most), f"there is room for a sequence of {most} positions"
    assert not cache.reserve("a", most + 1), "beyond the capacity, reserve must say False"
    assert cache.stored("a") == most, "a refusal leaves what is stored as it was"
    cache.check()


@of("p01")
def test_a_second_sequence_gets_no_room_until_the_first_is_released(phase):
    cache = engine_of(phase).scheduler.cache
    cache.reserve("a", 5)
    assert cache.stored("b") == 0, "what is stored belongs to its sequence: of another one, 0 positions are"
    assert not cache.reserve("b", 1), "the room is taken: reserve must say False to a second sequence"
    assert cache.stored("a") == 5, "a refusal leaves what is stored as it was"
    cache.release("a")
    assert cache.reserve("b", 1), "once the first is released, the second gets its room"


# -- p02: a batch starts together --------------------------------------------------------------------------------------


@of("p02")
def test_a_batch_starts_together_and_the_next_waits_for_its_last(phase):
    engine = engine_of(phase, ask("a", max_tokens=1), ask("b", max_tokens=3), ask("c", max_tokens=1))
    ran = ["".join(names(plan)) for plan in plans(engine)]
    assert ran == ["ab", "b", "b", "c"], f"a and b run together, c after both; yours ran {ran}"


@of("p02")
def test_padding_is_stored_nowhere(phase):
    engine = engine_of(phase, ask("long", [5, 6, 7, 8, 9, 10], max_tokens=1), ask("short", [3, 4], max_tokens=4))
    while engine.has_work:
        engine.step()
    keys = engine.runner.attention.storage.keys  # [layers, slots, Hkv, capacity, Dh]
    written = keys.abs().sum((0, 2, 4)) > 0
    counts = written.sum(1).tolist()
    assert counts == [6, 5], f"the slots hold 6 and 5 tokens of their sequences; yours hold {counts}"


@since("p02")
def test_sequences_that_run_together_get_the_tokens_they_get_alone(phase):
    requests = [ask("long", [5, 6, 7, 8, 9, 10]), ask("short", [3, 4]), ask("next", [11, 12, 13], max_tokens=6)]
    together = run(engine_of(phase), requests)
    for request in requests:
        alone = run(engine_of("p00"), [request])[request.id, 0].tokens
        tokens = together[request.id, 0].tokens
        assert tokens == alone, f"of three requests the {request.id} one: {parting(request.prompt, tokens, alone)}"


@of("p02", "p03")
def test_nothing_that_lay_in_a_slot_before_changes_a_token(phase):
    """As a predecessor would leave it, only louder."""
    requests = [ask("long", [5, 6, 7, 8, 9, 10]), ask("short", [3, 4]), ask("next", [11, 12, 13], max_tokens=6)]
    engine = engine_of(phase)
    engine.runner.attention.storage.keys.fill_(3.0)
    engine.runner.attention.storage.values.fill_(50.0)
    done = run(engine, requests)
    for request in requests:
        tokens, alone = (ending[request.id, 0].tokens for ending in (done, run(engine_of("p00"), [request])))
        assert tokens == alone, f"in a slot that was used before, {parting(request.prompt, tokens, alone)}"


# -- p03: join and leave at any step -----------------------------------------------------------------------------------


@since("p03")
def test_whoever_waits_starts_in_the_step_after_one_ends(phase):
    engine = engine_of(phase, ask("a", max_tokens=1), ask("b", max_tokens=4), ask("c", max_tokens=2))
    ran = ["".join(names(plan)) for plan in plans(engine)]
    assert ran == ["ab", "bc", "bc", "b"], f"c takes a's place while b runs on; yours ran {ran}"


@since("p03")
def test_two_running_sequences_never_share_a_slot(phase):
    engine = engine_of(phase, *(ask(name, max_tokens=1 + i % 3) for i, name in enumerate("abcdef")), max_sequences=3)
    for plan in plans(engine):
        slots = [span.slot for span in plan.spans]
        assert len(set(slots)) == len(slots), f"each running sequence has a slot of its own; yours have {slots}"
        assert set(slots) <= {0, 1, 2}, f"there are slots 0, 1 and 2; yours have {slots}"


@since("p03")
def test_a_cancelled_sequence_leaves_its_slot_to_the_next(phase):
    engine = engine_of(phase, ask("a", max_tokens=50), ask("b", max_tokens=50), ask("c", max_tokens=1))
    engine.step()
    engine.cancel("a")
    engine.scheduler.check()
    plan = engine.scheduler.schedule()
    assert sorted(names(plan)) == ["b", "c"], f"c takes the slot of the cancelled a; yours runs {names(plan)}"
