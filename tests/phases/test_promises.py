"""The promises of a phase beyond the right tokens: which sequences run in a step, and what it computes and keeps.

Most of these run the scheduler with a stand-in for the model, so that a mistake shows in the first wrong plan.
Each runs for the phase that makes the promise and for those that keep it.
"""

import torch

from gradus.course.probe import EngineProbe
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams
from tests.phases.conftest import build_engine, limits_of, of, reached, since
from tests.phases.drive import next_step, parting, run, steps, submit

SHAPE = "tiny-llama"
LIMITS = limits_of(SHAPE)


def ask(name: str, prompt=(5, 6, 7), max_tokens: int = 4) -> Request:
    return Request.create(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), LIMITS)


def engine_of(phase: str, *requests: Request, max_sequences: int = 2) -> Engine:
    return submit(build_engine(phase, SHAPE, max_sequences), requests)


def cache_of(phase: str):
    return EngineProbe(engine_of(phase)).cache


# -- p00: one at a time, everything every time ------------------------------------------------------------------------


@of("p00", "p01")
def test_a_sequence_runs_to_its_end_before_the_next_one_starts(phase):
    engine = engine_of(phase, ask("a", max_tokens=3), ask("b", max_tokens=2))
    ran = []
    for step in steps(engine):
        assert len(step.spans) == 1, f"one sequence runs at a time, and this plan has {len(step.spans)} spans"
        ran += step.names
    assert ran == list("aaabb"), f"the request that came first takes 3 steps, the next one 2; yours ran {ran}"


@of("p00", "p01")
def test_a_sequence_is_admitted_once_in_the_plan_of_its_first_step(phase):
    engine = engine_of(phase, ask("a", max_tokens=3), ask("b", max_tokens=2))
    admitted = [[name for name, _ in step.admitted] for step in steps(engine)]
    assert admitted == [["a"], [], [], ["b"], []], f"admissions belong in a sequence's first plan; yours: {admitted}"


@of("p00")
def test_every_step_computes_the_whole_sequence(phase):
    spans = [(step.spans[0].start, list(step.spans[0].tokens)) for step in steps(engine_of(phase, ask("a")))]
    whole = [5, 6, 7, 1, 1, 1]
    assert spans == [(0, whole[: 3 + number]) for number in range(4)], (
        f"spans (0, all tokens) are needed; yours: {spans}"
    )


# -- p01: nothing twice ------------------------------------------------------------------------------------------------


@since("p01")
def test_each_position_is_computed_once(phase):
    spans = [(step.spans[0].start, step.spans[0].count) for step in steps(engine_of(phase, ask("a")))]
    wanted = [(0, 3), (3, 1), (4, 1), (5, 1)]
    assert spans == wanted, f"the prompt once, then one token per step: spans (start, count) {wanted}; yours: {spans}"


@since("p01")
def test_the_cache_counts_what_was_reserved(phase):
    cache = cache_of(phase)
    assert cache.stored("a") == 0, f"of a sequence never seen 0 positions are stored; yours says {cache.stored('a')}"
    for end in (5, 6):
        assert cache.reserve("a", end), f"there is room for {end} positions, and reserve says there is none"
        assert cache.stored("a") == end, f"after reserve(id, {end}), {end} are stored; yours says {cache.stored('a')}"
        cache.check()
    cache.release("a")
    assert cache.stored("a") == 0, f"a released sequence has 0 positions stored; yours says {cache.stored('a')}"


@since("p01")
def test_the_cache_refuses_what_it_has_no_room_for_and_stays_as_it_was(phase):
    cache = cache_of(phase)
    most = LIMITS.context_length * (2 if phase in reached("p04") else 1)  # of pages, one sequence may take all
    assert cache.reserve("a", most), f"there is room for a sequence of {most} positions, and reserve says False"
    assert not cache.reserve("a", most + 1), "beyond the capacity, reserve must say False"
    assert cache.stored("a") == most, "a refusal leaves what is stored as it was"
    cache.check()


@since("p01")
def test_a_sequence_that_was_refused_leaves_the_cache_to_the_next_one(phase):
    cache = cache_of(phase)
    most = LIMITS.context_length * (2 if phase in reached("p04") else 1)
    assert not cache.reserve("a", most + 1), "beyond the capacity, reserve must say False"
    assert cache.reserve("b", 5), "a was refused, so b finds an empty cache: reserve must say True; yours says False"
    assert cache.stored("b") == 5, f"b reserved 5 positions; yours says {cache.stored('b')}"
    cache.check()


@of("p01")
def test_a_second_sequence_gets_no_room_until_the_first_is_released(phase):
    cache = cache_of(phase)
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
    ran = ["".join(step.names) for step in steps(engine)]
    assert ran == ["ab", "b", "b", "c"], f"a and b run together, c after both; yours ran {ran}"


