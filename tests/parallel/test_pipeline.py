"""An engine whose layers are divided among stages, each at work on another micro-batch."""

import time

import pytest

from gradus import LLM, SamplingParams
from gradus.models.families.llama import Llama
from gradus.parallel.group import Group
from tests.parallel import connecting_rank, slow_rank

MODEL = "random:tiny-llama"
SETTINGS = {"device": "cpu", "dtype": "float32", "context_length": 240}
SCARCE = {**SETTINGS, "cache_tokens": 256, "max_sequences": 6, "token_budget": 32}
PROMPTS = [[1 + number] * (5 + 7 * number) for number in range(6)]
KINDS = (
    SamplingParams(max_tokens=24),
    SamplingParams(max_tokens=24, temperature=0.9, seed=5, n=2, logprobs=1, frequency_penalty=0.3),
    SamplingParams(max_tokens=3, prompt_logprobs=1),
)


def answers(llm):
    """Answers to all kinds of requests, in one batch."""
    asked = [(prompt, kind) for kind in KINDS for prompt in PROMPTS]
    done = llm.generate([prompt for prompt, _ in asked], [kind for _, kind in asked])
    return [(each.token_ids, rounded(each.logprobs), rounded(each.prompt_logprobs)) for each in done]


def rounded(logprobs):
    return [(one.token_id, round(one.logprob, 3)) for one in logprobs or ()]


@pytest.mark.parametrize(
    ("tensor", "pipeline"),
    [(1, 2), pytest.param(1, 3, marks=pytest.mark.stress), pytest.param(2, 2, marks=pytest.mark.stress)],
)
def test_stages_with_a_scarce_cache_give_the_tokens_of_the_whole_model(tensor, pipeline):
    """Preempted, chunked, sampled several times, scored, and with their prompts found in the cache."""
    with LLM(MODEL, switch_off=["kernels"], **SETTINGS) as reference:
        wanted = answers(reference)
    with LLM(MODEL, tensor_parallel=tensor, pipeline_parallel=pipeline, **SCARCE) as llm:
        assert answers(llm) == wanted
        assert answers(llm) == wanted
        metrics = llm.metrics()
        assert metrics.preemptions and metrics.cached_tokens
        llm.check()


def test_a_request_that_is_cancelled_between_stages_leaves_no_trace():
    params = SamplingParams(max_tokens=100)
    with LLM(MODEL, pipeline_parallel=2, max_sequences=4, cache_tokens=1024, **SETTINGS) as llm:
        wanted = llm.generate([[7] * 9], params)[0].token_ids
        for _ in range(3):
            stream = llm.stream([3] * 20, params)
            next(stream)
            stream.close()
        assert llm.generate([[7] * 9], params)[0].token_ids == wanted
        llm.check()


@pytest.mark.stress
def test_two_stages_double_the_rate_of_one_device_with_as_many_sequences_per_step(monkeypatch):
    """A step takes 60 ms in each stage, and 120 ms on one device; four sequences run in it."""

    def seconds(sequences, **settings):
        params = SamplingParams(max_tokens=20)
        with LLM(MODEL, max_sequences=sequences, cache_tokens=4096, **SETTINGS, **settings) as llm:
            llm.generate([[1]] * sequences, SamplingParams(max_tokens=2))
            begun = time.monotonic()
            llm.generate([[1 + number] for number in range(8)], params)
            return time.monotonic() - begun

    monkeypatch.setattr(Llama, "run_layers", Llama.run_layers)
    monkeypatch.setattr("gradus.assembly.parallel.OTHER_RANK", "tests.parallel.slow_rank")
    slow_rank.slow_down(1)
    together = seconds(8, pipeline_parallel=2)
    slow_rank.slow_down(1)
    alone = seconds(4, switch_off=["kernels"])
    print(f"one device {alone:.2f} s, two stages {together:.2f} s: {alone / together:.2f} times the rate")
    assert alone / together > 1.6  # two, less what a busy machine adds to every step


@pytest.mark.timeout(60)
def test_no_stage_waits_for_a_connection_that_waits_for_its_tokens(monkeypatch):
    """A lone request of one token: no step follows that would fetch it."""
    monkeypatch.setattr(Group, "send", Group.send)
    monkeypatch.setattr(Group, "receive", Group.receive)
    monkeypatch.setattr("gradus.assembly.parallel.OTHER_RANK", "tests.parallel.connecting_rank")
    connecting_rank.connect_late()
    with LLM(MODEL, pipeline_parallel=2, max_sequences=4, cache_tokens=1024, token_budget=8, **SETTINGS) as llm:
        assert len(llm.generate([[7] * 9], SamplingParams(max_tokens=1))[0].token_ids) == 1
