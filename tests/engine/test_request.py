"""A request is checked once, and what passes can be served: every field, its limits, and nonsense of every type."""

import copy
import dataclasses
import inspect
import json
import math
import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.meaning import meanings
from gradus.engine.request import DEFAULT_MAX_TOKENS, MAX_SEED, ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.errors import RequestError

LIMITS = ModelLimits(vocab_size=100, context_length=32, eos_token_ids=(2,))

BAD_FIELDS = [
    ("max_tokens", [0, -1, 1.5, math.inf, True, "5", [3]]),
    ("temperature", [-0.1, math.nan, math.inf, -math.inf, 101, 10**400, True, "1", None]),
    ("top_k", [-2, 1.0, True, "1", None]),
    ("top_p", [-0.5, 1.01, math.nan, True, None]),
    ("min_p", [-0.1, 1.1, math.nan, None]),
    ("repetition_penalty", [0, -1, math.inf, math.nan, "2"]),
    ("presence_penalty", [-2.1, 2.1, math.nan, None]),
    ("frequency_penalty", [-2.1, 2.1, math.inf, None]),
    ("logit_bias", [{-1: 1.0}, {1: 101}, {1: math.nan}, {"x": 1}, {1.5: 1}, {True: 1}, {1: "1"}, [1], None, 5]),
    ("logit_bias", [{str(i): 1 for i in range(2000)}]),
    ("seed", [-1, 2**63, 1.0, True, "1"]),
    ("n", [0, -1, 129, 10**9, 1.0, True, None]),
    ("stop", [[""], ["a"] * 17, [1], ["x" * 257], 5, [None], {"a": 1}, [["a"]], b"a"]),
    ("stop_token_ids", [[-1], [1.0], [True], list(range(65)), 5, "1", ["1"]]),
    ("min_tokens", [-1, 1.0, True, None]),
    ("ignore_eos", [1, "yes", None]),
    ("logprobs", [-1, 21, 10**6, 1.0, True]),
]


@pytest.mark.parametrize("params", [SamplingParams, SchedulingParams])
def test_help_says_what_each_field_means(params):
    shown = inspect.getdoc(params)
    assert shown.splitlines()[0].endswith(".") and max(map(len, shown.splitlines())) <= 116
    for name, meaning in meanings(params).items():
        assert meaning and f" {name}: {meaning}" in " ".join(shown.split())


@pytest.mark.parametrize("param, value", [(param, value) for param, values in BAD_FIELDS for value in values])
def test_a_field_out_of_bounds_is_refused_with_its_name_limit_and_value(param, value):
    with pytest.raises(RequestError) as refused:
        SamplingParams(**{param: value})
    assert refused.value.param == param
    assert refused.value.limit
    assert param in str(refused.value) and "got" in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 250


def test_a_top_p_of_zero_keeps_the_likeliest_token():
    params = SamplingParams(top_p=0, top_k=50)
    assert (params.top_k, params.top_p) == (1, 1.0)
    assert SamplingParams(top_p=0.0) == dataclasses.replace(params) != SamplingParams()


BAD_SCHEDULING = [
    ("priority", [-1001, 1001, 10**400, 1.0, True, "1", None]),
    ("deadline", [0, -1, 604801, 10**400, math.inf, math.nan, True, "5", [5]]),
    ("timeout", [0, -0.0, -1, 604801, math.inf, math.nan, False, "5", {}]),
    ("cache_salt", ["", "x" * 1025, 5, True, b"a", ["a"]]),
]


@pytest.mark.parametrize("param, value", [(param, value) for param, values in BAD_SCHEDULING for value in values])
def test_a_scheduling_field_out_of_bounds_is_refused_in_the_same_way(param, value):
    with pytest.raises(RequestError) as refused:
        SchedulingParams(**{param: value})
    assert refused.value.param == param and refused.value.limit
    assert param in str(refused.value) and "got" in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 250


def test_scheduling_at_its_limits_is_accepted_and_seconds_are_numbers():
    params = SchedulingParams(priority=-1000, deadline=604800, timeout=1, cache_salt="x" * 1024)
    assert (params.deadline, params.timeout) == (604800.0, 1.0) and isinstance(params.timeout, float)
    assert SchedulingParams() == SchedulingParams(priority=0, deadline=None, timeout=None, cache_salt=None)


def test_a_request_without_scheduling_has_the_defaults():
    assert Request.create("r", [1], SamplingParams(), LIMITS).scheduling == SchedulingParams()
    urgent = SchedulingParams(priority=-5)
    assert Request.create("r", [1], SamplingParams(), LIMITS, urgent).scheduling is urgent


@pytest.mark.parametrize("number", [2**31, 2**63 - 1])
def test_a_huge_max_tokens_is_refused_by_the_context_and_says_so(number):
    params = SamplingParams(max_tokens=number)
    with pytest.raises(RequestError, match=r"max_tokens must be between 1 and 29 \(prompt 3 tokens, context 32\)"):
        Request.create("r", [1, 2, 3], params, LIMITS)


@pytest.mark.parametrize(
    ("got", "bare", "shown"),
    [
        ("no", False, "'no'"),
        ("no", True, "no"),
        (["no"], True, "['no']"),
        ("a\nb" * 99, True, "a ba ba ba ba ba ba ba ba ba ba ba ba ba ba ba ba ba ba b…"),
        (list(range(99)), False, "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16…"),
    ],
)
def test_a_refusal_shows_what_came_on_one_short_line(got, bare, shown):
    error = RequestError.of("n", "a number", got, bare=bare)
    assert str(error) == f"n must be a number, got {shown}" and len(shown) <= 60
    assert (error.param, error.limit, error.got) == ("n", "a number", shown)


