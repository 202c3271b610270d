"""Speculation changes no token: greedy and sampled, whatever is drafted, in random schedules with tiny pools."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.assembly.final import build
from gradus.config.options import FINAL, EngineConfig
from gradus.engine.engine import Engine
from gradus.engine.request import Request
from gradus.execution.drafting import draft_model
from gradus.models import Model
from gradus.models.shapes import SHAPES
from gradus.speculative.drafter import NO_DRAFT, Drafter
from tests.pairwise import each_once
from tests.phases import drive
from tests.phases.conftest import EVERY_FAMILY, FAMILIES, MIXED, build_engine, limits_of, rounded_otherwise, tiny_model
from tests.phases.drive import Answers, Ending, nothing_is_left, record, run, run_schedule, served
from tests.phases.test_paged_schedules import SHAPE, ask, crowd, pools, requests
from tests.speculative.heads import heads_of


class Right(Drafter):
    """Drafts what each sequence is known to say; what it never says, it guesses."""

    def __init__(self, answers: list[tuple[int, ...]]) -> None:
        self.answers = answers

    def propose(self, history, slots, count, limits):
        drafts = torch.full((len(slots), count), NO_DRAFT)
        for row, slot in enumerate(slots.tolist()):
            said = tuple(history.tokens[slot, : history.lengths[slot]].tolist())
            following = next((whole[len(said) :] for whole in self.answers if whole[: len(said)] == said), ())
            drafts[row, : len(following)] = torch.tensor(following[:count], dtype=torch.int64)[:count]
        return drafts


class Nonsense(Drafter):
    def propose(self, history, slots, count, limits):
        return (history.lengths[slots].unsqueeze(1) * 7 + torch.arange(count) * 3) % 50


class Nothing(Drafter):
    def propose(self, history, slots, count, limits):
        return torch.full((len(slots), count), NO_DRAFT)


def speculating(shape: str = SHAPE, drafter=None, lag: int | None = None, drafts: int = 3, **options) -> Engine:
    engine = build_engine(FINAL, shape, speculate="ngram", drafts=drafts, **options)
    if drafter is not None:
        engine.runner.step.drafter = drafter
    if lag is not None:
        engine.lag = engine.scheduler.drafting.lag = lag
    return engine


def plain(shape: str, asked: dict[str, Request], model: Model | None = None) -> Answers:
    """What the same engine says without speculation, in a pool without a shortage."""
    return run(build_engine(FINAL, shape, model=model), asked.values())


def answers(asked: dict[str, Request], expected: Answers) -> list[tuple[int, ...]]:
    """Prompt and output of every sample."""
    return [(*asked[name].prompt, *ending.tokens) for (name, _), ending in expected.items()]


def compare(shape: str, asked: dict[str, Request], done: Answers, expected: Answers | None = None) -> None:
    """expected: `plain`, where it is known."""
    expected = plain(shape, asked) if expected is None else expected
    drive.compare(asked, done, expected, lambda: (plain(shape, asked, model) for model in rounded_otherwise(shape)))


@pytest.mark.parametrize(
    ("kernels", "shape", "drafter"),
    each_once([*product([True, False], [*FAMILIES, *MIXED])], ["ngram", "right", "nonsense", "nothing"]),
)
def test_whatever_is_drafted_no_token_changes(shape, drafter, kernels):
    """Chunks, hits, preemptions, temperatures, penalties, log-probabilities, several samples; repeating prompts."""
    asked = {
        "greedy": ask("greedy", (*range(40, 46), *range(40, 46), 1), shape, max_tokens=14),
        "samples": ask("samples", (*range(40, 52), 2), shape, max_tokens=9, n=2, temperature=0.3, seed=3),
        "penalty": ask("penalty", (4, 5), shape, max_tokens=12, presence_penalty=1.0, repetition_penalty=1.3),
        "bias": ask("bias", (4, 5, 4), shape, max_tokens=9, logit_bias={4: 3.0}, frequency_penalty=0.5, min_tokens=4),
        "cut": ask("cut", (7, 8, 9), shape, max_tokens=9, temperature=1.0, top_k=5, top_p=0.9, seed=5),
    }
    expected = plain(shape, asked)
    made = {"right": Right(answers(asked, expected)), "nonsense": Nonsense(), "nothing": Nothing(), "ngram": None}
    engine = speculating(
        shape, made[drafter], page_size=4, cache_tokens=32, token_budget=9, kernels=kernels, graphs=False
    )
    compare(shape, asked, run(engine, asked.values()), expected)
    told = engine.metrics().speculation
    assert engine.metrics().preemptions > 0 and engine.metrics().cached_tokens > 0
    assert (sum(told.accepted) > 0) >= (drafter == "right") and (sum(told.drafted) == 0) >= (drafter == "nothing")
    nothing_is_left(engine)


@pytest.mark.parametrize(("drafts", "lag"), each_once([1, 2, 5, 16], [0, 1, 2]))
def test_right_drafts_take_fewer_steps_at_any_number_and_lag(lag, drafts):
    asked = crowd()
    alone = build_engine(FINAL, SHAPE)
    expected = run(alone, asked.values())
    engine = speculating(drafter=Right(answers(asked, expected)), lag=lag, drafts=drafts)
    compare(SHAPE, asked, run(engine, crowd().values()), expected)
    assert engine.metrics().steps < alone.metrics().steps
    nothing_is_left(engine)


@pytest.mark.parametrize(("drafter", "lag"), each_once([Right, Nonsense], [0, 1, 2]))
def test_a_request_cancelled_after_any_step_leaves_the_others_their_tokens(lag, drafter):
    """While it waits, in its prompt, with drafts under way, preempted, and after its end: one engine for each step."""
    expected = plain(SHAPE, crowd())
    ended, tick = "", 0
    while ended != "length":  # the last time "b" has ended by itself
        asked = crowd()
        made = Right(answers(asked, expected)) if drafter is Right else drafter()
        engine = speculating(drafter=made, lag=lag, page_size=4, cache_tokens=28, token_budget=5)
        done = served(engine, [(0, request) for request in asked.values()], {"b": tick})
        compare(SHAPE, asked, done, expected)
        nothing_is_left(engine)
        ended, tick = done["b", 0].finish_reason, tick + 1
    assert tick > 5


@given(
    data=st.data(), shape=st.sampled_from(EVERY_FAMILY), pool=pools(), drafts=st.integers(1, 6), lag=st.integers(0, 2)
)
def test_whatever_the_schedule_drafts_change_no_token(data, shape, pool, drafts, lag):
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    asked = {item["name"]: ask(item["name"], item["prompt"], shape, item["salt"], **item["params"]) for item in plan}
    expected = plain(shape, asked)
    drafter = data.draw(st.sampled_from([None, Nonsense(), Nothing(), Right(answers(asked, expected))]))
    engine = speculating(shape, drafter, lag, drafts, **pool)
    done = run_schedule(engine, plan, asked)
    compare(shape, asked, done, expected)
    nothing_is_left(engine)


def test_an_adaptive_engine_changes_no_token_either():
    asked = crowd()
    engine = build_engine(FINAL, SHAPE, speculate="ngram", page_size=4, cache_tokens=28, token_budget=5)
    compare(SHAPE, asked, run(engine, asked.values()))
    nothing_is_left(engine)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("shape", [shape for shape in [*FAMILIES, *MIXED] if set(SHAPES[shape].windows) == {None}])
def test_a_model_that_drafts_for_itself_is_always_right(shape, kernels):
    """Where the draft is the model, every draft stands: whatever was preempted, shared, rejected or not drafted."""
    asked = {
        "greedy": ask("greedy", (*range(40, 52), 1), shape, max_tokens=14),
        "samples": ask("samples", (*range(40, 52), 2), shape, max_tokens=9, n=2, temperature=1.0, seed=3),
        "cut": ask("cut", (7, 8, 9), shape, max_tokens=9, temperature=1.0, top_k=5, top_p=0.9, seed=5),
    }
    engine = drafting_for_itself(shape, kernels=kernels, page_size=4, cache_tokens=32, token_budget=9)
    compare(shape, asked, run(engine, asked.values()))
    told = engine.metrics().speculation
    assert engine.metrics().preemptions > 0
    assert told.accepted == told.drafted and sum(told.accepted) > 0
    nothing_is_left(engine)


def test_a_draft_model_that_lags_behind_computes_a_bounded_number_of_tokens_per_step(monkeypatch):
    """Four prompts of 60 tokens come at once; with 16 tokens per step, it takes several steps until all have drafts."""
    monkeypatch.setattr(draft_model, "CHUNK", 16)
    asked = {name: ask(name, (*range(40, 99), number), SHAPE, max_tokens=40) for number, name in enumerate("abcd")}
    engine = drafting_for_itself(SHAPE, kernels=False, page_size=4, cache_tokens=800, token_budget=300, max_sequences=4)
    drafter, computed, drafted = engine.runner.step.drafter, [], []
    propose = drafter.propose

    def counting(history, slots, count, limits):
        before = dict(drafter._stored)
        drafts = propose(history, slots, count, limits)
        lengths = history.lengths[slots].tolist()
        stored = [min(drafter._stored.get(slot, 0), end) for slot, end in zip(slots.tolist(), lengths, strict=True)]
        old = [min(before.get(slot, 0), end - 1) for slot, end in zip(slots.tolist(), lengths, strict=True)]
        computed.append(sum(max(0, new - was) for new, was in zip(stored, old, strict=True)))
        drafted.append((drafts[:, 0] >= 0).tolist())
        return drafts

    monkeypatch.setattr(drafter, "propose", counting)
    compare(SHAPE, asked, run(engine, asked.values()))
    assert max(computed) <= 16 + 4 * draft_model.USUAL
    assert not any(map(all, drafted[:8])) and any(map(all, drafted))
    told = engine.metrics().speculation
    assert told.accepted == told.drafted and sum(told.accepted) > 0
    nothing_is_left(engine)


@pytest.mark.parametrize("kernels", [True, False])
def test_a_draft_without_windows_drafts_for_a_model_with_some(kernels):
    """The model gives back pages that its windows have passed; the draft's own pages are those that see everything."""
    shape, options = "tiny-gemma3", {"page_size": 4, "cache_tokens": 80, "token_budget": 9, "max_sequences": 3}
    asked = {
        "greedy": ask("greedy", (*range(40, 60), 1), shape, max_tokens=24),
        "samples": ask("samples", (*range(40, 60), 2), shape, max_tokens=19, n=2, temperature=1.0, seed=3),
    }
    config = EngineConfig(limits_of(shape), speculate="draft:other", drafts=3, graphs=False, kernels=kernels, **options)
    engine = build(tiny_model(shape), config, draft=tiny_model(SHAPE))
    compare(shape, asked, run(engine, asked.values()))
    assert sum(engine.metrics().speculation.drafted) > 0
    nothing_is_left(engine)


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data(), pool=pools(), drafts=st.integers(1, 6), lag=st.integers(0, 2))
def test_whatever_the_schedule_a_draft_model_has_what_it_needs(data, pool, drafts, lag):
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    asked = {item["name"]: ask(item["name"], item["prompt"], SHAPE, item["salt"], **item["params"]) for item in plan}
    engine = drafting_for_itself(SHAPE, drafts=drafts, **pool)
    engine.lag = engine.scheduler.drafting.lag = lag
    compare(SHAPE, asked, run(engine, asked.values()))
    told = engine.metrics().speculation
    penalized = any(item["params"]["presence_penalty"] for item in plan)
    assert penalized or told.accepted == told.drafted
    nothing_is_left(engine)


