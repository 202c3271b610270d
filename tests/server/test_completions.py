"""/v1/completions over a real socket, as OpenAI's clients use it."""

import json

import pytest

from tests.server.conftest import events, running, tiny_llm
from tests.server.scripted import ScriptedCore

ROUTE = "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with running(lambda: ScriptedCore(slots=8), max_waiting=1000) as one:
        yield one


@pytest.fixture(scope="module")
def final():
    """The final engine with a tiny random model: one token per byte."""
    with running(lambda: tiny_llm(None)) as one:
        yield one


def ask(server, **body):
    answer = server.http.post(ROUTE, json={"model": "any", "prompt": "ab", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(server, **body):
    """The chunks of a stream, which ended with [DONE]."""
    with server.http.stream("POST", ROUTE, json={"model": "any", "prompt": "ab", "stream": True, **body}) as answer:
        assert answer.status_code == 200, answer.read()
        found, done = events(answer)
    assert done
    return found


def refused(server, **body):
    answer = server.http.post(ROUTE, json={"prompt": "ab", **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def joined(chunks, choice=0):
    return "".join(part["text"] for chunk in chunks for part in chunk["choices"] if part["index"] == choice)


# -- whole answers -----------------------------------------------------------------------------------------------------


def test_an_answer_has_openai_s_shape_and_the_served_model_s_name(server):
    answer = ask(server, max_tokens=3)
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
    assert isinstance(answer["created"], int)
    assert answer["model"] == server.client.model != "any"
    choice = {"index": 0, "text": "0 1 2 ", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert answer["choices"] == [choice]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_sixteen_tokens_are_the_default_and_null_is_absent(server):
    absent = dict.fromkeys(("max_tokens", "stop", "logprobs", "seed", "suffix", "stream", "echo", "best_of", "n"))
    assert ask(server)["usage"]["completion_tokens"] == 16
    assert ask(server, **absent)["usage"]["completion_tokens"] == 16


def test_more_tokens_than_the_context_holds_are_cut_to_what_is_left():
    with running(lambda: ScriptedCore(context_length=20)) as server:
        assert ask(server, max_tokens=32000)["usage"]["completion_tokens"] == 18
        error = refused(server, prompt="x" * 20)
        assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("ab", [2]), ([97, 98, 99], [3]), (["ab", "c"], [2, 1]), ([[97], [98, 99]], [1, 2])],
)
def test_a_prompt_is_text_or_tokens_or_a_list_of_either(server, prompt, tokens):
    answer = ask(server, prompt=prompt, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == sum(tokens)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(tokens)))


def test_choices_count_samples_within_prompts(server):
    answer = ask(server, prompt=["ab", "c", "d"], n=2, max_tokens=2)
    # sample i of a prompt begins with the token i
    assert [(one["index"], one["text"]) for one in answer["choices"]] == [
        (place, "0 1 " if place % 2 == 0 else "1 2 ") for place in range(6)
    ]
    assert answer["usage"]["prompt_tokens"] == 4 and answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("prompts", "message", "param"),
    [
        ([[1], [2], [1] * 5000], "prompt[2] must have at most 4095 tokens", "prompt"),
        (["a", "a" * 5000, "b"], "prompt[1] must have at most 4095 tokens", "prompt"),
        ([[1], []], "prompt[1] must", "prompt"),
        ([[1], [2, 10**6]], "prompt[1] must", "prompt"),
        ([[1], "a"], "prompt[1] must be a list like those before it, got 'a'", "prompt[1]"),
        ([[1] * 5000], "prompt must have at most 4095 tokens", "prompt"),
        ([1] * 5000, "prompt must have at most 4095 tokens", "prompt"),
    ],
)
def test_a_refused_prompt_among_several_is_named(server, prompts, message, param):
    error = refused(server, prompt=prompts)
    assert error["message"].startswith(message) and error["param"] == param
    assert ("4095" in message) == (error["code"] == "context_length_exceeded")


def test_128_prompts_and_128_samples_are_the_most(server):
    assert len(ask(server, prompt=["a"] * 128, max_tokens=1)["choices"]) == 128
    assert len(ask(server, n=128, max_tokens=1)["choices"]) == 128
    assert refused(server, prompt=["a"] * 129)["message"] == "prompt must be at most 128 prompts, got 129"
    assert refused(server, n=129)["param"] == "n"


@pytest.mark.parametrize("prompt", [[], [[]], [""], 5, {}, ["a", [1]], [[1], "a"], ["a", 1], [1, "a"], [True], [None]])
def test_a_prompt_of_another_form_is_refused(server, prompt):
    error = refused(server, prompt=prompt)
    assert error["param"].removesuffix("[1]") == "prompt" and error["code"] is None
    assert server.http.post(ROUTE, json={}).json()["error"]["param"] == "prompt"


def test_a_stop_string_ends_the_text_and_stays_if_asked_for(server):
    for choice in (ask(server, stop="3")["choices"][0], ask(server, stop=["9", "3"])["choices"][0]):
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("0 1 2 ", "stop", "3")
    assert ask(server, stop="3", include_stop_str_in_output=True)["choices"][0]["text"] == "0 1 2 3"
    assert joined(stream(server, stop="3", include_stop_str_in_output=True)) == "0 1 2 3"


def test_token_ids_are_returned_if_asked_for(server):
    (choice,) = ask(server, max_tokens=3, return_token_ids=True)["choices"]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([0, 1, 2], [97, 98])
    chunks = stream(server, max_tokens=3, return_token_ids=True)
    assert [part["token_ids"] for chunk in chunks for part in chunk["choices"]] == [[0], [1], [2]]
    prompts = [part["prompt_token_ids"] for chunk in chunks for part in chunk["choices"]]
    assert prompts == [[97, 98], None, None]


def test_a_prompt_is_truncated_from_its_beginning(server):
    def prompt(**body):
        return ask(server, prompt="abcdef", return_token_ids=True, **body)["choices"][0]["prompt_token_ids"]

    assert prompt(truncate_prompt_tokens=2) == list(b"ef")
    assert prompt(truncate_prompt_tokens=100) == prompt(truncate_prompt_tokens=-1) == list(b"abcdef")
    echoed = ask(server, prompt=[1, 2, 3], truncate_prompt_tokens=2, echo=True, max_tokens=0)
    assert echoed["choices"][0]["text"] == "2 3 "
    long = ask(server, prompt="x" * 5000, truncate_prompt_tokens=-1, max_tokens=6)
    assert (long["usage"]["prompt_tokens"], long["usage"]["completion_tokens"]) == (4090, 6)
    assert refused(server, truncate_prompt_tokens=0)["param"] == "truncate_prompt_tokens"


# -- echo --------------------------------------------------------------------------------------------------------------


def test_echo_begins_each_choice_with_its_prompt(server):
    answer = ask(server, prompt=["ab", "c"], n=2, echo=True, max_tokens=1)
    assert [choice["text"] for choice in answer["choices"]] == ["ab0 ", "ab1 ", "c0 ", "c1 "]
    chunks = stream(server, prompt=["ab", "c"], n=2, echo=True, max_tokens=2)
    assert [joined(chunks, place) for place in range(4)] == ["ab0 1 ", "ab1 2 ", "c0 1 ", "c1 2 "]


def test_echo_without_a_token_is_the_prompt_alone(server):
    answer = ask(server, echo=True, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("ab", "length", 0)
    chunks = stream(server, echo=True, max_tokens=0, stream_options={"include_usage": True})
    assert joined(chunks) == "ab" and chunks[-1]["usage"]["completion_tokens"] == 0
    assert refused(server, max_tokens=0)["param"] == "max_tokens"


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_has_one_id_a_chunk_per_token_and_a_finish_chunk_per_choice(server):
    chunks = stream(server, prompt=["ab", "c"], n=2, max_tokens=3)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    for place in range(4):
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == place]
        assert [part["finish_reason"] for part in parts] == [None, None, "length"]
        assert "".join(part["text"] for part in parts) == ("0 1 2 " if place % 2 == 0 else "1 2 3 ")


def test_usage_comes_last_without_choices_and_only_if_asked_for(server):
    *chunks, last = stream(server, max_tokens=3, stream_options={"include_usage": True})
    assert last["choices"] == [] and last["usage"] == ask(server, max_tokens=3)["usage"]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)


