"""Answers keep to their grammars, and are the same in any batch, after a preemption, with drafts or without."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest

from gradus import LLM, SamplingParams
from gradus.engine.plan import NOT_FINITE
from gradus.errors import RequestError
from gradus.sampling.constraints import NOTHING_LEGAL
from gradus.structured import Matcher
from tests.structured.answers import SCHEMA

MODEL = "random:tiny-qwen3"  # a token per byte; 320 logits, of which the tokenizer knows 256
EOS = 257
DATE = r"[0-9]{4}-[01][0-9]"
GRAMMAR = 'start: "a" start "b" | "c"'


def engine(**settings) -> LLM:
    return LLM(MODEL, **{"device": "cpu", "dtype": "float32", "max_sequences": 4, "context_length": 400} | settings)


def params(number: int = 0, structured=None, **settings) -> SamplingParams:
    structured = {"json_schema": SCHEMA, "whitespace": "compact"} if structured is None else structured
    return SamplingParams(max_tokens=150, temperature=1.0, seed=number, structured=structured, **settings)


PROMPTS = [[number] * (3 + 11 * number) for number in range(8)]
SOME = PROMPTS[3:]  # one more than run at once


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """The answer of each prompt of SOME, by itself, without overlap."""
    llm = engine(max_sequences=1, switch_off=("overlap", "prefix_cache"))
    return [llm.generate(prompt, params(number))[0].token_ids for number, prompt in enumerate(SOME)]


def answers(llm: LLM) -> list[list[int]]:
    done = llm.generate(SOME, [params(number) for number in range(len(SOME))])
    llm.core.check()
    return [each.token_ids for each in done]


@pytest.mark.parametrize(
    ("structured", "holds"),
    [
        ({"json_schema": SCHEMA}, lambda text: jsonschema.validate(json.loads(text), SCHEMA)),
        ({"regex": DATE}, lambda text: re.fullmatch(DATE, text) or pytest.fail(text)),
        ({"choice": ["yes", "no", "yes, but"]}, ["yes", "no", "yes, but"].index),
        ({"grammar": GRAMMAR}, lambda text: re.fullmatch("(a*)c(b*)", text) or pytest.fail(text)),
        ({"json": True}, json.loads),
    ],
)
def test_every_answer_that_stops_is_what_was_asked_for(structured, holds):
    done = engine().generate(PROMPTS, [params(number, structured) for number in range(8)])
    stopped = [each for each in done if each.finish_reason == "stop"]
    assert len(stopped) >= 4
    for each in stopped:
        holds(each.text)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"switch_off": ("overlap",)},
        {"switch_off": ("kernels",)},
        {"token_budget": 16},
        {"cache_tokens": 320},  # of 4 sequences of up to 230: some give way
        {"speculate": "ngram"},
        pytest.param({"speculate": "ngram", "drafts": 5}, marks=pytest.mark.stress),
    ],
)
def test_an_answer_does_not_depend_on_how_it_is_computed(settings, alone):
    llm = engine(**settings)
    assert answers(llm) == alone
    assert answers(llm) == alone, "with prompts in the cache"
    if "cache_tokens" in settings:
        assert llm.metrics().preemptions > 0


def test_neighbors_without_a_grammar_are_not_touched():
    free = SamplingParams(max_tokens=40, temperature=1.0, seed=3)
    wanted = engine().generate([[5] * 9], free)[0].token_ids
    llm = engine()
    mixed = llm.generate([PROMPTS[0], [5] * 9, PROMPTS[1]], [params(0), free, params(1)])
    assert mixed[1].token_ids == wanted
    llm.generate(PROMPTS[:4], [params(number) for number in range(4)])
    assert [llm.generate([[5] * 9] * 4, free)[slot].token_ids for slot in range(4)] == [wanted] * 4, (
        "nor a slot's next owner"
    )


def test_samples_of_one_request_each_keep_to_the_grammar():
    done = engine().generate(PROMPTS[2], params(7, n=4))
    assert len({each.text for each in done}) > 1
    for each in done:
        assert each.finish_reason == "length" or jsonschema.validate(json.loads(each.text), SCHEMA) is None


def test_a_stop_token_waits_for_the_grammar_to_accept():
    digits = [ord(digit) for digit in "123456789"]
    done = engine().generate(PROMPTS[:4], [params(number, stop_token_ids=digits) for number in range(4)])
    for each in done:
        assert each.finish_reason == "length" or json.loads(each.text)["sizes"] in ([], [0], [0, 0], [0, 0, 0])


def test_a_stop_token_that_the_grammar_needs_ends_the_request_with_the_reason():
    done = engine().generate(PROMPTS[0], params(0, stop_token_ids=[ord("{")]))
    assert done[0].finish_reason == "error" and "allows no token" in done[0].error


def test_penalties_and_biases_apply_among_legal_tokens_only():
    biased = params(1, {"regex": "[ab]{8}"}, logit_bias={ord("b"): -100, ord("z"): 100}, repetition_penalty=1.3)
    assert engine().generate(PROMPTS[1], biased)[0].text == "a" * 8


def test_logprobs_are_the_models_own():
    llm, free = engine(), SamplingParams(max_tokens=1, temperature=0, logprobs=3)
    expected = llm.generate(PROMPTS[1], free)[0].logprobs[0]
    masked = llm.generate(PROMPTS[1], params(0, {"regex": "[ab]+"}, logprobs=3))[0].logprobs[0]
    assert masked.top == expected.top


def test_forced_tokens_are_verified_together():
    text = '{"a fixed name that is long":'
    llm = engine(speculate="ngram", max_sequences=1)
    done = llm.generate(PROMPTS[0], params(0, {"regex": re.escape(text) + "[0-9]{3}"}))
    assert done[0].text.startswith(text)
    assert llm.metrics().speculation.tokens_per_step > 3


def test_a_matcher_that_fails_ends_its_own_request_alone(monkeypatch):
    accept, failed = Matcher.accept, []

    def failing(self, tokens):
        if len(failed) == 0 and 65 in tokens:
            failed.append(self)
            self._fail("it was made to")
        return accept(self, tokens)

    monkeypatch.setattr(Matcher, "accept", failing)
    regexes = ["A[0-9]{20}", "B[0-9]{20}", "C[0-9]{20}"]
    done = engine().generate(PROMPTS[:3], [params(number, {"regex": each}) for number, each in enumerate(regexes)])
    assert [each.finish_reason for each in done] == ["error", "stop", "stop"]
    assert "it was made to" in done[0].error
    assert NOTHING_LEGAL not in done[0].error and NOT_FINITE not in done[0].error


@pytest.mark.parametrize(
    ("structured", "says"),
    [
        ({"regex": "a("}, "unclosed group"),
        ({"regex": r"a\bc"}, "lookarounds not supported"),
        ({"json_schema": {"type": "strin"}}, "json_schema can't be compiled"),
        ({"grammar": "start: nothing"}, "grammar can't be compiled"),
        ({"json_schema": False}, "structured"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_it_is_queued(structured, says):
    llm = engine()
    with pytest.raises(RequestError, match=re.escape(says)) as refused:
        llm.submit(PROMPTS[0], params(0, structured))
    assert "\n" not in str(refused.value) and not llm.has_work


@pytest.mark.parametrize("phase", ["p00", "p03", "p10"])
def test_engines_without_grammars_refuse_them_in_one_line(phase):
    llm = LLM(MODEL, device="cpu", phase=phase, context_length=64)
    with pytest.raises(RequestError, match="structured must be left out"):
        llm.submit([1, 2, 3], params())


def test_what_would_keep_an_answer_from_ending_is_refused():
    for wrong in ({"ignore_eos": True}, {"min_tokens": 3}):
        with pytest.raises(RequestError, match=f"{next(iter(wrong))} must be"):
            params(0, **wrong)
    llm = engine()
    llm.front_end.limits = replace(llm.front_end.limits, eos_token_ids=())
    with pytest.raises(RequestError, match="no end-of-sequence token"):
        llm.submit([1, 2, 3], params())
