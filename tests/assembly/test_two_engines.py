"""Two engines in one process, stepped by two threads at once: each gives the tokens that it gives alone."""

import threading

import pytest
import torch

from gradus import LLM, SamplingParams

PROMPTS = ["Once upon a time, there", "a", "The three primary colors are red, yellow", "b"]
SETTINGS = [{}, {"switch_off": ["kernels"]}, {"speculate": "ngram"}, {"phase": "p06"}]
PARAMS = [
    SamplingParams(max_tokens=16, ignore_eos=True),
    SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.9, top_k=40, seed=3),
]


def made(shape: str, **settings) -> LLM:
    return LLM(f"random:{shape}", device="cpu", dtype="float32", max_sequences=3, **settings)


def tokens(llm: LLM, params: SamplingParams) -> list[tuple[int, ...]]:
    return [done.token_ids for done in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize("settings", SETTINGS, ids=["kernels", "torch", "drafts", "p06"])
def test_two_engines_stepped_at_once_give_the_tokens_that_each_gives_alone(settings):
    engines = [made("tiny-llama", **settings), made("tiny-gemma3", **settings)]
    expected = [[tokens(llm, params) for params in PARAMS] for llm in engines]
    found, together, count = [None, None], threading.Barrier(2), torch.get_num_threads()
    torch_threads = []

    def run(number: int) -> None:
        together.wait(30)
        found[number] = [tokens(engines[number], params) for params in PARAMS]
        torch_threads.append(torch.get_num_threads())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == expected
    for llm in engines:
        llm.check()
    assert torch_threads == [count, count] and torch.get_num_threads() == count
