"""The offline API: what it returns, how streams and whole answers agree, and that one request's fault stays its own."""

import time

import numpy as np
import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.engine.request import SchedulingParams
from gradus.errors import ConfigError, RequestError
from tests.pairwise import first

LONG = SamplingParams(max_tokens=24, temperature=1.0, seed=3, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("random:tiny-llama", phase="p01", device="cpu", dtype="float32")


@pytest.fixture(autouse=True)
def nothing_is_left_behind(llm):
    yield
    assert not llm.has_work and not llm.front_end.open_requests
    llm.engine.scheduler.check()


def collect(deltas):
    """(text, tokens, completion) of a one-sample stream."""
    deltas = list(deltas)
    assert [delta.completion is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    text = "".join(delta.text for delta in deltas)
    return text, sum((delta.token_ids for delta in deltas), ()), deltas[-1].completion


# -- the results -------------------------------------------------------------------------------------------------------


def test_one_prompt_gives_one_completion_with_everything_in_it(llm):
    (done,) = llm.generate("hello", SamplingParams(max_tokens=5, ignore_eos=True, logprobs=2))
    assert len(done.token_ids) == len(done.logprobs) == 5
    assert done.finish_reason == "length" and done.stop_reason is None and done.error is None
    assert done.prompt_tokens == 5 and done.cached_tokens == 0
    assert 0 <= done.timings.queued_s <= done.timings.ttft_s <= done.timings.total_s
    assert done.timings.decode_tokens_per_s > 0
    assert all(entry.token_id == token for entry, token in zip(done.logprobs, done.token_ids, strict=True))


def test_results_are_flat_and_prompt_major_and_say_whose_they_are(llm):
    params = [SamplingParams(max_tokens=9, n=2, temperature=1.0, seed=1), SamplingParams(max_tokens=2)]
    done = llm.generate(["a", [1, 2, 3]], params)
    assert [(c.prompt_index, c.index) for c in done] == [(0, 0), (0, 1), (1, 0)]
    assert done[0].token_ids != done[1].token_ids
    assert [c.prompt_tokens for c in done] == [1, 1, 3]


def test_token_ids_are_a_prompt_too(llm):
    assert llm.generate(list(b"hello"), LONG)[0].token_ids == llm.generate("hello", LONG)[0].token_ids
    assert [c.prompt_index for c in llm.generate([[1], [2]], SamplingParams(max_tokens=1))] == [0, 1]


@pytest.mark.parametrize(
    "kind", [torch.tensor, np.array, lambda ids: list(np.array(ids)), lambda ids: [*torch.tensor(ids)]]
)
def test_token_ids_may_come_as_arrays_tensors_and_their_items(llm, kind):
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    expected = llm.generate([[1, 2, 3], [7]], params)
    assert [done.token_ids for done in llm.generate([kind([1, 2, 3]), kind([7])], params)] == [
        done.token_ids for done in expected
    ]
    (alone,) = llm.generate(kind([1, 2, 3]), params)
    (streamed,) = (delta.completion for delta in llm.stream(kind([1, 2, 3]), params) if delta.completion)
    assert alone.token_ids == streamed.token_ids == expected[0].token_ids
    assert alone.prompt_tokens == 3


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.tensor([[1, 2], [3, 4]]), r"got an array of shape \(2, 2\): give each prompt alone"),
        (np.ones((1, 3), int), r"got an array of shape \(1, 3\): give each prompt alone"),
        (torch.tensor(5), r"got an array of shape \(\): give each prompt alone"),
        (torch.tensor([1.0, 2.0]), "token ids, each a whole number between 0 and 319, got 1.0"),
        (np.array([True]), "token ids, each a whole number between 0 and 319, got True"),
        (np.array(["a"]), "token ids, each a whole number between 0 and 319, got 'a'"),
        (torch.tensor([320]), "token ids, each a whole number between 0 and 319, got 320"),
        ([[np.arange(30).reshape(3, 10)]], "token ids, each a whole number between 0 and 319, got array"),
    ],
)
def test_what_is_no_list_of_token_ids_is_one_line(llm, prompt, message):
    with pytest.raises(RequestError, match=message) as refused:
        llm.generate(prompt)
    assert "\n" not in str(refused.value)