def test_continuous_usage_counts_with_every_chunk(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = stream(server, max_tokens=3, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {2}
    assert last["usage"]["total_tokens"] == 5


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\u0085", "\n", "é", "\0"])
def test_a_client_that_splits_lines_like_python_reads_every_chunk(end):
    with running(lambda: ScriptedCore(piece=end)) as server:
        chunks = stream(server, max_tokens=3)
        assert joined(chunks) == "".join(f"{token}{end}" for token in range(3))
        raw = server.http.post(ROUTE, json={"prompt": "ab", "stream": True, "max_tokens": 3}).text
        lines = [line for line in raw.splitlines() if line]
        assert all(line == "data: [DONE]" or json.loads(line.removeprefix("data: ")) for line in lines)


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failed_choice_is_an_error_frame_and_not_a_finish_reason():
    with running(lambda: ScriptedCore(poison=120)) as server:
        chunks = stream(server, prompt=["ab", "x"], max_tokens=2, stream_options={"include_usage": True})
        (error,) = [chunk["error"] for chunk in chunks if "error" in chunk]
        assert (error["type"], error["code"]) == ("server_error", "internal_error")
        assert not any(chunk.get("usage") for chunk in chunks), "a broken answer has no usage"
        reasons = {part["finish_reason"] for chunk in chunks for part in chunk.get("choices", ())}
        assert reasons <= {None, "length"}
        answer = server.http.post(ROUTE, json={"prompt": ["ab", "x"]})
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"


def test_an_engine_that_dies_ends_a_stream_with_an_error_and_done():
    with running(lambda: ScriptedCore(step_s=0.05, faults={3: RuntimeError("secret")})) as server:
        chunks = stream(server, max_tokens=10)
        assert "error" in chunks[-1] and "secret" not in json.dumps(chunks)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"best_of": 3}, "best_of"),
        ({"temperature": 3000}, "temperature"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),  # the scripted engine keeps no logits of a prompt
        ({"stop": ["x" * 257]}, "stop"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_what_is_not_supported_or_out_of_bounds_is_refused_by_name(server, body, param):
    error = refused(server, **body)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


JUNK = [
    True,
    -1,
    0,
    0.5,
    2**70,
    -(2**70),
    "",
    "x",
    [],
    {},
    [[]],
    [None],
    {"a": None},
    {"type": "x"},
    {"include_usage": 1},
]
FIELDS = [
    "prompt", "suffix", "max_tokens", "temperature", "top_p",
    "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "n", "stop", "stop_token_ids", "min_tokens",
    "ignore_eos", "logprobs", "prompt_logprobs", "echo", "seed",
    "stream", "stream_options", "best_of", "response_format", "structured_outputs",
    "truncate_prompt_tokens", "add_special_tokens", "include_stop_str_in_output",
    "return_token_ids", "return_tokens_as_token_ids",
    "priority", "cache_salt", "deadline", "timeout", "model",
    "user", "guided_json", "guided_choice",
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_no_value_of_a_field_is_a_fault_of_the_server_s(server, field):
    for value in JUNK:
        answer = server.http.post(ROUTE, json={"prompt": "ab", "max_tokens": 1, field: value})
        assert answer.status_code in (200, 400), (value, answer.text)
        if answer.status_code == 400:
            assert answer.json()["error"]["type"] == "invalid_request_error", value
            assert answer.json()["error"]["param"], value


def test_more_samples_than_the_queue_holds_are_refused():
    with running(max_waiting=10) as server:
        assert refused(server, prompt=["a"] * 4, n=3)["message"] == (
            "prompt must be at most 10 samples in all on this server (its max_waiting), got 12"
        )
        assert server.stats()["limits"]["max_prompts"] == 128


def test_best_of_as_many_as_are_returned_changes_nothing(server):
    assert len(ask(server, best_of=2, n=2, max_tokens=1)["choices"]) == 2


def test_a_field_that_nothing_reads_is_named_or_refused_where_the_server_is_strict(server):
    body = {"prompt": "ab", "max_tokens": 1, "tempratur": 1, "user": "me", "model": "any"}
    assert server.http.post(ROUTE, json=body).headers["x-gradus-ignored"] == "tempratur"
    with running(strict_fields=True) as strict:
        answer = strict.http.post(ROUTE, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "unknown field 'tempratur'; did you mean 'temperature'?"
        del body["tempratur"]
        assert strict.http.post(ROUTE, json=body).status_code == 200


# -- the model's own defaults ------------------------------------------------------------------------------------------


def test_sampling_defaults_are_openai_s_the_model_s_or_the_request_s(server, final):
    asked = []
    core = server.engine
    submit, core.submit = core.submit, lambda request: (asked.append(request.params), submit(request))
    try:
        ask(server, max_tokens=1)
        core.info.default_sampling.update(temperature=0.6, top_k=20)
        ask(server, max_tokens=1)
        ask(server, max_tokens=1, temperature=0, top_k=None)
        server.generate(prompt="ab", max_tokens=1)
    finally:
        core.submit = submit
        core.info.default_sampling.clear()
    assert [(params.temperature, params.top_k) for params in asked] == [(1.0, 0), (0.6, 20), (0.0, 20), (0.0, 0)]
    assert server.stats()["default_sampling"] == {}


# -- the final engine --------------------------------------------------------------------------------------------------


def test_log_probabilities_have_the_legacy_shape(final):
    (choice,) = ask(final, prompt="Hello", temperature=0, max_tokens=4, logprobs=2)["choices"]
    found = choice["logprobs"]
    assert [len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [4] * 4
    for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert len(top) == 2 and value == top[token] == max(top.values())  # greedy
    sizes = [len(token) for token in found["tokens"]]
    assert found["text_offset"] == [sum(sizes[:place]) for place in range(4)]
    sampled = ask(final, prompt="Hello", temperature=5, seed=1, max_tokens=8, logprobs=0)["choices"][0]["logprobs"]
    assert [[*top] for top in sampled["top_logprobs"]] == [[token] for token in sampled["tokens"]]
    by_id = ask(final, prompt="Hello", max_tokens=1, logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True)
    (choice,) = by_id["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{choice['token_ids'][0]}"]


def test_a_stream_s_log_probabilities_are_those_of_the_whole_answer(final):
    body = {"prompt": "Hello", "temperature": 0, "max_tokens": 6, "logprobs": 3}
    whole = ask(final, **body)["choices"][0]
    chunks = stream(final, **body)
    for name, values in whole["logprobs"].items():
        assert [each for chunk in chunks for part in chunk["choices"] for each in part["logprobs"][name]] == values
    assert joined(chunks) == whole["text"]


def test_a_seed_repeats_an_answer_and_structure_is_kept(final):
    first, again = (ask(final, temperature=1, seed=-5)["choices"] for _ in range(2))
    assert first == again
    constrained = ask(final, structured_outputs={"choice": ["yes", "no"]}, max_tokens=8)["choices"][0]["text"]
    assert constrained in ("yes", "no")
    formatted = ask(final, response_format={"type": "json_object"}, seed=3, max_tokens=200)["choices"][0]
    assert formatted["text"].startswith("{")


def test_a_suffix_is_refused_by_a_model_without_control_tokens_for_it(final):
    error = refused(final, suffix="x")
    assert error["param"] == "suffix" and "no tokens that mark a middle" in error["message"]
    assert refused(final, suffix="x", prompt=[1, 2])["param"] == "prompt"
    assert refused(final, suffix="x", echo=True)["param"] == "echo"
    assert ask(final, suffix="", max_tokens=1)  # as editors send it at the end of a file


# -- log-probabilities of the prompt -----------------------------------------------------------------------------------


def values_of(choice):
    return [choice["logprobs"][name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")]


@pytest.mark.parametrize(("most", "generated"), [(1, 1), (0, 0), (5, 5)])
def test_echo_scores_exactly_the_prompt_and_what_follows(final, most, generated):
    """As evaluation harnesses score a continuation: they slice from the context's length to one before the end."""
    prompts = [list(b"The capital"), list(b"Hi")]
    answer = ask(final, prompt=prompts, echo=True, max_tokens=most, logprobs=1, temperature=0, seed=1234)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        tokens, logprobs, top, offsets = values_of(choice)
        assert len(tokens) == len(logprobs) == len(top) == len(offsets) == len(prompt) + generated
        assert logprobs[0] is None and top[0] is None and all(value <= 0 for value in logprobs[1:])
        assert "".join(tokens[: len(prompt)]) == bytes(prompt).decode()
        assert all(value <= max(one.values()) for value, one in zip(logprobs[1:], top[1:], strict=True))
        assert all(logprobs[place] == max(top[place].values()) for place in range(len(prompt), len(tokens)))
        assert offsets == [sum(map(len, tokens[:place])) for place in range(len(tokens))]


def test_a_continuation_that_was_generated_has_the_same_log_probabilities_when_it_is_scored(final):
    prompt = list(b"Once upon")
    body = {"max_tokens": 8, "logprobs": 2, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    (told,) = ask(final, prompt=prompt, **body)["choices"]
    scored = ask(final, prompt=[*prompt, *told["token_ids"]], echo=True, max_tokens=1, logprobs=2)["choices"][0]
    mine = scored["logprobs"]["token_logprobs"][len(prompt) : -1]
    assert mine == pytest.approx(told["logprobs"]["token_logprobs"], abs=1e-4)
    tops = scored["logprobs"]["top_logprobs"][len(prompt) : -1]
    assert all(value == max(top.values()) for value, top in zip(mine, tops, strict=True)), "greedy"


def test_a_stream_echoes_the_prompt_s_log_probabilities_with_its_first_chunk(final):
    body = {"prompt": ["Hello", "ab"], "n": 2, "echo": True, "logprobs": 2, "max_tokens": 4, "seed": 5}
    whole = ask(final, **body)["choices"]
    chunks = stream(final, **body)
    for choice in whole:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        streamed = [[each for part in parts for each in values_of(part)[place]] for place in range(4)]
        assert streamed == values_of(choice)
        assert joined(chunks, choice["index"]) == choice["text"]


def test_prompt_logprobs_name_tokens_by_id_with_their_ranks(final):
    (choice,) = ask(final, prompt="Hello", prompt_logprobs=2, max_tokens=1)["choices"]
    first, *rest = choice["prompt_logprobs"]
    assert first is None and len(rest) == 4 and choice["logprobs"] is None and choice["text"] != "Hello"
    for token, found in zip(b"ello", rest, strict=True):
        assert found[str(token)]["decoded_token"] == chr(token)
        assert {1, 2} <= {each["rank"] for each in found.values()} <= {1, 2, None}
        assert len(found) == 2 + (found[str(token)]["rank"] is None)


def test_generate_reports_the_prompt_s_log_probabilities(final):
    answer = final.generate(prompt="Hello", prompt_logprobs=1, max_tokens=1).json()
    assert [each and each["token_id"] for each in answer["prompt_logprobs"]] == [None, *b"ello"]
    with final.http.stream("POST", "/generate", json={"prompt": "Hello", "prompt_logprobs": 1, "stream": True}) as live:
        frames, done = events(live)
    assert done and frames[0]["prompt_logprobs"] == answer["prompt_logprobs"]
    assert all("prompt_logprobs" not in frame for frame in frames[1:])


def test_a_scored_prompt_reports_no_cached_tokens(final):
    body = {"prompt": "a" * 64, "max_tokens": 1}
    ask(final, **body)
    assert ask(final, **body)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert ask(final, **body, echo=True, logprobs=1)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
