"""Log-probabilities of a prompt's own tokens, judged by one plain forward pass over the whole prompt, and by p00."""

import random

import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.attention.whole import WholeSequence
from gradus.errors import RequestError
from gradus.execution import prompt_scores
from gradus.loading import load_model, open_checkpoint

NAME = "random:tiny-llama"
SETTINGS = {"device": "cpu", "dtype": "float32"}
TOP = 3


def prompt_of(length, seed=0):
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(length)]


PROMPTS = [prompt_of(length, length) for length in (1, 2, 15, 16, 17, 60, 97)]


def plainly(name):
    """Return the function from a prompt to the log-probabilities [P, V] after each row, without an engine."""
    checkpoint = open_checkpoint(name)
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")

    @torch.inference_mode()
    def forward(prompt):
        hidden = model(torch.tensor(prompt), torch.arange(len(prompt)), WholeSequence(checkpoint.config))
        return model.logits(hidden).log_softmax(-1)

    return forward


@pytest.fixture(scope="module")
def expected():
    return plainly(NAME)


def check(completion, prompt, expected, top=TOP):
    """The completion reports each of the prompt's tokens after the first, and the likeliest ones there."""
    logprobs, found = expected(prompt), completion.prompt_logprobs
    assert [each.token_id for each in found] == list(prompt[1:])
    for row, each in enumerate(found):
        assert each.logprob == pytest.approx(logprobs[row, prompt[row + 1]].item(), abs=1e-4)
        values, _ = logprobs[row].topk(top)
        assert [value for _, value in each.top] == pytest.approx(values.tolist(), abs=1e-4)
        assert all(value == pytest.approx(logprobs[row, token].item(), abs=1e-4) for token, value in each.top)


def params(top=TOP, **fields):
    return SamplingParams(**{"max_tokens": 4, "prompt_logprobs": top, "ignore_eos": True} | fields)