def drafting_for_itself(shape: str, drafts: int = 3, **options) -> Engine:
    model, limits = tiny_model(shape), limits_of(shape)
    options = {"max_sequences": 3, "graphs": False, **options}
    return build(model, EngineConfig(limits, speculate="draft:itself", drafts=drafts, **options), draft=model)


@pytest.mark.parametrize("count", [80, pytest.param(10_000, marks=[pytest.mark.stress, pytest.mark.timeout(1800)])])
def test_acceptance_does_not_decay_with_slots_and_pages_that_are_used_again(count):
    """Prompts begin alike, pages are shared, exchanged and evicted, sequences preempted: every draft still stands."""
    engine, done = drafting_for_itself(SHAPE, page_size=4, cache_tokens=36, token_budget=16, kernels=False), {}
    for number in range(count):
        prompt = (*range(40, 40 + 4 * (number % 4)), number % 7, number % 11)
        engine.submit(ask(f"r{number}", prompt, max_tokens=8 + number % 9))
        if number % 4 == 3:
            while engine.has_work:
                record(done, engine.step())
    told = engine.metrics().speculation
    assert len(done) == count and engine.metrics().preemptions > 0 and engine.metrics().cached_tokens > 0
    assert told.accepted == told.drafted and told.tokens_per_step > 2
    nothing_is_left(engine)