ODD = [5, 5.5, True, b"ab", {"a": 1}, object(), iter("a"), [None], [5.5], ["a", 5], [[None]], [{}], [[[1]]], int]


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("prompt", lambda llm, value: llm.generate(value)),
        ("prompt", lambda llm, value: llm.stream(value)),
        ("prompt", lambda llm, value: llm.submit(value)),
        ("messages", lambda llm, value: llm.chat(value)),
        ("params", lambda llm, value: llm.generate("a", value)),
        ("params", lambda llm, value: llm.generate(["a", "b"], value)),
        ("params", lambda llm, value: llm.stream("a", value)),
        ("params", lambda llm, value: llm.submit("a", value)),
        ("params", lambda llm, value: llm.chat([{"role": "user", "content": "a"}], value)),
        ("scheduling", lambda llm, value: llm.generate("a", scheduling=value)),
        ("scheduling", lambda llm, value: llm.submit("a", scheduling=value)),
        ("request_id", lambda llm, value: llm.submit("a", request_id=value)),
        ("request_id", lambda llm, value: llm.cancel(value)),
    ],
)
def test_an_argument_of_another_type_is_refused_in_one_line(llm, argument, call, value):
    if argument in ("params", "scheduling") and value == [None]:
        value = [5]  # None means the defaults
    with pytest.raises(RequestError, match=argument) as refused:
        call(llm, value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [value for value in ODD if value != [None]], ids=lambda value: repr(value)[:20])
def test_a_model_of_another_type_is_refused_in_one_line(value):
    with pytest.raises(ConfigError, match="model must be") as refused:
        LLM(value, device="cpu")
    assert "\n" not in str(refused.value)


def test_logprobs_come_only_when_asked_for(llm):
    assert llm.generate("a", SamplingParams(max_tokens=1))[0].logprobs is None


def test_chat_goes_through_the_models_template(llm):
    messages = [{"role": "user", "content": "hi"}]
    (done,) = llm.chat(messages, SamplingParams(max_tokens=2))
    assert done.prompt_tokens == len(llm.chat_prompt(messages)) > 2


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", first(range(6), 3))
def test_a_stream_is_the_whole_answer_in_pieces(llm, seed):
    """The random model's text is mostly invalid UTF-8: the worst that a stream can meet."""
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=seed, ignore_eos=True)
    text, tokens, completion = collect(llm.stream("héllo 🙂", params))
    (whole,) = llm.generate("héllo 🙂", params)
    assert (text, tokens) == (completion.text, completion.token_ids) == (whole.text, whole.token_ids)


def test_a_stop_string_ends_the_text_and_the_sequence(llm):
    (free,) = llm.generate("abc", LONG)
    middle = len(free.text) // 2
    stop = free.text[middle : middle + 3]
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=3, ignore_eos=True, stop=[stop])
    steps = llm.metrics().steps
    text, tokens, completion = collect(llm.stream("abc", params))
    assert text == free.text[: free.text.index(stop)] and stop not in text
    assert completion.finish_reason == "stop" and completion.stop_reason == stop
    assert tokens == free.token_ids[: len(tokens)] and len(tokens) < 24
    assert llm.metrics().steps - steps == len(tokens)  # not one step more than was needed


def test_the_token_that_stops_is_reported_but_not_part_of_the_text(llm):
    (free,) = llm.generate("abc", LONG)
    stop = free.token_ids[6]
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=3, ignore_eos=True, stop_token_ids=[stop])
    (done,) = llm.generate("abc", params)
    assert done.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert done.text == llm.tokenizer.decode(done.token_ids[:-1])
    assert (done.finish_reason, done.stop_reason) == ("stop", stop)


def test_a_stop_string_in_the_prompt_stops_nothing(llm):
    params = SamplingParams(max_tokens=3, stop=["abc"], ignore_eos=True)
    assert len(llm.generate("abc", params)[0].token_ids) == 3


def test_leaving_a_stream_early_cancels_its_request(llm):
    cancelled = llm.metrics().cancelled
    stream = llm.stream("abc", LONG)
    next(stream)
    assert llm.has_work
    stream.close()
    assert not llm.has_work and llm.metrics().cancelled == cancelled + 1


def test_two_streams_at_once_each_get_their_own(llm):
    alone = [llm.generate(prompt, LONG)[0].token_ids for prompt in ("first", "second")]
    first, second = llm.stream("first", LONG), llm.stream("second", LONG)
    tokens = {0: (), 1: ()}
    for _ in range(24):
        tokens[1] += next(second).token_ids
        tokens[0] += next(first).token_ids
    assert [tokens[0], tokens[1]] == alone
    assert list(first) == list(second) == []