CASES = {
    "default": {},
    "chunks": {"token_budget": 16},
    "one at a time": {"max_sequences": 1},
    "few pages": {"cache_tokens": 128, "max_sequences": 4, "token_budget": 32, "context_length": 128},
    "torch": {"switch_off": ("kernels",)},
    "no prefix cache": {"switch_off": ("prefix_cache",)},
    "no overlap": {"switch_off": ("overlap",)},
    "drafts": {"speculate": "ngram"},
    "whole prompts": {"switch_off": ("chunked",)},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_they_are_those_of_a_plain_forward_pass(settings, expected):
    with LLM(NAME, **SETTINGS, **settings) as llm:
        for _ in range(2):  # the second time, the prefix index has all of it
            for prompt, done in zip(PROMPTS, llm.generate(PROMPTS, params()), strict=True):
                check(done, prompt, expected)
                # a sequence that had to leave finds the pages of rows that it has scored
                assert done.cached_tokens == 0 or llm.metrics().preemptions
        llm.check()


@pytest.mark.parametrize("name", ["random:tiny-gemma3", "random:tiny-gpt2", "random:tiny-qwen3"])
def test_they_are_right_with_windows_soft_caps_and_other_heads(name):
    with LLM(name, **SETTINGS, token_budget=40) as llm:
        for prompt, done in zip(PROMPTS, llm.generate(PROMPTS, params()), strict=True):
            check(done, prompt, plainly(name))


def test_they_agree_with_what_p00_says_of_the_tokens_that_it_generates():
    prompt = prompt_of(12)
    with LLM(NAME, phase="p00", **SETTINGS) as llm:
        (told,) = llm.generate(prompt, SamplingParams(max_tokens=10, logprobs=2, ignore_eos=True))
    with LLM(NAME, **SETTINGS) as llm:
        (scored,) = llm.generate([[*prompt, *told.token_ids]], params(top=2))
    for mine, theirs in zip(scored.prompt_logprobs[len(prompt) - 1 :], told.logprobs, strict=True):
        assert mine.token_id == theirs.token_id
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


def test_neighbours_that_ask_for_other_numbers_or_none_get_theirs_and_the_same_tokens(expected):
    asked = [None, 0, 5, None, 1, 20, None]
    with LLM(NAME, **SETTINGS, token_budget=24) as llm:
        plain = llm.generate(PROMPTS, SamplingParams(max_tokens=4, ignore_eos=True))
        found = llm.generate(PROMPTS, [params(top, logprobs=1) for top in asked])
        for prompt, top, done, without in zip(PROMPTS, asked, found, plain, strict=True):
            assert done.token_ids == without.token_ids
            assert len(done.logprobs) == 4
            if top is None:
                assert done.prompt_logprobs is None
            else:
                check(done, prompt, expected, top)


def test_every_sample_has_them_and_reports_them_once(expected):
    prompt = prompt_of(40)
    with LLM(NAME, **SETTINGS) as llm:
        deltas = list(llm.stream(prompt, params(n=3, temperature=1.0, seed=1, max_tokens=5)))
        reports = [(delta.index, len(delta.prompt_logprobs)) for delta in deltas if delta.prompt_logprobs]
        assert sorted(reports) == [(index, 39) for index in range(3)]
        firsts = {index: next(delta for delta in deltas if delta.index == index) for index in range(3)}
        assert all(delta.prompt_logprobs for delta in firsts.values()), "with the first delta of each"
        for delta in deltas:
            if delta.completion:
                check(delta.completion, prompt, expected)


def test_a_preempted_sequence_reports_each_token_once(expected):
    """With pages for a little more than one of them, sequences are sent back in the middle of prompts and answers."""
    prompts = [prompt_of(50, seed) for seed in range(6)]
    settings = {"cache_tokens": 160, "page_size": 8, "max_sequences": 4, "token_budget": 24, "context_length": 96}
    with LLM(NAME, **SETTINGS, **settings) as llm:
        found = llm.generate(prompts, params(max_tokens=40))
        assert llm.metrics().preemptions > 0
        for prompt, done in zip(prompts, found, strict=True):
            check(done, prompt, expected)
        llm.check()


def test_others_may_hit_the_pages_of_a_prompt_that_was_scored():
    prompt = prompt_of(64)
    with LLM(NAME, **SETTINGS) as llm:
        llm.generate(prompt, params())
        (after,) = llm.generate(prompt, SamplingParams(max_tokens=1))
        assert after.cached_tokens > 0


def test_few_rows_get_logits_at_once(monkeypatch, expected):
    """The logits of a whole chunk would not fit into memory."""
    prompt, sizes = prompt_of(50), []
    with LLM(NAME, **SETTINGS) as llm:
        monkeypatch.setattr(prompt_scores, "MOST_LOGITS", 8 * llm.config.vocab_size)
        model = llm.engine.runner.model
        logits = type(model).logits
        monkeypatch.setattr(type(model), "logits", lambda self, rows: (sizes.append(len(rows)), logits(self, rows))[1])
        (done,) = llm.generate(prompt, params(max_tokens=1))
        assert max(sizes) == 8 and sum(sizes) == 49 + 1
        monkeypatch.undo()
        check(done, prompt, expected)


def test_a_phase_refuses_them():
    with (
        LLM(NAME, phase="p01", **SETTINGS) as llm,
        pytest.raises(RequestError, match="prompt_logprobs must be left out"),
    ):
        llm.generate([1, 2], params())


def test_a_scored_row_counts_as_two_tokens_of_a_step_so_that_others_wait_no_longer(monkeypatch):
    counts = {}
    for asked in (None, 1):
        with LLM(NAME, **SETTINGS, token_budget=32) as llm:
            counts[asked], run = [], llm.engine.runner.run

            def noting(plan, counts=counts[asked], run=run):
                counts.extend(len(span.tokens) for span in plan.spans)
                return run(plan)

            monkeypatch.setattr(llm.engine.runner, "run", noting)
            llm.generate([[5, 6, 7] * 24], SamplingParams(max_tokens=1, prompt_logprobs=asked))
    assert counts == {None: [32, 32, 8], 1: [16, 16, 16, 16, 8]}
