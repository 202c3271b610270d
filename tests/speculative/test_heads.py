"""Trained heads as drafters: no token changes, and they see the hidden state of the row that stood last, always."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.config.options import FINAL
from gradus.engine.engine import Engine
from tests.phases.conftest import FAMILIES, build_engine, tiny_model
from tests.phases.drive import nothing_is_left, run, run_schedule
from tests.phases.test_paged_schedules import SHAPE, ask, pools, requests
from tests.speculative.heads import DRAFTS, Reference, heads_of
from tests.speculative.test_tokens import compare, plain

KINDS = ("medusa", "eagle")


def drafting(speculate: str, shape: str = SHAPE, drafts: int = DRAFTS, **options) -> Engine:
    return build_engine(FINAL, shape, speculate=speculate, drafts=drafts, graphs=False, **options)


def listened(engine: Engine) -> list[tuple[list[int], list[int]]]:
    """Every draft that is made from now on: what the sequence had said, and the drafts."""
    heard, drafter = [], engine.runner.drafter
    propose = drafter.propose

    def listening(history, slots, count, limits):
        drafts = propose(history, slots, count, limits)
        said = [history.tokens[slot, : history.lengths[slot]].tolist() for slot in slots.tolist()]
        heard.extend(zip(said, drafts.tolist(), strict=True))
        return drafts

    drafter.propose = listening
    return heard


def asked_of(shape: str) -> dict:
    """Chunks, hits, preemptions; greedy first, then all else that changes a draw."""
    return {
        "greedy": ask("greedy", (*range(40, 52), 1), shape, max_tokens=14),
        "hit": ask("hit", (*range(40, 52), 3), shape, max_tokens=11),
        "samples": ask("samples", (*range(40, 52), 2), shape, max_tokens=9, n=2, temperature=0.3, seed=3),
        "penalty": ask("penalty", (4, 5), shape, max_tokens=12, presence_penalty=1.0, repetition_penalty=1.3),
        "cut": ask("cut", (7, 8, 9), shape, max_tokens=9, temperature=1.0, top_k=5, top_p=0.9, seed=5),
    }


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", FAMILIES)
def test_heads_change_no_token(shape, kind, kernels, tmp_path):
    asked = asked_of(shape)
    engine = drafting(
        heads_of(tiny_model(shape), tmp_path, kind), shape, page_size=4, cache_tokens=32, token_budget=9,
        kernels=kernels,
    )  # fmt: skip
    compare(asked, run(engine, asked.values()), plain(shape, asked))
    assert engine.metrics().preemptions > 0 and sum(engine.metrics().speculation.drafted) > 0
    nothing_is_left(engine)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gpt2", "tiny-gemma3"])
def test_drafts_are_what_the_heads_say_of_the_whole_text(shape, kind, kernels, tmp_path):
    """After preemptions, prefix hits, chunks, and drafts that were wrong: the state is that of the last row that stood.

    Half of the vocabulary is never drafted.
    """
    model = tiny_model(shape)
    vocabulary = model.config.vocab_size // 2
    engine = drafting(
        heads_of(model, tmp_path, kind, vocabulary=vocabulary), shape, page_size=4, cache_tokens=32, token_budget=9,
        kernels=kernels,
    )  # fmt: skip
    heard, reference = listened(engine), Reference(model, tmp_path)
    asked = [ask(f"r{n}", (*range(40, 52), n % 3), shape, max_tokens=14) for n in range(5)]
    run(engine, asked)
    assert engine.metrics().preemptions > 0 and engine.metrics().cached_tokens > 0 and len(heard) > 30
    for said, drafts in heard:
        assert drafts == reference.drafts(said, DRAFTS)
        assert max(drafts) < vocabulary


@settings(max_examples=15)
@given(data=st.data(), pool=pools(), drafts=st.integers(1, DRAFTS), lag=st.integers(0, 2), kind=st.sampled_from(KINDS))
def test_whatever_the_schedule_heads_change_no_token(tmp_path_factory, data, pool, drafts, lag, kind):
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    asked = {item["name"]: ask(item["name"], item["prompt"], SHAPE, item["salt"], **item["params"]) for item in plan}
    engine = drafting(same_heads(tmp_path_factory, kind), drafts=drafts, **pool)
    engine.lag = engine.scheduler.drafting.lag = lag
    compare(asked, run_schedule(engine, plan, asked), plain(SHAPE, asked))
    nothing_is_left(engine)


@settings(max_examples=15)
@given(data=st.data(), pool=pools(), lag=st.integers(0, 2))
def test_whatever_the_schedule_the_newest_state_is_that_of_the_newest_token(tmp_path_factory, data, pool, lag):
    """Heads of zeros say what the model said: so each of their drafts is the newest token, greedy."""
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    greedy = [{**item, "params": item["params"] | {"temperature": 0, "presence_penalty": 0}} for item in plan]
    asked = {item["name"]: ask(item["name"], item["prompt"], SHAPE, item["salt"], **item["params"]) for item in greedy}
    engine = drafting(same_heads(tmp_path_factory, "zeros"), **pool)
    engine.lag = engine.scheduler.drafting.lag = lag
    heard = listened(engine)
    compare(asked, run_schedule(engine, greedy, asked), plain(SHAPE, asked))
    assert all(set(drafts) == {said[-1]} for said, drafts in heard)


_FOLDERS: dict[str, str] = {}


def same_heads(factory, kind: str) -> str:
    if kind not in _FOLDERS:
        folder: Path = factory.mktemp(kind)
        zeros = kind == "zeros"
        _FOLDERS[kind] = heads_of(tiny_model(SHAPE), folder, "medusa" if zeros else kind, std=0.0 if zeros else 0.3)
    return _FOLDERS[kind]


def test_an_adaptive_engine_drafts_no_more_than_there_are_heads(tmp_path):
    engine = build_engine(FINAL, SHAPE, speculate=heads_of(tiny_model(SHAPE), tmp_path, "medusa"))
    asked = asked_of(SHAPE)
    compare(asked, run(engine, asked.values()), plain(SHAPE, asked))
    assert engine.scheduler.drafting.choices == [0, 1, 2, DRAFTS]
