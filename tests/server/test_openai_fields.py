"""The fields that OpenAI's protocols share, read from a body without a server."""

import json

import pytest

from gradus.errors import RequestError
from gradus.server.api import openai
from gradus.server.api.fields import Fields
from gradus.text.completion import Completion


def params(stock=openai.STOCK, **body):
    return openai.sampling(Fields(body), stock, max_tokens=16, logprobs=None)


def test_without_fields_the_model_s_distribution_is_sampled():
    assert params().temperature == 1.0
    assert params(temperature=None).temperature == 1.0  # null is absent
    assert params(temperature=0).temperature == 0.0


def test_the_model_s_own_defaults_yield_to_the_request_s():
    found = params({"temperature": 0.6, "top_k": 20}, top_k=5)
    assert (found.temperature, found.top_k) == (0.6, 5)


@pytest.mark.parametrize(("seed", "read"), [(7, 7), (-1, None), (-2, 2**63 - 2), (2**63 - 1, 2**63 - 1)])
def test_a_seed_has_64_bits_and_a_sign(seed, read):
    assert params(seed=seed).seed == read


def test_a_seed_beyond_64_bits_is_refused():
    with pytest.raises(RequestError, match="seed must be a whole number"):
        params(seed=2**63)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = SCHEMA | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json_schema",
            json.dumps(SCHEMA),
        ),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json_schema", json.dumps(CLOSED)),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"guided_json": SCHEMA}, "json_schema", json.dumps(CLOSED)),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", json.dumps(CLOSED)),
        ({"guided_json_object": True, "guided_decoding_backend": "xgrammar"}, "json_schema", '{"type":"object"}'),
        ({"guided_regex": "a+", "guided_json": None}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a", "b"]'),
        ({"guided_regex": "a+", "structured_outputs": {"regex": "a+"}}, "regex", "a+"),  # as guidance's VLLMModel does
        ({"guided_grammar": 'start: "a"', "response_format": {"type": "text"}}, "grammar", 'start: "a"'),
        ({"structured_outputs": {"regex": "a+"}, "response_format": {"type": "text"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", '["a", "b"]'),
        ({"structured_outputs": {"grammar": 'start: "a"', "disable_any_whitespace": False}}, "grammar", 'start: "a"'),
    ],
)
def test_a_constraint_reaches_the_engine(body, kind, text):
    found = params(**body).structured
    assert (found.kind, found.text) == (kind, text)


def test_compact_json_has_no_white_space():
    assert (
        params(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True}).structured.whitespace == "compact"
    )


@pytest.mark.parametrize("body", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {"json": None}}])
def test_no_constraint_leaves_the_answer_free(body):
    assert params(**body).structured is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type must be"),
        ({"response_format": {}, "structured_outputs": {"regex": "a", "choice": ["a"]}}, "exactly one"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag is not supported"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "exactly one"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "guided_regex must be left out with another"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json must be left out with another"),
        ({"structured_outputs": {"jsn": {}}}, "must be an object with one of json"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "exactly one"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "an object with a schema"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "left out with a response",
        ),
    ],
)
def test_a_constraint_that_means_nothing_here_is_refused(body, message):
    with pytest.raises(RequestError, match=message):
        params(**body)


@pytest.mark.parametrize("name", openai.UNSUPPORTED)
def test_a_field_that_would_change_the_answer_is_refused_by_name(name):
    with pytest.raises(RequestError, match=f"^{name} is not supported: .*") as refused:
        openai.refuse_unsupported(Fields({name: "anything"}))
    assert refused.value.param == name


@pytest.mark.parametrize("body", [{"use_beam_search": False}, {"skip_special_tokens": True}, {"guided_json": None}])
def test_a_field_that_changes_nothing_passes(body):
    fields = Fields(body, strict=True)
    openai.refuse_unsupported(fields)
    assert fields.ignored() == ()


def test_continuous_usage_needs_usage():
    read = lambda **options: openai.stream_options(Fields({"stream_options": options}))  # noqa: E731
    assert read() == openai.StreamOptions()
    assert read(continuous_usage_stats=True) == openai.StreamOptions()
    assert read(include_usage=True, continuous_usage_stats=True) == openai.StreamOptions(True, True)
    with pytest.raises(RequestError, match=r"stream_options.include_usage must be true or false"):
        read(include_usage=1)


def completion(prompt_index, index, prompt_tokens, cached, tokens):
    return Completion(
        "r", prompt_index, index, "", tuple(range(tokens)), None, "length", None, prompt_tokens, cached, timings=None
    )


def test_a_prompt_counts_once_however_many_samples_it_has():
    found = openai.usage_of([completion(0, 0, 5, 0, 3), completion(0, 1, 5, 4, 2), completion(1, 0, 7, 6, 1)])
    assert (found["prompt_tokens"], found["completion_tokens"], found["total_tokens"]) == (12, 6, 18)
    assert found["prompt_tokens_details"] == {"cached_tokens": 6}  # the first prompt was computed by one sample
    assert found["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_log_probabilities_have_a_floor_and_bytes_a_spelling():
    assert openai.floored(float("-inf")) == -9999.0
    assert openai.floored(-1.5) == -1.5
    assert openai.spelled("é".encode()) == "é"
    assert openai.spelled("é".encode()[:1]) == "bytes:\\xc3"
