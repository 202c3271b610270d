"""Workloads: the same on every machine, as they are described, and within their bounds."""

from itertools import pairwise

import pytest

from gradus.bench.workloads import (
    PUBLISHED,
    Workload,
    burst,
    chat_traffic,
    ladder,
    long_prompts,
    memory_pressure,
    poisson,
    shared_prefix,
    single_stream,
    sixteen,
)
from gradus.errors import ConfigError

ALL: list[Workload] = [
    single_stream(32, 200),
    burst(16, (32, 256), (32, 256)),
    poisson(32, 4.0, (32, 256), 64),
    shared_prefix(8, 2.0, 64, (8, 16), 32),
    long_prompts(steady=4, steady_output=100, injected=3, prompt=500, every=0.5),
    memory_pressure(pool_tokens=4096, demand=1.1, prompt=100, output=28),
    ladder("cuda"),
    ladder("cpu"),
    sixteen("cuda"),
    sixteen("cpu"),
    *(make() for make in PUBLISHED.values()),
]


@pytest.mark.parametrize("workload", ALL, ids=lambda workload: workload.name)
def test_requests_are_as_described_and_the_same_every_time(workload):
    arrivals = workload.arrivals(vocab_size=1000)
    assert arrivals == workload.arrivals(vocab_size=1000)
    assert [(a.at, len(a.prompt), a.max_tokens) for a in arrivals] == [
        (j.at, j.prompt, j.output) for j in workload.jobs
    ]
    assert all(0 <= token < 1000 for arrival in arrivals for token in arrival.prompt)
    assert all(arrival.at >= 0 and arrival.prompt and arrival.max_tokens >= 1 for arrival in arrivals)


def test_the_ids_of_a_seed_never_change():
    """Drawn once and written down here: on another machine or Python they must come out the same."""
    arrivals = burst(2, (4, 9), (4, 9)).arrivals(vocab_size=49152)
    assert [(a.prompt[:3], len(a.prompt), a.max_tokens) for a in arrivals] == [
        ((46896, 47101, 42591), 9, 9),
        ((88, 32808, 47039), 9, 8),
    ]


def test_poisson_arrivals_have_the_rate_and_begin_at_once():
    times = [job.at for job in poisson(4000, 5.0, 8, 8).jobs]
    assert times[0] == 0 and times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.05)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)  # exponential


def test_a_shared_prefix_is_shared_and_what_follows_is_not():
    arrivals = shared_prefix(8, 2.0, 64, (8, 16), 32).arrivals(1000)
    assert len({arrival.prompt[:64] for arrival in arrivals}) == 1
    assert len({arrival.prompt[64:72] for arrival in arrivals}) == 8


def test_the_published_runs_have_their_published_shape():
    runs = {name: make() for name, make in PUBLISHED.items()}
    assert [len(run.jobs) for run in runs.values()] == [10, 32, 48, 48, 48]
    long = runs["48 at 6/s, 75 % long"]
    assert sum(job.prompt >= 512 for job in long.jobs) == 36
    assert all(job.shared == 1024 for job in runs["48 at 8/s, shared prefix"].jobs)


def test_chat_traffic_has_one_system_prompt_and_its_long_prompts_evenly_among_the_others():
    jobs = chat_traffic(24, 32.0, 160, (8, 40), (8, 40), long=3, pasted=480, summary=8, lead=0.2).jobs
    assert {job.shared for job in jobs} == {160}
    assert [index for index, job in enumerate(jobs) if job.prompt == 640] == [4, 12, 20]
    assert all(8 <= job.prompt - 160 <= 40 and 8 <= job.output <= 40 for job in jobs if job.prompt != 640)
    assert jobs[0].at == 0 and jobs[1].at > 0.2
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ConfigError, match=r"sequences of 232 tokens, the context is 128"):
        single_stream(32, 200).arrivals(1000, context_length=128)


def test_cutting_keeps_the_bounds_and_hurrying_the_order():
    short = poisson(32, 4.0, (32, 256), (8, 64)).shrunk(5, prompt=40, output=10).within(0.5)
    assert len(short.jobs) == 5 and short.last_arrival == pytest.approx(0.5)
    assert all(job.prompt <= 40 and job.output <= 10 for job in short.jobs)
    assert [job.at for job in short.jobs] == sorted(job.at for job in short.jobs)
    assert shared_prefix(2, 1.0, 64, 8, 8).shrunk(2, prompt=32, output=4).jobs[0].shared == 31
