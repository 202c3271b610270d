"""Requests and their times: rates and shapes hold, lengths stay in their range, the same seed gives the same jobs."""

import json
import math
from itertools import pairwise
from random import Random
from statistics import mean, median, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.errors import ConfigError, RequestError
from gradus.load.jobs.arrivals import at_random, growing, in_bursts
from gradus.load.jobs.lengths import Lengths
from gradus.load.jobs.mix import CHAT, Mix, as_text
from gradus.load.jobs.traces import BLOCK, read_trace


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


@given(st.integers(1, 300), st.floats(0.01, 1000), st.floats(0.1, 20), st.integers(0, 9))
def test_arrivals_come_in_order_at_exactly_their_rate(count, rate, burstiness, seed):
    times = at_random(count, rate, Random(seed), burstiness)
    assert len(times) == count and times == sorted(times) and times[0] >= 0
    assert times[-1] == pytest.approx(count / rate)
    assert times == at_random(count, rate, Random(seed), burstiness)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_the_burstiness_says(burstiness):
    """The standard deviation of a gamma distribution of shape k is its mean over sqrt(k)."""
    found = gaps(at_random(20_000, 10.0, Random(3), burstiness))
    assert mean(found) == pytest.approx(0.1, rel=1e-6)
    assert pstdev(found) / mean(found) == pytest.approx(1 / math.sqrt(burstiness), rel=0.06)


def test_a_poisson_process_has_as_many_arrivals_in_a_window_as_it_varies():
    times = at_random(20_000, 100.0, Random(1))
    counts = [sum(1 for _ in found) for found in windows(times, 0.1)]
    assert mean(counts) == pytest.approx(10, rel=0.02) and pstdev(counts) ** 2 == pytest.approx(10, rel=0.2)


def windows(times: list[float], width: float) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in range(math.ceil(times[-1] / width) + 1)]
    for time in times:
        found[int(time / width)].append(time)
    return found[:-2]


def test_an_infinite_rate_is_all_at_once_and_bursts_are_regular():
    assert at_random(3, math.inf, Random(0)) == [0.0, 0.0, 0.0]
    assert in_bursts(5, 2, 1.5) == [0.0, 0.0, 1.5, 1.5, 3.0]


@pytest.mark.parametrize(("how", "middle"), [("linear", 30.0), ("exponential", 24.5)])
def test_a_ramp_goes_from_one_rate_to_the_other(how, middle):
    found = gaps(growing(30_001, 20.0, 40.0 if how == "linear" else 30.0, how, Random(2)))
    for at, rate in ((0, 20.0), (15_000, middle), (30_000, 40.0 if how == "linear" else 30.0)):
        near = found[max(0, at - 1000) : at + 1000]
        assert 1 / mean(near) == pytest.approx(rate, rel=0.1)


@given(st.sampled_from(["7", "3-9", "16-3000~200x3", "8-800~120x2.5"]), st.integers(0, 99))
def test_lengths_stay_in_their_range_and_are_read_as_they_are_written(text, seed):
    lengths = Lengths.parse(text, "prompt_tokens")
    assert str(lengths) == text and lengths.low <= lengths.draw(Random(seed)) <= lengths.high


def test_a_log_normals_median_and_factor_hold():
    lengths, random = Lengths(1, 100_000, 200, 3.0), Random(0)
    drawn = [lengths.draw(random) for _ in range(8000)]
    assert median(drawn) == pytest.approx(200, rel=0.06)
    assert mean(200 / 3 <= one <= 200 * 3 for one in drawn) == pytest.approx(0.6827, abs=0.02)


@pytest.mark.parametrize("text", ["", "0", "9-3", "x", "5-9~20x2", "5-9~7x0.5", "-3"])
def test_what_is_no_length_is_refused_in_one_line(text):
    with pytest.raises(RequestError, match="max_tokens must be"):
        Lengths.parse(text, "max_tokens")


def test_a_ratio_is_vllms():
    assert Lengths.around(100, 0.2) == Lengths(80, 120) and Lengths.around(10, 1.0) == Lengths(1, 20)


def test_the_same_seed_gives_the_same_jobs_and_another_one_shares_no_prompt():
    mix = Mix(Lengths(5, 9), Lengths(2, 4))
    one, same, other = (mix.jobs([0.0] * 50, 1000, seed) for seed in ("1", "1", "2"))
    assert one == same and not {job.prompt[:3] for job in one} & {job.prompt[:3] for job in other}
    assert all(5 <= len(job.prompt) <= 9 and 2 <= job.output <= 4 for job in one)