@of("p02")
def test_padding_is_stored_nowhere(phase):
    engine = engine_of(phase, ask("long", [5, 6, 7, 8, 9, 10], max_tokens=1), ask("short", [3, 4], max_tokens=4))
    while engine.has_work:
        engine.step()
    keys, _ = EngineProbe(engine).memory()  # of each layer [slots, Hkv, capacity, Dh]
    written = torch.stack(tuple(keys)).abs().sum((0, 2, 4)) > 0
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


@since("p02")
def test_the_first_sequence_of_a_batch_may_be_its_shortest(phase):
    requests = [ask("short", [3, 4]), ask("long", [5, 6, 7, 8, 9, 10])]
    together = run(engine_of(phase), requests)
    for request in requests:
        alone = run(engine_of("p00"), [request])[request.id, 0].tokens
        tokens = together[request.id, 0].tokens
        assert tokens == alone, (
            f"a short request in slot 0, a long one in slot 1, of them the {request.id} one: "
            f"{parting(request.prompt, tokens, alone)}"
        )


@of("p02", "p03")
def test_nothing_that_lay_in_a_slot_before_changes_a_token(phase):
    """The slot holds what a sequence before would leave there, but larger."""
    requests = [ask("long", [5, 6, 7, 8, 9, 10]), ask("short", [3, 4]), ask("next", [11, 12, 13], max_tokens=6)]
    engine = engine_of(phase)
    keys, values = EngineProbe(engine).memory()
    for layer in range(len(keys)):
        keys[layer].fill_(3.0)
        values[layer].fill_(50.0)
    done = run(engine, requests)
    for request in requests:
        tokens, alone = (ending[request.id, 0].tokens for ending in (done, run(engine_of("p00"), [request])))
        assert tokens == alone, f"in a slot that was used before, {parting(request.prompt, tokens, alone)}"


# -- p03: join and leave at any step -----------------------------------------------------------------------------------


@since("p03")
def test_a_waiting_sequence_starts_in_the_step_after_one_ends(phase):
    engine = engine_of(phase, ask("a", max_tokens=1), ask("b", max_tokens=4), ask("c", max_tokens=2))
    ran = ["".join(sorted(step.names)) for step in steps(engine)]
    assert ran == ["ab", "bc", "bc", "b"], f"c takes a's place while b runs on; yours ran {ran}"


@since("p03")
def test_a_single_free_slot_is_given_away_at_once(phase):
    requests = [ask("a", max_tokens=1), ask("b"), ask("c"), ask("d", max_tokens=1)]
    ran = ["".join(sorted(step.names)) for step in steps(engine_of(phase, *requests, max_sequences=3))]
    assert ran == ["abc", "bcd", "bc", "bc"], f"d takes a's place while b and c run on; yours ran {ran}"


@since("p03")
def test_two_running_sequences_never_share_a_slot(phase):
    engine = engine_of(phase, *(ask(name, max_tokens=1 + i % 3) for i, name in enumerate("abcdef")), max_sequences=3)
    for step in steps(engine):
        slots = [span.slot for span in step.spans]
        assert len(set(slots)) == len(slots), f"each running sequence has a slot of its own; yours have {slots}"
        assert set(slots) <= {0, 1, 2}, f"there are slots 0, 1 and 2; yours have {slots}"


@since("p03")
def test_a_cancelled_sequence_leaves_its_slot_to_the_next(phase):
    engine = engine_of(phase, ask("a", max_tokens=50), ask("b", max_tokens=50), ask("c", max_tokens=1))
    next_step(engine)
    engine.cancel("a")
    EngineProbe(engine).check()
    ran = next(steps(engine)).names
    assert sorted(ran) == ["b", "c"], f"c takes the slot of the cancelled a; yours runs {ran}"


@since("p03")
def test_a_newcomer_takes_the_lowest_free_slot(phase):
    """Attention reads up to the highest slot in use, so a high slot costs every step that it is used in."""
    wanted = {"a": 0, "b": 1, "c": 2, "d": 0, "e": 1}
    requests = [ask("a", max_tokens=2), ask("b", max_tokens=3), ask("c", max_tokens=9)]
    engine = engine_of(phase, *requests, ask("d", max_tokens=9), ask("e", max_tokens=1), max_sequences=3)
    for step in steps(engine):
        slots = {span.request_id: span.slot for span in step.spans}
        right = {name: wanted[name] for name in slots}
        assert slots == right, f"the lowest free slot is given away first: {right}; yours gives {slots}"


@since("p03")
def test_of_two_free_slots_the_lower_one_is_given_away_first(phase):
    engine = engine_of(phase, ask("a", max_tokens=50), ask("b", max_tokens=50), max_sequences=2)
    next_step(engine)
    for name in "ab":  # the lower slot is given back first
        engine.cancel(name)
    engine.submit(ask("c"))
    slot = next(steps(engine)).spans[0].slot
    assert slot == 0, f"slots 0 and 1 are free, and 0 is to be given away first; yours gives {slot}"
