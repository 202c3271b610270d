"""p08 emits what it would emit without drafts: greedy and sampled, whatever the drafter says, whatever the schedule.

The drafters know nothing, or everything, or guess at random; a draft model is the target itself, or another model.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.config.options import EngineOptions
from gradus.course.probe import EngineProbe, NoDrafts, walk
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Sequence
from gradus.errors import ConfigError
from gradus.models import SHAPES, Model, create_model, randomize
from phases.p08_speculation.draft_model import ModelDrafter
from phases.p08_speculation.drafting import Drafter, NGramDrafter
from phases.p08_speculation.engine import speculative_engine
from tests.pairwise import first
from tests.phases.conftest import EVERY_FAMILY, FAMILIES, build_engine, limits_of, of, rounded_otherwise, tiny_model
from tests.phases.drive import Answers, Ending, compare, nothing_is_left, record, run, served, step, submit
from tests.phases.test_differential import LONGEST, arrivals

SHAPE, DRAFTS = "tiny-llama", 4
WAYS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "narrowed": {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 4},
    "biased, without an early end": {"temperature": 1.0, "seed": 5, "logit_bias": {3: 2.0}, "min_tokens": 9},
    "penalized": {"temperature": 1.0, "seed": 6, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    "three samples": {"temperature": 1.0, "seed": 7, "n": 3},
}
PROMPTS = ([5], [9, 8, 7, 9, 8, 7, 9], [7 * i % 300 for i in range(23)], [4] * 6)


def ask(name: str, prompt=(5, 6, 7), shape: str = SHAPE, **params) -> Request:
    sampling = SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **params})
    return Request.create(name, prompt, sampling, limits_of(shape))


def asked(shape: str, **params) -> list[Request]:
    return [ask(f"r{i}", prompt, shape, **{"max_tokens": 16, **params}) for i, prompt in enumerate(PROMPTS)]


# -- drafters ----------------------------------------------------------------------------------------------------------


class Oracle:
    """Knows the answers beforehand, and says the wrong thing so often: 0.0 never, 1.0 always."""

    def __init__(self, answers: Answers, wrong: float = 0.0) -> None:
        self.answers, self.wrong = answers, wrong
        self.random = random.Random(0)

    def propose(self, asked):
        return [self.guess(sequence, count) for sequence, count in asked]

    def guess(self, sequence: Sequence, count: int) -> list[int]:
        right = self.answers[sequence.id].tokens[sequence.generated :][:count]
        return [(token + 1) % 300 if self.random.random() < self.wrong else token for token in right]


class SometimesNothing(Oracle):
    """A drafter with a random number of drafts, from none to all that fit; half of them right."""

    def guess(self, sequence: Sequence, count: int) -> list[int]:
        return super().guess(sequence, self.random.randint(0, count))


@cache
def another_model(shape: str, seed: int = 1) -> Model:
    model = create_model(SHAPES[shape])
    randomize(model, seed=seed, std=0.1)
    return model


DRAFTERS: dict[str, Callable[[Answers, str], Drafter]] = {
    "nonsense": lambda answers, shape: Oracle(answers, wrong=1.0),
    "right": lambda answers, shape: Oracle(answers),
    "half right": lambda answers, shape: SometimesNothing(answers, wrong=0.5),
    "nothing": lambda answers, shape: NoDrafts(),
    "n-gram": lambda answers, shape: NGramDrafter(),
    "the model itself": lambda answers, shape: ModelDrafter(tiny_model(shape), limits_of(shape), 3),
    "another model": lambda answers, shape: ModelDrafter(another_model(shape), limits_of(shape), 3),
}


KNOWN: dict[str, Answers] = {}


def without(shape: str, requests: list[Request], model: Model | None = None) -> Answers:
    """The answers of p03, which knows no speculation, and takes as many steps for three sequences as for one."""
    asked_for = repr((shape, [(request.id, request.prompt, request.params) for request in requests], id(model)))
    if asked_for not in KNOWN:
        KNOWN[asked_for] = run(build_engine("p03", shape, max_sequences=8, model=model), requests)
    return KNOWN[asked_for]


def engine_with(drafter: Drafter, shape: str = SHAPE, drafts: int = DRAFTS, **options) -> Engine:
    chosen = EngineOptions(limits_of(shape), **{"max_sequences": 3, **options})
    return speculative_engine(tiny_model(shape), chosen, drafter, drafts)


def assert_same(found: Answers, wanted: Answers, requests: list[Request], shape: str = SHAPE) -> None:
    named = {request.id: request for request in requests}
    finished = {sample: found[sample] for sample in wanted}
    compare(named, finished, wanted, lambda: (without(shape, requests, each) for each in rounded_otherwise(shape)))


# -- the same tokens ---------------------------------------------------------------------------------------------------


APART = [SHAPE, "tiny-gemma3", "tiny-qwen2-moe"]  # windows and experts are where families differ most to drafts
HALF_RIGHT = [("half right", shape) for shape in dict.fromkeys([*APART, *FAMILIES])]
EVERY = [(drafter, SHAPE) for drafter in DRAFTERS if drafter != "half right"]


@of("p08")
@pytest.mark.parametrize(("drafter", "shape"), [*first(HALF_RIGHT, len(APART)), *EVERY])
def test_no_drafter_changes_a_greedy_token(phase, shape, drafter):
    requests = asked(shape)
    wanted = without(shape, requests)
    assert_same(run(engine_with(DRAFTERS[drafter](wanted, shape), shape), requests), wanted, requests, shape)


@of("p08")
@pytest.mark.parametrize(
    ("drafter", "way"),
    [*(("half right", way) for way in WAYS), *((name, "three samples") for name in DRAFTERS if name != "half right")],
)
def test_no_drafter_changes_a_sampled_token(phase, way, drafter):
    requests = asked(SHAPE, **WAYS[way])
    wanted = without(SHAPE, requests)
    assert_same(run(engine_with(DRAFTERS[drafter](wanted, SHAPE)), requests), wanted, requests)


@of("p08")
@pytest.mark.parametrize("drafts", [1, 2, 7, 30])
def test_any_number_of_drafts_gives_the_same_tokens(phase, drafts):
    requests = asked(SHAPE, **WAYS["sampled"])
    wanted = without(SHAPE, requests)
    for wrong in (0.0, 0.3):
        assert_same(run(engine_with(Oracle(wanted, wrong), drafts=drafts), requests), wanted, requests)


@of("p08")
@pytest.mark.parametrize(
    ("drafter", "shape"), [*first(HALF_RIGHT, len(APART)), ("another model", SHAPE), ("n-gram", SHAPE)]
)
def test_drafts_among_chunks_preemptions_and_shared_prefixes_change_no_token_and_lose_no_page(phase, shape, drafter):
    coming = arrivals(shape, seed=3)
    requests = [request for _, request in coming]
    wanted = without(shape, requests)
    engine = engine_with(
        DRAFTERS[drafter](wanted, shape), shape, max_sequences=4, page_size=4, cache_tokens=40, token_budget=12
    )
    assert_same(served(engine, coming), wanted, requests, shape)
    nothing_is_left(engine)
    metrics, (drafted, accepted) = engine.metrics(), EngineProbe(engine).drafts()
    assert metrics.preemptions and metrics.cached_tokens, "the case is not the one that is meant"
    assert drafted > accepted, "the case is not the one that is meant"
    assert accepted or drafter != "half right", "the case is not the one that is meant"


@of("p08")
@settings(max_examples=-(-settings.default.max_examples // 3))
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from(EVERY_FAMILY),
    page_size=st.sampled_from([1, 2, 4, 8, 16]),
    spare=st.integers(0, 3),
    budget=st.sampled_from([1, 2, 3, 5, 8, 13, 50]),
    drafts=st.integers(1, 9),
)
def test_whatever_the_schedule_and_the_drafts_each_request_gets_its_own_tokens(
    phase, seed, shape, page_size, spare, budget, drafts
):
    """Pools that hold the longest sequence and hardly more."""
    coming = arrivals(shape, seed)
    requests = [request for _, request in coming]
    wanted = without(shape, requests)
    engine = engine_with(
        SometimesNothing(wanted, wrong=0.3),
        shape,
        drafts,
        max_sequences=4,
        page_size=page_size,
        cache_tokens=LONGEST + (1 + spare) * page_size,
        token_budget=budget,
    )
    assert_same(served(engine, coming), wanted, requests, shape)
    nothing_is_left(engine)


@of("p08")
def test_a_request_can_be_cancelled_between_any_two_steps(phase):
    requests = asked(SHAPE)
    wanted = without(SHAPE, requests)
    for moment in range(1, 12, 2):
        engine, done = submit(engine_with(SometimesNothing(wanted, 0.5), page_size=4), requests), {}
        for _ in range(moment):
            record(done, step(engine))
        record(done, engine.cancel("r1"))
        while engine.has_work:
            record(done, step(engine))
        assert done["r1", 0].tokens == wanted["r1", 0].tokens[: len(done["r1", 0].tokens)]
        assert_same(done, {id: ending for id, ending in wanted.items() if id[0] != "r1"}, requests)
        nothing_is_left(engine)


@of("p08")
def test_a_sequence_ends_at_a_stop_token_in_the_middle_of_accepted_drafts(phase):
    (free,) = without(SHAPE, [ask("a", **WAYS["sampled"])]).values()
    for place in range(6, 11):  # the first and the last token of a step among them
        stop = free.tokens[place]
        assert stop not in free.tokens[:place]
        request = ask("a", stop_token_ids=[stop], **WAYS["sampled"])
        done = run(engine_with(Oracle({("a", 0): free})), [request])["a", 0]
        assert done == Ending(free.tokens[: place + 1], "stop")


@of("p08")
@pytest.mark.parametrize("wrong", [0.0, 0.5, 1.0])
def test_log_probabilities_are_those_of_the_same_tokens_without_drafts(phase, wrong):
    request = ask("a", logprobs=2)
    logprobs = []
    for engine in (build_engine("p06", SHAPE), engine_with(Oracle(without(SHAPE, [request]), wrong))):
        engine.submit(request)
        logprobs.append([])
        while engine.has_work:
            logprobs[-1] += [logprob for output in step(engine) for logprob in output.logprobs]
    assert [each.token_id for each in logprobs[0]] == [each.token_id for each in logprobs[1]]
    for right, found in zip(*logprobs, strict=True):
        assert found.logprob == pytest.approx(right.logprob, abs=1e-5)
        assert [token for token, _ in found.top] == [token for token, _ in right.top]


# -- how many steps ----------------------------------------------------------------------------------------------------


def steps_of(drafter: Drafter, request: Request, **options) -> int:
    engine = engine_with(drafter, **options)
    run(engine, [request])
    return engine.metrics().steps


@of("p08")
def test_a_step_gives_one_token_more_than_it_has_right_drafts(phase):
    answers = without(SHAPE, [ask("a")])
    for drafts, wanted in ((4, 1 + 5), (1, 1 + 12), (30, 1 + 1)):
        found = steps_of(Oracle(answers), ask("a"), drafts=drafts)
        assert found == wanted, f"24 tokens, {drafts} right drafts at a time: {wanted} steps; yours takes {found}"


@of("p08")
@pytest.mark.parametrize("drafter", ["nonsense", "nothing"])
def test_the_worst_drafter_takes_no_step_more_than_none(phase, drafter):
    found = steps_of(DRAFTERS[drafter](without(SHAPE, [ask("a")]), SHAPE), ask("a"))
    assert found == 24, f"24 tokens with drafts that are never right take 24 steps; yours takes {found}"


@of("p08")
@pytest.mark.parametrize("way", ["greedy", "sampled", "narrowed", "three samples"])
def test_a_draft_model_that_thinks_like_its_target_draws_like_it_at_any_temperature(phase, way):
    engine = engine_with(DRAFTERS["the model itself"]({}, SHAPE))
    run(engine, asked(SHAPE, max_tokens=24, **WAYS[way]))
    drafted, accepted = EngineProbe(engine).drafts()
    assert accepted == drafted > 50


@of("p08")
def test_a_draft_model_bans_an_early_end_exactly_as_long_as_its_target(phase):
    eos = limits_of(SHAPE).eos_token_ids[0]
    request = ask("a", ignore_eos=False, logit_bias={eos: 100}, min_tokens=8)
    engine = engine_with(DRAFTERS["the model itself"]({}, SHAPE))
    done = run(engine, [request])["a", 0]
    assert done.tokens.index(eos) == 8 and done.finish_reason == "stop"
    assert EngineProbe(engine).drafts() == (7, 7)


@of("p08")
def test_text_that_repeats_itself_is_guessed_from_its_own_past(phase):
    engine = engine_with(NGramDrafter())
    run(engine, [ask("a", [3, 1, 4, 1, 5] * 4, max_tokens=100)])
    assert engine.metrics().steps < 80 and EngineProbe(engine).drafts()[1] > 20


@of("p08")
def test_acceptance_stays_what_it_was_however_many_requests_came_before(phase):
    drafter = ModelDrafter(another_model(SHAPE), replace(limits_of(SHAPE), context_length=64), 3)
    engine = engine_with(drafter, page_size=4, cache_tokens=400)

    def accepted(number: int) -> int:
        _, earlier = EngineProbe(engine).drafts()
        run(engine, [ask(f"again {number}", [3, 1, 4, 1, 5] * 4, temperature=1.0, seed=1)])
        return EngineProbe(engine).drafts()[1] - earlier

    before = accepted(0)
    run(engine, [ask(f"r{i}", [i % 7, i % 300, 5], max_tokens=1 + i % 20, temperature=1.0, seed=i) for i in range(20)])
    assert EngineProbe(drafter.engine).pages().free == 0, "they should have filled the drafter's memory"
    assert accepted(1) == before > 0


# -- what drafts may take ----------------------------------------------------------------------------------------------


@of("p08")
def test_drafts_take_what_the_prompt_leaves_of_the_budget(phase):
    requests = [ask("a", [1]), ask("b", [2]), ask("c", range(36), max_tokens=2)]
    engine = engine_with(Oracle(without(SHAPE, requests)), token_budget=12)
    probe = EngineProbe(engine)
    probe.record()
    submit(engine, requests[:2])
    engine.step()
    engine.submit(requests[2])
    while engine.has_work:
        engine.step()
    made = [{span.request_id: span.count for span in each.spans} for each in probe.steps]
    assert made[0] == {"a": 5, "b": 5}, "alone, both have all their drafts"
    assert made[1:4] == [{"a": 1, "b": 1, "c": 10}] * 3, "a prompt goes first: while it takes all, nothing is guessed"
    assert made[4] == {"a": 5, "b": 1, "c": 6}, "its last chunk leaves four tokens, and the first in order has them"
    assert all(each.tokens <= 12 for each in probe.steps)


@of("p08")
def test_no_draft_is_beyond_the_last_token_that_a_sequence_may_have(phase):
    request = ask("a", max_tokens=4)
    longer = without(SHAPE, [ask("a", max_tokens=30)])
    engine = engine_with(Oracle(longer), drafts=20, page_size=1, cache_tokens=7)  # as many positions as it may have
    probe = EngineProbe(engine)
    probe.record()
    done = run(engine, [request])
    assert done["a", 0].tokens == longer["a", 0].tokens[:4]
    assert max(span.start + span.count for each in probe.steps for span in each.spans) == 6


@of("p08")
def test_where_a_penalty_counts_tokens_nothing_is_guessed(phase):
    for params in ({"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": 0.1}):
        engine = engine_with(NGramDrafter())
        run(engine, [ask("a", [4] * 6, **params)])
        assert EngineProbe(engine).drafts() == (0, 0)


@of("p08")
@pytest.mark.parametrize("wrong", [0.0, 0.5, 1.0])
def test_the_prefix_index_learns_accepted_tokens_and_no_others(phase, wrong):
    requests = asked(SHAPE, max_tokens=30)
    wanted = without(SHAPE, requests)
    engine = engine_with(Oracle(wanted, wrong), page_size=2, drafts=7)
    run(engine, requests)
    texts = [(*request.prompt, *wanted[request.id, 0].tokens) for request in requests]
    paths = list(spelled(EngineProbe(engine).tree()))
    assert all(any(text[: len(path)] == path for text in texts) for path in paths)
    assert len(paths) == len(texts)
    whole = {text[: (len(text) - 1) // 2 * 2] for text in texts}  # the last token is never stored
    assert set(paths) == whole, "every page that was filled is there"


def spelled(nodes, before=()):
    """The text of each path from the root to a leaf."""
    for node in nodes:
        text = (*before, *node.tokens)
        yield from spelled(node.children, text) if node.children else [text]


# -- draft models ------------------------------------------------------------------------------------------------------


@of("p08")
def test_a_draft_model_with_a_shorter_context_guesses_up_to_its_end(phase):
    limits = limits_of(SHAPE)
    drafter = ModelDrafter(tiny_model(SHAPE), limits, 3)
    short = ModelDrafter(tiny_model(SHAPE), ModelLimits(limits.vocab_size, 12), 3)
    request = ask("a", [5, 6, 7])
    wanted = without(SHAPE, [request])
    found = engine_with(short)
    assert_same(run(found, [request]), wanted, [request])
    assert 0 < EngineProbe(found).drafts()[1] < 10
    sequence = Sequence(ask("b", range(11)), 0)
    assert [len(one.propose([(sequence, 4)])[0]) for one in (drafter, short)] == [4, 1]
    sequence = Sequence(ask("b", range(12)), 0)
    assert short.propose([(sequence, 4)]) == [[]]


@of("p08")
def test_a_draft_model_with_another_vocabulary_is_refused_in_one_line(phase):
    limits = limits_of(SHAPE)
    with pytest.raises(
        ConfigError, match=r"the draft model has logits for \d+ tokens and the target for 777: "
    ) as refused:
        ModelDrafter(tiny_model(SHAPE), ModelLimits(777, limits.context_length), 3)
    assert "\n" not in str(refused.value)


@of("p08")
def test_a_draft_model_computes_what_is_new_and_nothing_twice(phase):
    drafter = DRAFTERS["the model itself"]({}, SHAPE)
    sequence = Sequence(ask("a", range(20)), 0)
    (drafts,) = drafter.propose([(sequence, 4)])
    assert drafter.engine.metrics().rows == 20 + 3  # the last draft is not read any more
    sequence.tokens.extend([*drafts[:2], 99])
    drafter.propose([(sequence, 4)])
    assert drafter.engine.metrics().rows == 23 + 1 + 3, "of two right drafts and a third token, one token is new"


@of("p08")
def test_tenants_stay_apart_in_the_draft_model_as_well(phase):
    drafter = DRAFTERS["the model itself"]({}, SHAPE)
    for salt in ("x", "y"):
        request = ask("a", range(20))
        object.__setattr__(request, "scheduling", type(request.scheduling)(cache_salt=salt))
        drafter.propose([(Sequence(request, 0), 1)])
    assert drafter.engine.metrics().cached_tokens == 0
    assert {node.salt for node in walk(EngineProbe(drafter.engine).tree())} == {"x", "y"}
