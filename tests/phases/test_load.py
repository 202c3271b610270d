"""p13's simulated server does what its steps say, and the formulas foretell it."""

import math
from functools import cache

import pytest

from gradus.bench.statistics import percentile
from phases.p13_serving.load.formulas import Load, spread
from phases.p13_serving.load.loads import closed_loop, open_loop, warm
from phases.p13_serving.load.replicas import Crowd, play
from phases.p13_serving.load.simulator import Pace, Request, Server

PACE = Pace(fixed=1.0, row=0.5, token=0.25, slots=2, budget=4)
FLAT = Pace(fixed=0.01, row=0.001, token=0.0001, slots=16, budget=512)
PROMPT, OUTPUT = (32, 96), (32, 160)


def test_each_step_gives_a_token_to_all_that_decode_and_reads_prompts_from_the_rest_of_the_budget():
    server = Server(PACE)
    for at, prompt, output in ((0.0, 3, 3), (0.0, 6, 1), (0.0, 2, 1)):
        server.submit(Request(at, prompt, output))
    server.advance(math.inf)
    steps = [(step.rows, step.tokens, step.waiting) for step in server.steps]
    # 3 + 1 of 6; a decode and 3 of 5; a decode and the last 2, then both end; the third, which waited for a slot
    assert steps == [(0, 4, 1), (1, 3, 1), (1, 2, 1), (0, 2, 0)]
    ends = [step.end for step in server.steps]
    assert ends == [2.0, 4.25, 6.25, 7.75]
    assert [(record.first, record.last, record.tokens) for record in server.records] == [
        (2.0, 6.25, 3), (6.25, 6.25, 1), (7.75, 7.75, 1),
    ]  # fmt: skip


def test_an_idle_server_waits_for_the_next_arrival_and_a_busy_one_ends_its_step_first():
    server = Server(PACE)
    server.submit(Request(5.0, 1, 1))
    server.advance(6.0)
    assert server.now == 6.25
    server.submit(Request(6.0, 1, 1))
    server.advance(math.inf)
    assert [(step.start, step.end) for step in server.steps] == [(5.0, 6.25), (6.25, 7.5)]
    assert [record.ttft for record in server.records] == [1.25, 1.5]


def test_cached_tokens_are_not_read_but_the_last_one_is():
    server = Server(PACE)
    server.submit(Request(0.0, 4, 1, cached=4))
    server.advance(math.inf)
    assert [step.tokens for step in server.steps] == [1]


def test_decodes_come_before_prompts_when_the_budget_is_short():
    server = Server(Pace(1.0, 0.0, 0.0, slots=3, budget=2))
    for prompt in (1, 1, 5):
        server.submit(Request(0.0, prompt, 4))
    server.step()
    assert [server.step() for _ in range(2)] == [[], []] and [step.tokens for step in server.steps[1:]] == [0, 0]
    assert server.running[2].read == 0, "both places of the budget are the decodes'"


@cache
def simulated(rate, count=3000):
    records = warm(open_loop(FLAT, rate, count, PROMPT, OUTPUT).records)
    paces = [(record.last - record.first) / (record.tokens - 1) for record in records]
    waits = [record.ttft for record in records]
    return sum(paces) / len(paces), percentile(waits, 50), percentile(waits, 99)


LOAD = Load(FLAT, 64, 96, spread(*OUTPUT))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95, 1.2])
def test_the_pace_of_tokens_is_foretold_within_a_twentieth(share):
    found, *_ = simulated(share * LOAD.capacity)
    assert found == pytest.approx(LOAD.tpot(share * LOAD.capacity), rel=0.05)


def test_waits_are_foretold_by_their_size_and_the_knee_by_its_place():
    for share in (0.7, 0.8, 0.9):
        *_, late = simulated(share * LOAD.capacity)
        assert 0.5 < LOAD.ttft(share * LOAD.capacity, 0.99) / late < 2
    assert LOAD.wait(0.5 * LOAD.capacity, 0.99) == 0 < LOAD.wait(0.7 * LOAD.capacity, 0.99)
    assert math.isinf(LOAD.wait(LOAD.capacity, 0.5)) and LOAD.waits(2 * LOAD.capacity) == 1


def test_the_median_does_not_wait_before_half_of_all_do():
    rate = next(rate / 100 for rate in range(1, 10000) if LOAD.wait(rate / 100, 0.5) > 0)
    assert LOAD.waits(rate) == pytest.approx(0.5, abs=0.01)
    assert LOAD.utilization(rate) > 0.9 > LOAD.utilization(rate) - 0.05


def test_the_shares_of_time_add_up_and_little_s_law_holds_in_the_simulation():
    rate = 0.6 * LOAD.capacity
    assert sum(LOAD.states(rate)) == pytest.approx(1)
    server = open_loop(FLAT, rate, 5000, PROMPT, OUTPUT)
    inside = sum(record.last - record.at for record in server.records) / server.now
    assert inside == pytest.approx(LOAD.running(rate), rel=0.06)


def test_a_full_server_answers_its_capacity_in_either_loop():
    closed = closed_loop(FLAT, FLAT.slots, 2000, PROMPT, OUTPUT)
    opened = open_loop(FLAT, 2 * LOAD.capacity, 2000, PROMPT, OUTPUT)
    for server in (closed, opened):
        assert len(server.records) == 2000
        assert len(server.records) / server.now == pytest.approx(LOAD.capacity, rel=0.04)


def test_a_closed_loop_hides_the_queue_that_an_open_one_shows():
    closed = closed_loop(FLAT, FLAT.slots, 3000, PROMPT, OUTPUT)
    opened = open_loop(FLAT, 0.97 * LOAD.capacity, 3000, PROMPT, OUTPUT)
    late = [percentile([record.ttft for record in warm(server.records)], 99) for server in (closed, opened)]
    assert late[1] > 20 * late[0]


def test_users_who_think_ask_less():
    busy, calm = (closed_loop(FLAT, 4, 400, PROMPT, OUTPUT, think=think) for think in (0.0, 10.0))
    assert len(busy.records) == len(calm.records) == 400
    assert calm.now > 3 * busy.now


def test_the_same_seed_gives_the_same_load():
    first, second = (open_loop(FLAT, 3.0, 100, PROMPT, OUTPUT, seed=5).records for _ in range(2))
    assert first == second != open_loop(FLAT, 3.0, 100, PROMPT, OUTPUT, seed=6).records


def test_a_router_gains_hits_by_prefixes_and_loses_p99_without_a_bound():
    pace, crowd = Pace(0.01, 0.0005, 0.0001, 16, 512), Crowd(rate=14, room=200, count=1200)
    never, between, always = (play(pace, crowd, bound) for bound in (-1, 4, math.inf))
    assert never.hits < between.hits < always.hits
    assert between.ttft[1] < min(never.ttft[1], always.ttft[1])
    assert never.busiest < 0.52 < always.busiest
