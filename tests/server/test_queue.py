"""Who gets in, in which order, for how long; and what those hear who do not."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from gradus.server.measures import ServiceRate
from tests.server.conftest import events, eventually, read_answer
from tests.server.scripted import ScriptedCore

SLOW = partial(ScriptedCore, slots=1, step_s=0.05)


def all_at_once(server, count, **body):
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: server.generate(**body), range(count)))


def test_requests_share_steps(serving):
    server = serving(partial(ScriptedCore, slots=8, step_s=0.01))
    answers = all_at_once(server, 8, prompt="a", max_tokens=20)
    assert [answer.json()["token_ids"] for answer in answers] == [list(range(20))] * 8
    assert server.stats()["max_batch"] == 8


class Held(ScriptedCore):
    """Ends no step before `gate` is set."""

    def __init__(self, gate, **options):
        super().__init__(**options)
        self.gate = gate

    def step(self):
        assert self.gate.wait(60)
        return super().step()


def test_a_flood_is_served_up_to_the_limit_and_the_rest_is_told_at_once_when_to_return(serving):
    gate = threading.Event()
    server = serving(partial(Held, gate, slots=2), max_waiting=10)
    with ThreadPoolExecutor(60) as pool:
        try:
            asked = [pool.submit(server.generate, prompt="a", max_tokens=10) for _ in range(60)]
            assert eventually(lambda: sum(each.done() for each in asked) == 50, 40)  # though no step ends
        finally:
            gate.set()
    answers = [each.result() for each in asked]
    accepted = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert (len(accepted), len(refused)) == (10, 50)
    assert all(answer.json()["token_ids"] == list(range(10)) for answer in accepted)
    assert all(answer.json()["error"]["type"] == "overloaded" for answer in refused)
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert server.stats()["rejected"] == len(refused)
    assert server.idle()


def test_requests_begin_in_the_order_in_which_they_came(serving, numbered):
    server = serving(partial(ScriptedCore, slots=1, step_s=0.005))
    hold = server.send(b'{"prompt": "a", "max_tokens": 30}')
    connections = []
    for number in range(2, 12):
        connections.append(server.send(b'{"prompt": "a", "max_tokens": 1}'))
        assert eventually(lambda number=number: server.client._samples_sent == number)
    for connection in (hold, *connections):
        assert read_answer(connection)[0] == 200
        connection.close()
    assert server.engine.seen == [f"gen-{number}" for number in range(1, 12)]


def test_a_request_counts_all_its_samples_and_enters_whole_or_not_at_all(serving):
    server = serving(SLOW, max_waiting=4)
    running = server.send(b'{"prompt": "a", "max_tokens": 100}')
    assert eventually(lambda: server.stats()["active"] == 1)
    waiting = server.send(b'{"prompt": "a", "max_tokens": 1, "n": 3}')
    assert eventually(lambda: server.stats()["waiting"] == 3)
    assert server.generate(prompt="a", max_tokens=1, n=2).status_code == 503
    assert server.stats()["waiting"] == 3
    last = server.send(b'{"prompt": "a", "max_tokens": 1}')
    assert eventually(lambda: server.stats()["waiting"] == 4)
    assert server.generate(prompt="a", max_tokens=1).status_code == 503
    for connection in (running, waiting, last):
        server.leave(connection, reset=True)
    assert eventually(server.idle)


def test_more_samples_than_the_queue_could_ever_hold_are_a_mistake_not_an_overload(serving):
    answer = serving(max_waiting=4).generate(prompt="a", max_tokens=1, n=5)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"
    assert answer.json()["error"]["limit"] == "at most 4"
    assert answer.json()["error"]["got"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_runs_too_long_ends_with_its_time(serving, stream):
    server = serving(SLOW)
    start = time.monotonic()
    answer = server.generate(prompt="a", max_tokens=1000, timeout=0.3, stream=stream)
    assert 0.25 < time.monotonic() - start < 5  # 1,000 steps would take 50 s
    if stream:
        frames, done = events(answer)
        assert answer.status_code == 200 and done
        assert frames[-1]["finish_reason"] == "timeout"
        assert frames[-1]["error"]["code"] == 504
        assert frames[-1]["usage"]["completion_tokens"] == sum(len(frame["token_ids"]) for frame in frames) > 0
    else:
        assert answer.status_code == 504
        assert answer.json()["error"]["type"] == "timeout"
    assert server.idle()
    assert server.stats()["timed_out"] == 1


def test_a_request_whose_time_is_up_in_the_queue_costs_no_step(serving, numbered):
    server = serving(SLOW)
    running = server.send(b'{"prompt": "a", "max_tokens": 1000}')
    assert eventually(lambda: server.stats()["active"] == 1)
    answer = server.generate(prompt="a", max_tokens=5, timeout=0.2)
    assert answer.status_code == 504
    server.leave(running, reset=False)
    assert eventually(server.idle)
    assert server.engine.seen == ["gen-1"]


def test_a_request_whose_time_is_up_costs_no_further_step(serving, numbered):
    server = serving(partial(ScriptedCore, slots=2, step_s=0.02))
    other = server.send(b'{"prompt": "a", "max_tokens": 1000}')
    assert server.generate(prompt="b", max_tokens=1000, timeout=0.2).status_code == 504
    spent = server.engine.spent["gen-2"]
    steps = server.stats()["steps"]
    assert eventually(lambda: server.stats()["steps"] > steps + 5)
    assert server.engine.spent["gen-2"] == spent <= 0.2 / 0.02 + 1
    server.leave(other, reset=True)


def test_an_answer_does_not_wait_for_a_step_that_takes_long(serving):
    server = serving(partial(ScriptedCore, hang={2: 5.0}))
    start = time.monotonic()
    assert server.generate(prompt="a", max_tokens=10, timeout=0.3).status_code == 504
    assert time.monotonic() - start < 2.0


def test_the_servers_own_timeout_holds_where_a_request_names_none(serving):
    server = serving(SLOW, request_timeout=0.3)
    assert server.generate(prompt="a", max_tokens=1000).status_code == 504


def test_a_waiting_request_whose_time_is_up_frees_its_place(serving):
    server = serving(SLOW, max_waiting=1)
    running = server.send(b'{"prompt": "a", "max_tokens": 1000}')
    assert eventually(lambda: server.stats()["active"] == 1)
    waiting = server.send(b'{"prompt": "a", "max_tokens": 1, "timeout": 0.3}')
    assert eventually(lambda: server.stats()["waiting"] == 1)
    assert server.generate(prompt="a", max_tokens=1).status_code == 503
    assert read_answer(waiting)[0] == 504
    assert eventually(lambda: server.stats()["waiting"] == 0)
    assert server.generate(prompt="a", max_tokens=1, timeout=0.2).status_code == 504  # it waited: there was room
    server.leave(running, reset=True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_cannot_make_its_deadline_is_told_so(serving, stream):
    server = serving(SLOW)
    answer = server.generate(prompt="a", max_tokens=1000, deadline=0.2, stream=stream)
    if stream:
        frames, done = events(answer)
        assert answer.status_code == 200 and done
        assert frames[-1]["finish_reason"] == "deadline" and frames[-1]["usage"]["completion_tokens"] > 0
        error = frames[-1]["error"]
    else:
        assert answer.status_code == 504
        error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("deadline", 504)
    assert "deadline" in error["message"]
    assert server.idle()


def test_a_deadline_that_is_met_is_no_matter(serving):
    assert serving().generate(prompt="a", max_tokens=3, deadline=20, timeout=10).status_code == 200


def test_time_spent_before_the_engine_looks_counts(serving, numbered):
    """The second request comes while the engine is inside a long step: its time runs all the same."""
    server = serving(partial(ScriptedCore, slots=2, hang={2: 0.6}))
    first = server.send(b'{"prompt": "a", "max_tokens": 50}')
    assert eventually(lambda: server.engine.totals.steps == 2)
    assert server.generate(prompt="b", max_tokens=50, deadline=0.3).status_code == 504
    assert "gen-2" not in server.engine.spent
    assert read_answer(first)[0] == 200


def test_a_timeout_beyond_the_servers_is_refused(serving):
    server = serving(request_timeout=20)
    for timeout in (0, -1, 20.1, 1e9, True, "5", [1]):
        answer = server.generate(prompt="a", max_tokens=1, timeout=timeout)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "timeout"
        assert "at most 20" in answer.json()["error"]["limit"]
    assert server.generate(prompt="a", max_tokens=1, timeout=20).status_code == 200


def test_an_idle_engine_uses_no_time_and_wakes_at_once(serving):
    server = serving()
    server.generate(prompt="a", max_tokens=1)
    steps = server.stats()["steps"]
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.2
    assert server.stats()["steps"] == steps
    seconds = []
    for _ in range(5):  # other programs may delay one
        start = time.monotonic()
        server.generate(prompt="a", max_tokens=1)
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 0.2


def test_a_refusal_says_how_long_the_surplus_will_take():
    rate = ServiceRate()
    assert rate.seconds_for(10) == 0
    for _ in range(20):
        rate.record(busy_s=0.5, ended=1)
    assert 4 < rate.seconds_for(10) < 6  # two samples a second


def test_a_rate_forgets_what_was_long_ago():
    rate = ServiceRate()
    for _ in range(100):
        rate.record(busy_s=10, ended=1)
    for _ in range(10_000):
        rate.record(busy_s=0.1, ended=1)
    assert rate.seconds_for(10) == pytest.approx(1, rel=0.1)


def test_retry_after_is_measured(serving):
    """Each request takes a second, so a queue of two at its limit clears one place in about that time."""
    server = serving(partial(ScriptedCore, slots=1, step_s=0.1), max_waiting=2)
    assert server.generate(prompt="a", max_tokens=20).status_code == 200  # two seconds: the measurement
    connections = []
    for _ in range(2):
        connections.append(server.send(b'{"prompt": "a", "max_tokens": 20}'))
    assert eventually(lambda: server.stats()["active"] == 1)
    connections.append(server.send(b'{"prompt": "a", "max_tokens": 20}'))
    assert eventually(lambda: server.stats()["waiting"] == 2)
    answer = server.generate(prompt="a", max_tokens=1)
    assert answer.status_code == 503
    assert 2 <= int(answer.headers["retry-after"]) <= 4
    for connection in connections:
        server.leave(connection, reset=True)


@pytest.mark.stress
def test_two_thousand_at_once(serving):
    server = serving(partial(ScriptedCore, slots=16, step_s=0.001), max_waiting=256)
    outcomes, lock = {}, threading.Lock()

    def one(_):
        connection = server.send(b'{"prompt": "a", "max_tokens": 20}')
        status = read_answer(connection, 60)[0]
        connection.close()
        with lock:
            outcomes[status] = outcomes.get(status, 0) + 1

    with ThreadPoolExecutor(200) as pool:
        list(pool.map(one, range(2000)))
    assert set(outcomes) <= {200, 503}
    assert sum(outcomes.values()) == 2000
    assert eventually(server.idle)