@pytest.mark.parametrize("token", [-1, 100, 2**31, 2**64, 1.0, True, "1", None])
def test_a_token_id_outside_the_vocabulary_is_refused_wherever_it_stands(token):
    with pytest.raises(RequestError) as refused:
        Request.create("r", [1, token], SamplingParams(), LIMITS)
    assert refused.value.param == "prompt"
    if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
        for field in ({"stop_token_ids": [token]}, {"logit_bias": {token: 1}}):
            with pytest.raises(RequestError):
                Request.create("r", [1], SamplingParams(**field), LIMITS)


@pytest.mark.parametrize("prompt", ["", "text", [], (), 5, None, [[]], [[1]], b"ab"])
def test_a_prompt_that_is_no_list_of_token_ids_is_refused(prompt):
    with pytest.raises(RequestError) as refused:
        Request.create("r", prompt, SamplingParams(), LIMITS)
    assert refused.value.param == "prompt"


def test_the_longest_prompt_leaves_room_for_one_token_and_one_more_is_refused():
    assert Request.create("r", [1] * 31, SamplingParams(), LIMITS).max_tokens == 1
    with pytest.raises(RequestError, match=r"at most 31 tokens .*got 32"):
        Request.create("r", [1] * 32, SamplingParams(), LIMITS)


def test_defaults_are_resolved_when_the_request_is_made():
    wide = ModelLimits(vocab_size=100, context_length=4096, eos_token_ids=(2, 3))
    request = Request.create("r", [1], SamplingParams(stop_token_ids=[7]), wide)
    assert request.max_tokens == DEFAULT_MAX_TOKENS
    assert request.stop_ids == {2, 3, 7}
    assert 0 <= request.seed <= MAX_SEED
    assert Request.create("r", [1], SamplingParams(), LIMITS).max_tokens == 31
    assert Request.create("r", [1], SamplingParams(ignore_eos=True, stop_token_ids=[7]), wide).stop_ids == {7}


def test_requests_without_a_seed_differ_and_siblings_have_seeds_of_their_own():
    first, second = (Request.create("r", [1], SamplingParams(), LIMITS) for _ in range(2))
    assert first.seed != second.seed
    seeded = Request.create("r", [1], SamplingParams(seed=MAX_SEED, n=16), LIMITS)
    seeds = [seeded.seed_of(index) for index in range(16)]
    assert seeds[0] == MAX_SEED and len(set(seeds)) == 16 and all(0 <= seed < 2**64 for seed in seeds)


def test_min_tokens_must_fit_under_max_tokens_and_the_context():
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)
    with pytest.raises(RequestError, match="min_tokens"):
        Request.create("r", [1], SamplingParams(min_tokens=32), LIMITS)


def test_params_cannot_be_changed_after_they_were_checked():
    bias = {5: 1.0}
    params = SamplingParams(logit_bias=bias, stop=["a"])
    bias[6] = 1e9
    assert dict(params.logit_bias) == {5: 1.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 2.0
    for change in (
        lambda: params.logit_bias.__setitem__(5, 9.0),
        lambda: params.logit_bias.update({5: 9.0}),
        lambda: params.logit_bias.pop(5),
        lambda: operator.ior(params.logit_bias, {6: 1.0}),
    ):
        with pytest.raises(TypeError, match="do not change"):
            change()
    assert dict(params.logit_bias) == {5: 1.0}


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(logit_bias={5: 1.0, 7: -2.0}, stop=["a"], n=2)])
def test_a_request_is_plain_data(params):
    """It crosses to other processes, and into files."""
    request = Request.create("r", [1, 2], params, LIMITS, SchedulingParams(timeout=3))
    for copied in (pickle.loads(pickle.dumps(request)), copy.deepcopy(request)):
        assert copied == request
        with pytest.raises(TypeError):
            copied.params.logit_bias[5] = 9.0
    fields = dataclasses.asdict(request)
    assert SamplingParams(**fields["params"]) == params
    assert json.loads(json.dumps(fields["params"]["logit_bias"])) == {str(k): v for k, v in params.logit_bias.items()}


def test_json_spellings_are_understood():
    params = SamplingParams(**json.loads('{"logit_bias": {"5": -100}, "temperature": -0.0, "stop": "END"}'))
    assert dict(params.logit_bias) == {5: -100.0}
    assert math.copysign(1, params.temperature) == 1.0
    assert params.stop == ("END",)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([field.name for field in dataclasses.fields(SamplingParams)]), JUNK)
def test_junk_is_either_accepted_or_refused_in_one_line(name, value):
    try:
        SamplingParams(**{name: value})
    except RequestError as refused:
        assert refused.param == name and "\n" not in str(refused)


@given(st.sampled_from([field.name for field in dataclasses.fields(SchedulingParams)]), JUNK)
def test_junk_scheduling_is_either_accepted_or_refused_in_one_line(name, value):
    try:
        SchedulingParams(**{name: value})
    except RequestError as refused:
        assert refused.param == name and "\n" not in str(refused)


@given(JUNK)
def test_a_junk_prompt_is_either_accepted_or_refused_in_one_line(prompt):
    try:
        Request.create("r", prompt, SamplingParams(), LIMITS)
    except RequestError as refused:
        assert refused.param == "prompt" and "\n" not in str(refused)
