"""The final engine's features over HTTP: shared prefixes, priorities, deadlines; and a pool that is too small.

The engine is the final one with a tiny random model: byte tokens, so a prompt's length is its tokens; pages of 8.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from gradus.server.engine.loop import EngineLoop
from tests.server.conftest import eventually

PROMPT = "The same forty characters for everybody."  # 40 tokens: 4 pages are hit, for one token is always left


def paged(**settings):
    from gradus.text.llm import LLM

    return LLM("random:tiny-llama", device="cpu", dtype="float32", page_size=8, **settings)


@pytest.fixture
def server(serving, request):
    """A server of the final engine, its settings as an indirect parameter; at its end no sequence holds a page."""
    server = serving(partial(paged, **getattr(request, "param", {})))
    yield server
    assert eventually(server.idle)
    server.engine.check()
    assert eventually(lambda: server.stats()["cache"]["held"] == 0)


def ok(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer):
    return ok(answer)["usage"]["cached_tokens"]


# -- prefixes ----------------------------------------------------------------------------------------------------------


def test_usage_tells_what_of_the_prompt_was_cached(server):
    first = ok(server.generate(prompt=PROMPT, max_tokens=8))
    again = ok(server.generate(prompt=PROMPT, max_tokens=8))
    assert (first["usage"]["cached_tokens"], again["usage"]["cached_tokens"]) == (0, 32)
    assert first["token_ids"] == again["token_ids"]
    # a conversation goes on: the answer is in the cache too
    longer = list(PROMPT.encode()) + first["token_ids"] + [10]
    assert cached(server.generate(prompt=longer, max_tokens=1)) >= 40


def test_a_salt_separates_what_is_cached(server):
    body = {"prompt": PROMPT, "max_tokens": 1}
    assert [cached(server.generate(**body, cache_salt=salt)) for salt in ("ann", "bob", "ann", "bob")] == [0, 0, 32, 32]
    assert cached(server.generate(**body)) == 0  # nor with those who give none
    assert cached(server.generate(**body, cache_salt="eve")) == 0


def test_stats_show_the_cache_before_the_engine_has_reported_anything(serving, monkeypatch):
    """From "ready" on: the loop's first report may come later."""
    loops, run = threading.Event(), EngineLoop.run
    monkeypatch.setattr(EngineLoop, "run", lambda self: (loops.wait(20), run(self)))
    try:
        server = serving(paged)
        assert server.health() == 200 and server.stats()["cache"]["free"] == 8 * 512 // 8
    finally:
        loops.set()
    assert eventually(server.idle)


def test_stats_show_the_cache(server):
    before = server.stats()
    assert before["settings"].items() >= {"max_sequences": 8, "page_size": 8, "policy": "fcfs"}.items()
    assert before["cache"]["free"] == before["cache"]["pages"] == 8 * 512 // 8
    for _ in range(2):
        ok(server.generate(prompt=PROMPT, max_tokens=1))
    stats = server.stats()
    cache = stats["cache"]
    assert stats["cached_tokens"] == cache["hit_positions"] == 32
    assert cache["hit_rate"] == 32 / 80
    assert cache["idle"] == 5 and cache["held"] == 0 and cache["free"] == cache["pages"] - 5
    assert cache["utilization"] == 0 and 0 <= cache["external_fragmentation"] < 1
    assert cache["evictions"] == cache["refusals"] == stats["preemptions"] == 0


def test_stats_show_pages_in_use_and_their_unfilled_ends(server, slow, monkeypatch):
    # a busy engine takes its usage once per second, in which a fast machine makes all 500 tokens
    monkeypatch.setattr("gradus.cache.usage.AGE_S", 0.0)
    connection = server.send(b'{"prompt": "a", "max_tokens": 500, "ignore_eos": true}')
    cache = eventually(lambda: in_use(server.stats()["cache"]))
    assert cache and 0 < cache["utilization"] < 1 and 0 <= cache["internal_fragmentation"] < 1
    server.leave(connection, reset=True)


def in_use(cache):
    return cache if cache["held"] else None


# -- too little room ---------------------------------------------------------------------------------------------------

SMALL = {"max_sequences": 4, "cache_tokens": 64}


@pytest.mark.parametrize("server", [SMALL | {"phase": "p06"}], indirect=True)
def test_what_the_whole_cache_could_never_hold_is_a_mistake_and_says_so(server):
    """The final engine shortens its context to what the cache holds; a phase refuses by the cache itself."""
    error = server.generate(prompt="x" * 60, max_tokens=5)
    assert error.status_code == 400
    assert "65 tokens are more than the cache can ever hold" in error.json()["error"]["message"]
    assert error.json()["error"]["param"] == "max_tokens"
    assert ok(server.generate(prompt="x" * 60, max_tokens=4))["usage"]["completion_tokens"] <= 4