# -- step by step ------------------------------------------------------------------------------------------------------


def test_the_step_api_runs_requests_to_their_end(llm):
    names = [llm.submit("a", SamplingParams(max_tokens=3, ignore_eos=True)), llm.submit([1, 2], request_id="mine")]
    assert names[1] == "mine" and names[0] != "mine"
    ended = {}
    while llm.has_work:
        ended |= {delta.request_id: delta.completion for delta in llm.step() if delta.completion}
    assert set(ended) == set(names) and len(ended[names[0]].token_ids) == 3


def test_cancel_returns_the_last_word_of_each_sample(llm):
    name = llm.submit("a", SamplingParams(max_tokens=50, n=2, ignore_eos=True))
    llm.step()
    last = llm.cancel(name, reason="timeout")
    assert [(delta.index, delta.completion.finish_reason) for delta in last] == [(0, "timeout"), (1, "timeout")]
    assert len(last[0].completion.token_ids) == 1 and last[1].completion.token_ids == ()
    assert last[1].completion.timings.ttft_s is None
    assert llm.cancel(name) == []


def test_a_request_id_in_use_is_refused(llm):
    llm.submit("a", request_id="x")
    with pytest.raises(RequestError, match="'x' is in use"):
        llm.submit("b", request_id="x")
    llm.cancel("x")


@pytest.mark.parametrize("prompt", ["", [], [[]], [1, -1], [320], [1.5], "x" * 600])
def test_a_prompt_that_cannot_be_served_is_refused_before_anything_is_queued(llm, prompt):
    with pytest.raises(RequestError):
        llm.generate(["fine", prompt], SamplingParams(max_tokens=1))
    assert not llm.has_work


