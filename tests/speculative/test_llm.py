"""Speculation through `LLM`: texts, stop strings, log-probabilities and limits are those without, and it says so."""

import pytest

from gradus import LLM, SamplingParams
from gradus.errors import ConfigError

TEXT = "one two three four five six seven. one two three four five six"


def tiny(**settings) -> LLM:
    return LLM("random:tiny-llama", device="cpu", dtype="float32", **settings)


@pytest.fixture(scope="module")
def both() -> tuple[LLM, LLM]:
    return tiny(), tiny(speculate="ngram", drafts=4)


def test_it_is_in_the_settings(both):
    assert [llm.settings["speculate"] for llm in both] == [None, "ngram"]
    assert [llm.settings["drafts"] for llm in both] == [None, 4]
    assert both[0].metrics().speculation is None


@pytest.mark.parametrize(
    "params",
    [
        dict(max_tokens=60, ignore_eos=True),
        dict(max_tokens=60, ignore_eos=True, logprobs=3),
        dict(max_tokens=60, temperature=0.2, seed=3, n=3, logprobs=0),
        dict(max_tokens=1),
        dict(max_tokens=60, repetition_penalty=1.1, frequency_penalty=0.2, min_tokens=20),
    ],
)
def test_completions_are_the_same(both, params):
    plain, speculating = (llm.generate([TEXT, "a"], SamplingParams(**params)) for llm in both)
    for mine, theirs in zip(speculating, plain, strict=True):
        assert (mine.token_ids, mine.text, mine.finish_reason) == (theirs.token_ids, theirs.text, theirs.finish_reason)
        if theirs.logprobs is not None:
            for one, other in zip(mine.logprobs, theirs.logprobs, strict=True):
                assert one.token_id == other.token_id and one.logprob == pytest.approx(other.logprob, abs=1e-4)
                assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_drafts_were_verified(both):
    told = both[1].metrics().speculation
    assert sum(told.accepted) > 0 and told.tokens_per_step > 1


def test_a_stop_string_cuts_the_tokens_that_came_with_it(both):
    whole = both[0].generate(TEXT, SamplingParams(max_tokens=60, ignore_eos=True))[0].text
    stop = whole[10:13]
    plain, speculating = (
        llm.generate(TEXT, SamplingParams(max_tokens=60, ignore_eos=True, stop=[stop]))[0] for llm in both
    )
    assert (speculating.text, speculating.finish_reason) == (plain.text, "stop")
    assert speculating.token_ids == plain.token_ids


def test_bad_settings_are_one_line():
    with pytest.raises(ConfigError, match="drafts must be a whole number between 1 and 16, got 0"):
        tiny(speculate="ngram", drafts=0)
