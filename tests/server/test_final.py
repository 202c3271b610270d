"""The final engine behind HTTP: it names itself, keeps to its cache, and reports when a request ends for lack of
memory."""

import threading
import time
from functools import partial

import pytest
import torch

from gradus import SamplingParams
from tests.server.conftest import events, eventually
from tests.server.test_cache import ok


def final(**settings):
    from gradus.text.llm import LLM

    return LLM("random:tiny-llama", device="cpu", dtype="float32", **settings)


def test_it_says_what_runs_and_how(serving):
    server = serving(partial(final, switch_off=["prefix_cache"], memory_fraction=0.4, token_budget=64))
    assert server.http.get("/health").json() == {"status": "ready", "reason": "ready", "engine": "final"}
    stats = server.stats()
    assert (stats["engine"], stats["phase"]) == ("final", None)
    expected = {"engine": "final", "max_sequences": 8, "token_budget": 64, "memory_fraction": 0.4}
    assert stats["settings"].items() >= expected.items()
    assert stats["settings"]["switches"]["overlap"] and not stats["settings"]["switches"]["prefix_cache"]


def test_a_phase_is_named_as_ever(serving):
    server = serving(partial(final, phase="p01"))
    assert server.http.get("/health").json()["engine"] == "p01"
    assert (server.stats()["engine"], server.stats()["phase"]) == ("p01", "p01")


def test_a_prompt_longer_than_the_whole_cache_is_refused_before_it_waits(serving):
    server = serving(partial(final, cache_tokens=64))
    assert server.stats()["context_length"] == 64
    for body, param in (({"prompt": [1] * 64}, "prompt"), ({"prompt": [1] * 60, "max_tokens": 5}, "max_tokens")):
        answer = server.generate(**body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param and "context 64" in answer.json()["error"]["message"]
    assert len(ok(server.generate(prompt=[1] * 60, max_tokens=4, ignore_eos=True))["token_ids"]) == 4
    assert server.stats()["failed"] == 0


def test_tokens_drafted_behind_a_stop_string_are_in_no_answer_and_no_count(serving):
    """Drafted by the model itself, all drafts are accepted: four tokens per step."""
    server = serving(partial(final, speculate="draft:random:tiny-llama", drafts=3))
    asked = {"max_tokens": 40, "ignore_eos": True, "logprobs": 0}
    alone = final()
    (whole,) = alone.generate("one two", SamplingParams(**asked))
    for start in range(8, 12):
        stop = whole.text[start : start + 2]
        (plain,) = alone.generate("one two", SamplingParams(**asked, stop=[stop]))
        body = {"prompt": "one two", **asked, "stop": stop}
        answer, (frames, _) = ok(server.generate(**body)), events(server.generate(**body, stream=True))
        assert tuple(answer["token_ids"]) == plain.token_ids and answer["text"] == plain.text
        assert len(answer["logprobs"]) == answer["usage"]["completion_tokens"] == len(plain.token_ids) < 40
        assert [token for frame in frames for token in frame["token_ids"]] == answer["token_ids"]
        assert sum(len(frame["logprobs"]) for frame in frames) == len(plain.token_ids)
        assert frames[-1]["usage"]["completion_tokens"] == len(plain.token_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_its_grammar_cannot_continue_is_the_requests_fault(serving, stream):
    """Byte 123 begins every object, and this request wants to stop there."""
    server = serving(final)
    body = {"max_tokens": 9, "stop_token_ids": [123], "structured": {"json_schema": {"type": "object"}}}
    answer = server.generate(prompt="As JSON: ", stream=stream, **body)
    error = events(answer)[0][-1]["error"] if stream else answer.json()["error"]
    assert error["message"] == "structured: the grammar allows no token here, except for stop tokens"
    assert error["param"] == "structured"
    assert stream or answer.status_code == 400
    assert eventually(server.idle)


# -- memory that runs out ----------------------------------------------------------------------------------------------


def exhausted_while(count, number):
    """An engine whose runner finds no memory in the step of this number while `count` requests run, and whose steps
    last long enough for the first tokens to reach their client."""
    llm = final()
    run, steps = llm.engine.runner.run, iter(range(1, 10**6))

    def failing(plan):
        if llm.engine.scheduler.active_count == count:
            time.sleep(0.02)
            if next(steps) == number:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. secret detail")
        return run(plan)

    llm.engine.runner.run = failing
    return llm


@pytest.fixture
def ended(serving):
    """A server whose engine ran out of memory while three requests ran: their answers, one of them a stream."""
    server = serving(partial(exhausted_while, 3, 20))
    answers = []

    def ask(stream):
        body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": stream}
        answer = server.generate(**body)
        answers.append((answer.status_code, events(answer)[0][-1] if stream else answer.json()))

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a waiter hangs"
    return server, answers


def test_everybody_who_waits_is_told_why(ended):
    _, answers = ended
    assert sorted(status for status, _ in answers) == [200, 503, 503]  # the stream had begun
    for _, content in answers:
        error = content["error"]
        assert (error["code"], error["type"]) == (503, "failed")
        assert "a step found no memory on cpu" in error["message"] and "--memory-fraction (now 0.5)" in error["message"]
        assert "\n" not in error["message"] and "secret detail" not in error["message"]


def test_health_says_that_a_restart_is_needed_and_with_what(ended, caplog):
    server, _ = ended
    assert eventually(lambda: server.health() == 503)
    health = server.http.get("/health").json()
    assert health["status"] == "failed" and "--memory-fraction" in health["reason"]
    assert server.http.get("/health/live").status_code == 503
    refused = server.generate(prompt="a", max_tokens=1)
    assert refused.status_code == 503 and "retry-after" not in refused.headers
    assert eventually(lambda: not server.client._link.alive)