def test_the_chat_mix_is_as_described():
    """40 % behind one of four beginnings of 512 tokens; no prompt over 3,000, no answer over 800."""
    jobs = CHAT.jobs([0.0] * 4000, 50_000, "0")
    heads: dict[tuple[int, ...], int] = {}
    for job in jobs:
        heads[tuple(job.prompt[:8])] = heads.get(tuple(job.prompt[:8]), 0) + 1
    shared = [count for count in heads.values() if count > 1]
    assert len(shared) == 4 and sum(shared) / 4000 == pytest.approx(0.4, abs=0.03)
    assert min(shared) > 300  # each of the four in its turn
    assert min(len(job.prompt) for job in jobs) >= 16 and max(len(job.prompt) for job in jobs) == 3000
    assert min(job.output for job in jobs) >= 8 and max(job.output for job in jobs) == 800 and CHAT.longest == 3800


def test_beginnings_may_outlive_a_seed_and_be_part_of_the_length():
    within = Mix(Lengths(20, 20), Lengths(1, 1), 1, 1.0, 5, within=True)
    one, two = (within.jobs([0.0], 1000, seed, beginnings="same")[0].prompt for seed in ("1", "2"))
    assert len(one) == 20 and one[:5] == two[:5] and one[5:] != two[5:]
    besides = Mix(Lengths(20, 20), Lengths(1, 1), 1, 1.0, 5)
    assert len(besides.jobs([0.0], 1000, "1")[0].prompt) == 25 == besides.most_prompt


def test_a_text_has_a_word_per_token_and_begins_alike_where_the_tokens_do():
    one, two = as_text((5, 6, 7)), as_text((5, 6, 200))
    assert len(one.split()) == 3 and one.split()[:2] == two.split()[:2] and as_text("given") == "given"


def trace(tmp_path, *rows) -> str:
    file = tmp_path / "trace.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def test_a_trace_is_replayed_in_its_order_and_times(tmp_path):
    rows = [
        {"at": 3.0, "prompt": [4, 5], "output_length": 7},
        {"at": 2.0, "prompt": "a text", "max_tokens": 3},
        {"at": 6.0, "input_length": 9, "output_length": 1},
    ]
    jobs = read_trace(trace(tmp_path, *rows), 100, speed=2.0)
    assert [(job.at, job.output) for job in jobs] == [(0.0, 3), (0.5, 7), (2.0, 1)]
    assert jobs[0].prompt == "a text" and jobs[1].prompt == (4, 5) and len(jobs[2].prompt) == 9


def test_mooncakes_blocks_are_shared_as_far_as_their_names_are(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 3]},
        {"timestamp": 1500, "input_length": 1300, "output_length": 1, "hash_ids": [1, 2, 4]},
        {"timestamp": 2000, "input_length": 600, "output_length": 1, "hash_ids": [9, 2]},
    ]
    one, two, three = read_trace(trace(tmp_path, *rows), 50_000)
    assert [len(job.prompt) for job in (one, two, three)] == [1100, 1300, 600] and two.at == 1.5
    assert one.prompt[: 2 * BLOCK] == two.prompt[: 2 * BLOCK] and one.prompt[2 * BLOCK] != two.prompt[2 * BLOCK]
    assert one.prompt[:BLOCK] != three.prompt[:BLOCK]


def test_a_named_prefix_is_shared_and_the_rest_is_not(tmp_path):
    row = {"at": 0, "input_length": 30, "output_length": 1, "prefix_id": "system", "prefix_length": 20}
    one, two = read_trace(trace(tmp_path, row, row), 50_000)
    assert one.prompt[:20] == two.prompt[:20] and one.prompt[20:] != two.prompt[20:] and len(one.prompt) == 30


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "line 2: "),
        ("[1]", "line 2: must be a JSON object"),
        ({"at": -1, "input_length": 1, "output_length": 1}, "at must be a number"),
        ({"at": True, "input_length": 1, "output_length": 1}, "at must be a number"),
        ({"at": 1, "input_length": 0, "output_length": 1}, "input_length must be"),
        ({"at": 1, "input_length": 5}, "max_tokens must be"),
        ({"at": 1, "prompt": [], "output_length": 5}, "prompt must be a text or"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path, row, why):
    good = {"at": 0, "input_length": 1, "output_length": 1}
    with pytest.raises(ConfigError, match=why):
        read_trace(trace(tmp_path, good, row), 100)


def test_an_empty_trace_is_refused_and_a_long_one_can_be_cut(tmp_path):
    good = {"at": 0, "input_length": 1, "output_length": 1}
    assert len(read_trace(trace(tmp_path, good, good, "", good), 100, most=2)) == 2
    with pytest.raises(ConfigError, match="this file has none"):
        read_trace(trace(tmp_path, ""), 100)
