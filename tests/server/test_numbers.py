"""Numbers that no column and no message can hold: refused where the request is checked, or carried unchanged."""

import dataclasses
import math

import pytest

from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.errors import RequestError
from gradus.server.engine.messages import Submit
from gradus.server.engine.wire import commands_and_load, frame
from gradus.server.limits import check_prompt_logprobs

LIMITS = ModelLimits(100, 64, (2,), structured=True, prompt_logprobs=True)
NUMBERS = [2**31, 2**63 - 1, 2**63, 2**64, 10**30, 10**5000, -(2**63) - 1, 1e308, math.nan, math.inf]

ALONE = ("the number itself",)
SAMPLING = {
    **dict.fromkeys(("max_tokens", "min_tokens", "n", "seed", "top_k", "logprobs", "prompt_logprobs"), ALONE),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), ALONE),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "ignore_eos"), ALONE),
    "logit_bias": (*ALONE, lambda number: {number: 1}, lambda number: {5: number}),
    "stop": (*ALONE, lambda number: [number]),
    "stop_token_ids": (*ALONE, lambda number: [number]),
    "structured": (*ALONE, lambda number: {"json": number}, lambda number: {"json_schema": {"maximum": number}}),
}
SCHEDULING = dict.fromkeys(("priority", "deadline", "timeout", "cache_salt"), ALONE)
PLACES = [(params, name, place) for params, fields in ((SamplingParams, SAMPLING), (SchedulingParams, SCHEDULING))
          for name, places in fields.items() for place in places]  # fmt: skip


@pytest.mark.parametrize(("params", "known"), [(SamplingParams, SAMPLING), (SchedulingParams, SCHEDULING)])
def test_every_field_has_a_case(params, known):
    assert {field.name for field in dataclasses.fields(params)} == known.keys()


@pytest.mark.parametrize(("params", "name", "place"), PLACES)
def test_a_number_of_any_size_is_carried_unchanged_or_refused_in_one_line(params, name, place):
    for number in NUMBERS:
        given = {name: number if place in ALONE else place(number)}
        try:
            made = params(**given)
            sampling, scheduling = (made, None) if params is SamplingParams else (SamplingParams(), made)
            request = Request.create("r", [1, 2], sampling, LIMITS, scheduling)
        except RequestError as refused:
            assert refused.param and "\n" not in str(refused) and len(str(refused)) < 250
            continue
        (command,) = commands_and_load().feed(frame(Submit.of(1, request)))
        assert command.request() == request


def test_a_k_beyond_the_vocabulary_is_off_and_one_beyond_64_bits_is_refused():
    assert SamplingParams(top_k=2**63 - 1).top_k == 2**63 - 1
    with pytest.raises(RequestError, match=r"top_k must be a whole number between -1 and 2\*\*63 - 1, got 92233"):
        SamplingParams(top_k=2**63)


def test_log_probabilities_of_prompts_are_bounded_per_body_with_all_that_multiplies_them():
    def asking(tokens, samples, top):
        return Request.create("r", [1] * tokens, SamplingParams(n=samples, prompt_logprobs=top), LIMITS)

    check_prompt_logprobs([asking(10, 2, 4), asking(63, 128, None)], 100)
    check_prompt_logprobs([asking(10, 1, 4), asking(50, 1, 0)], 100)
    for body in ([asking(51, 1, 1)], [asking(26, 2, 1)], [asking(10, 1, 4), asking(51, 1, 0)]):
        with pytest.raises(RequestError, match=r"at most 100 log-probabilities .*max_prompt_logprobs\), got 10[1-4]"):
            check_prompt_logprobs(body, 100)
