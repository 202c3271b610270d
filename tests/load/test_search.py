"""The search finds the rate of a server whose capacity is known, in few probes; the knee is where a curve turns up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.load.search import Search, highest_rate, knee


@given(st.floats(0.5, 2000), st.floats(0.5, 2000), st.sampled_from([1.3, 2.0]))
def test_a_known_capacity_is_found_to_the_precision(capacity, start, factor):
    probes = []
    found = highest_rate(lambda rate: not probes.append(rate) and rate <= capacity, start, Search(factor=factor))
    assert found.best <= capacity
    if found.whole:
        assert capacity < found.failed <= 1.05 * found.best
    else:  # far away by small steps
        assert len(probes) == 24 or not probes[-1] / factor >= 0.1
    assert [rate for rate, _ in found.passed] == probes and len(set(probes)) == len(probes)


def test_few_probes_are_needed():
    found = highest_rate(lambda rate: rate <= 150, 60.0, Search())
    assert found.whole and len(found.passed) <= 8 and 142 < found.best <= 150


def test_the_budget_ends_the_search_before_a_probe_that_would_pass_it():
    clock = iter(range(0, 10_000, 10))
    found = highest_rate(lambda rate: rate <= 1000, 1.0, Search(budget=65.0), clock=lambda: next(clock))
    assert not found.whole and 0 < len(found.passed) <= 4


def test_a_server_that_keeps_no_rate_has_none():
    found = highest_rate(lambda rate: False, 4.0, Search())
    assert found.best == 0 and found.failed < 0.2 and not found.whole


def test_a_server_that_keeps_every_rate_is_not_said_to_have_failed():
    found = highest_rate(lambda rate: True, 4.0, Search(), most=100.0)
    assert found.best == 64 and found.failed is None and not found.whole


def test_the_knee_is_where_the_latency_turns_up():
    flat = [(users, 100.0 + users) for users in (1, 2, 4, 8, 16)]
    assert knee([*flat, (32, 400.0), (64, 1600.0)]) in (16, 32)
    hockey = [(float(load), 10.0 + max(0, load - 60) * 5) for load in range(0, 101, 10)]
    assert knee(hockey) == 60


@pytest.mark.parametrize(
    "points",
    [[], [(1, 1), (2, 2), (3, 3)], [(1, 1), (2, 2), (3, 3), (4, 4)], [(1, 5), (2, 4), (3, 3), (4, 2)],
     [(1, 1), (2, 3), (3, 3.5), (4, 3.6)]],
)  # fmt: skip
def test_a_line_a_falling_curve_and_too_few_points_have_no_knee(points):
    assert knee([(float(x), float(y)) for x, y in points]) is None