@pytest.mark.parametrize("count", [48, pytest.param(10_000, marks=[pytest.mark.stress, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize("drafter", ["ngram", "medusa", "eagle"])
def test_the_same_requests_have_the_same_drafts_after_many_others(drafter, count, tmp_path):
    """Histories and hidden states are kept by slot: what an earlier owner has left there would be drafted from."""
    speculate = drafter if drafter == "ngram" else heads_of(tiny_model(SHAPE), tmp_path, drafter)
    engine = build_engine(FINAL, SHAPE, speculate=speculate, drafts=3, page_size=4, cache_tokens=48, graphs=False)

    def drafted_for(name: str) -> dict[tuple[int, ...], list[int]]:
        """Each text that some requests came to, and what was drafted after it."""
        heard, propose = {}, engine.runner.step.drafter.propose

        def listening(history, slots, count, limits):
            drafts = propose(history, slots, count, limits)
            for slot, row in zip(slots.tolist(), drafts.tolist(), strict=True):
                heard[tuple(history.tokens[slot, : history.lengths[slot]].tolist())] = row
            return drafts

        engine.runner.step.drafter.propose = listening
        run(
            engine, [ask(f"{name}{n}", (n, *range(40, 46), *range(40, 46)), SHAPE, name, max_tokens=20) for n in (1, 2)]
        )
        engine.runner.step.drafter.propose = propose
        return heard

    first = drafted_for("first")
    done: dict[tuple[str, int], Ending] = {}
    for number in range(count):
        prompt = (*range(40, 40 + 4 * (number % 4)), number % 7, number % 11, number % 7, number % 11)
        engine.submit(ask(f"r{number}", prompt, max_tokens=3 + number % 7))
        if number % 4 == 3:
            while engine.has_work:
                record(done, engine.step())
    assert len(done) == count and engine.metrics().preemptions > 0
    assert drafted_for("last") == first and len(first) > 20
    nothing_is_left(engine)