@pytest.mark.parametrize("server", [SMALL], indirect=True)
def test_when_pages_run_out_answers_are_late_and_the_same(server):
    """Six sequences of 40 tokens want 30 pages, and there are 8: most are sent back and computed again."""
    bodies = [{"prompt": f"{i}" * 16, "max_tokens": 24, "ignore_eos": True} for i in range(6)]
    alone = [ok(server.generate(**body))["token_ids"] for body in bodies]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda body: ok(server.generate(**body))["token_ids"], bodies))
    assert together == alone
    stats = server.stats()
    assert stats["preemptions"] > 0 and stats["cache"]["refusals"] > 0 and stats["cache"]["evictions"] > 0


@pytest.mark.parametrize("server", [SMALL], indirect=True)
def test_samples_of_one_prompt_share_it(server):
    answer = ok(server.generate(prompt=PROMPT, max_tokens=4, n=4, temperature=1.0, seed=1, ignore_eos=True))
    assert len(answer["choices"]) == 4
    assert server.stats()["cached_tokens"] == 3 * 32


@pytest.fixture
def slow(server, monkeypatch):
    """Steps of five milliseconds: 400 tokens of such a small model take no longer than a request does to arrive."""
    core = server.engine.engine
    step = core.step
    monkeypatch.setattr(core, "step", lambda: time.sleep(0.005) or step())


# -- who goes first ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "field", "hold", "values"),
    [
        ({"max_sequences": 1, "policy": "priority"}, "priority", -10, [5, 0, 9, -3]),
        ({"max_sequences": 1, "policy": "deadline"}, "deadline", 20, [50, 40, 60, 30]),
    ],
    indirect=["server"],
    ids=["priority", "deadline"],
)
def test_the_policy_decides_who_of_the_waiting_is_next(server, field, hold, values, slow, monkeypatch):
    body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, field: hold}
    running = server.send(json.dumps(body).encode())
    assert eventually(lambda: server.stats()["active"] == 1)
    ids, ended, front_end = {}, [], server.client._front_end
    close = front_end.close
    monkeypatch.setattr(front_end, "close", lambda id: ended.append(id) or close(id))  # clients may wake in any order

    def one(value):
        ids[value] = ok(server.generate(prompt="b", max_tokens=20, ignore_eos=True, **{field: value}))["id"]

    threads = []
    for count, value in enumerate(values, 1):
        threads.append(threading.Thread(target=one, args=(value,)))
        threads[-1].start()
        assert eventually(lambda count=count: server.stats()["waiting"] == count)
    server.leave(running, reset=True)
    for thread in threads:
        thread.join(20)
    assert ended[1:] == [ids[value] for value in sorted(values)]


@pytest.mark.parametrize("server", [{"max_sequences": 1, "policy": "priority"}], indirect=True)
def test_a_better_priority_takes_the_place_of_who_runs(server, slow):
    for _ in range(5):  # the first may end before its statistics are seen
        running = server.send(b'{"prompt": "a", "max_tokens": 500, "ignore_eos": true, "priority": 1}')
        eventually(lambda: server.stats()["active"] == 1, 1.0)
        assert ok(server.generate(prompt="b", max_tokens=2, priority=0))["usage"]["completion_tokens"] > 0
        server.leave(running, reset=True)
        if eventually(lambda: server.stats()["preemptions"], 0.5):
            break
    assert server.stats()["preemptions"] == 1


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [{"max_sequences": 1}], indirect=True)
def test_a_deadline_that_cannot_be_met_is_told_before_it_has_passed(server):
    ok(server.generate(prompt="a", max_tokens=50, ignore_eos=True))  # so that the time of a step is known
    steps = server.stats()["steps"]
    answer = server.generate(prompt="a", max_tokens=500, ignore_eos=True, deadline=0.001)
    assert answer.status_code == 504 and answer.json()["error"]["type"] == "deadline"
    stats = server.stats()
    assert stats["deadline_misses"] == 1 and stats["steps"] - steps <= 2


@pytest.mark.parametrize("server", [{"max_sequences": 1}], indirect=True)
def test_a_waiting_request_that_times_out_frees_its_place_in_the_queue(server, slow):
    running = server.send(b'{"prompt": "a", "max_tokens": 500, "ignore_eos": true}')
    assert eventually(lambda: server.stats()["active"] == 1)
    assert server.generate(prompt="b", max_tokens=1, timeout=0.05).status_code == 504
    stats = server.stats()
    assert (stats["waiting"], stats["timed_out"]) == (0, 1)
    server.leave(running, reset=True)