def test_params_must_match_the_prompts(llm):
    with pytest.raises(RequestError, match="one for each of the 2 prompts"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(RequestError, match="one SchedulingParams for all, or one for each of the 2 prompts"):
        llm.generate(["a", "b"], scheduling=[SchedulingParams()] * 3)


# -- times -------------------------------------------------------------------------------------------------------------

NO_END = SamplingParams(max_tokens=400, ignore_eos=True)


@pytest.mark.parametrize("limit", ["timeout", "deadline"])
def test_a_request_ends_when_its_time_is_over_running_or_waiting(llm, limit):
    """In p01, one request runs while the other waits. A request may be given up before its deadline."""
    for prompt in ("a", "b"):
        llm.submit(prompt, NO_END, scheduling=SchedulingParams(**{limit: 0.1}))
    deltas = [*llm.step()]
    time.sleep(0.1)
    done = [delta.completion for delta in (*deltas, *llm.step()) if delta.completion]
    assert [completion.finish_reason for completion in done] == [limit, limit]
    assert [len(completion.token_ids) for completion in done] in ([1, 0], [0, 0])


def test_the_earlier_limit_names_the_ending(llm):
    both = SchedulingParams(timeout=60, deadline=0.02)
    assert next(iter(llm.chat([{"role": "user", "content": "a"}], NO_END, scheduling=both))).finish_reason == "deadline"


def test_each_prompt_may_have_its_own_limit_and_leaves_the_others_alone(llm):
    scheduling = [SchedulingParams(timeout=1e-9), SchedulingParams()]
    late, fine = llm.generate(["a", "b"], SamplingParams(max_tokens=3, ignore_eos=True), scheduling=scheduling)
    assert (late.finish_reason, late.token_ids) == ("timeout", ())
    assert (fine.finish_reason, len(fine.token_ids)) == ("length", 3)


def test_the_limit_of_an_ended_request_does_not_meet_the_next_one_of_its_name(llm):
    llm.submit("a", SamplingParams(max_tokens=1), scheduling=SchedulingParams(timeout=0.05), request_id="x")
    llm.step()
    llm.submit("a", NO_END, request_id="x")
    time.sleep(0.06)
    assert llm.step()[0].completion is None
    llm.cancel("x")


def test_a_stream_says_that_it_ran_out_of_time(llm):
    *_, last = llm.stream("a", NO_END, scheduling=SchedulingParams(timeout=0.02))
    assert last.completion.finish_reason == "timeout"


# -- faults and neighbors ----------------------------------------------------------------------------------------------


def test_tokens_that_cannot_be_decoded_end_their_request_alone(llm, monkeypatch):
    expected = llm.generate("good", LONG)[0].token_ids
    name = llm.submit("bad", LONG)
    transcript = llm.front_end._transcripts[name][0]

    def broken(token):
        raise ValueError("injected")

    monkeypatch.setattr(transcript._text, "_token_bytes", broken)
    llm.submit("good", LONG, request_id="good")
    ended = {}
    while llm.has_work:
        ended |= {delta.request_id: delta.completion for delta in llm.step() if delta.completion}
    assert ended[name].finish_reason == "error" and "decoding failed: ValueError" in ended[name].error
    assert ended["good"].token_ids == expected


@pytest.mark.parametrize("settings", [{"temperature": 1.0}, {"temperature": 0.9, "top_p": 0.8, "top_k": 40}])
def test_seeded_tokens_do_not_depend_on_who_else_is_there(llm, settings):
    params = SamplingParams(max_tokens=8, seed=5, ignore_eos=True, **settings)
    (alone,) = llm.generate("needle", params)
    others = [SamplingParams(max_tokens=3 + i, temperature=1.0, seed=i, n=2) for i in range(4)]
    crowd = llm.generate(["hay", "needle", "stack", "a", "b"], [others[0], params, *others[1:]])
    assert next(c for c in crowd if c.prompt_index == 1).token_ids == alone.token_ids


def test_without_a_seed_answers_differ(llm):
    params = SamplingParams(max_tokens=12, temperature=1.0, ignore_eos=True)
    assert llm.generate("a", params)[0].token_ids != llm.generate("a", params)[0].token_ids


# -- building ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"phase": "p99"}, "p99"),
        ({"device": "tpu"}, "device must be auto, cpu, cuda or cuda:N"),
        ({"dtype": "int3"}, "dtype must be auto, float32"),
        ({"context_length": 1}, "context_length must be between 2 and"),
        ({"context_length": 10**9}, "context_length must be between 2 and"),
        ({"max_sequences": 0}, "max_sequences must be a whole number, 1 or more"),
        ({"policy": "fifo", "phase": "p03"}, "policy must be one of fcfs, priority, deadline, got 'fifo'"),
        (
            {"page_size": 16, "phase": "p03"},
            "page_size does nothing in phase p03, leave it out; it is for p04, p05, p06",
        ),
        ({"token_budget": 64, "phase": "p05"}, "token_budget does nothing in phase p05, leave it out; it is for p06"),
        ({"cache_tokens": 8, "phase": "p04"}, "cache_tokens must be a whole number, 16 or more, got 8"),
        ({"max_sequences": 10**9, "phase": "p03"}, "not enough memory for the weights and a cache of 512000000000"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(options, message):
    with pytest.raises(ConfigError, match=message) as refused:
        LLM("random:tiny-llama", **options)
    assert "\n" not in str(refused.value)


def test_a_shorter_context_is_a_limit_for_requests():
    short = LLM("random:tiny-gpt2", phase="p01", device="cpu", dtype="float32", context_length=8)
    with pytest.raises(RequestError, match=r"max_tokens must be between 1 and 5 \(prompt 3 tokens, context 8\)"):
        short.generate([1, 2, 3], SamplingParams(max_tokens=6))
    assert len(short.generate([1, 2, 3], SamplingParams(max_tokens=5, ignore_eos=True))[0].token_ids) == 5


@pytest.mark.weights("qwen2.5-coder-0.5b")
def test_the_real_coder_writes_code():
    real = LLM("qwen2.5-coder-0.5b", device="cpu", dtype="float32", context_length=256)
    (done,) = real.generate("def fibonacci(n):", SamplingParams(max_tokens=8, temperature=0))
    assert "if n <= 0:" in done.text


@pytest.mark.weights
@pytest.mark.parametrize("phase", first(["p01", "p00"]))
def test_the_real_model_says_what_it_should(phase):
    """SmolLM2-135M-Instruct, greedy, float32."""
    real = LLM("smollm2-135m", phase=phase, device="cpu", dtype="float32")
    (done,) = real.generate("Once upon a time, in a small village by the sea,", SamplingParams(max_tokens=31))
    expected = (
        " there was a wise old wizard named Thorold. He lived in a tower surrounded by a beautiful garden filled with "
        "all sorts of magical creatures."
    )
    assert done.text.startswith(expected[: len(done.text)]) and len(done.text) > 100
    assert "Paris" in real.chat([{"role": "user", "content": "What is the capital of France?"}])[0].text
