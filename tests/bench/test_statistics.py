"""Percentiles as numpy computes them, and rounding that keeps what was measured."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.bench.statistics import QUANTILES, distribution, percentile, significant

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@pytest.mark.hypothesis
@given(values=VALUES, share=st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values, share):
    assert percentile(values, share) == pytest.approx(float(numpy.percentile(values, share)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("values", "share"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_what_is_no_percentile_is_refused(values, share):
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, share)


def test_a_distribution_keeps_its_quantiles_in_order():
    kept = distribution([float(i) for i in range(101)])
    assert [kept[f"p{share}"] for share in QUANTILES] == sorted(QUANTILES)
    assert kept["mean"] == 50
    assert distribution([]) == {}
    assert distribution([3.14159]) == {"p50": 3.142}


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.0, 0.0), (123456.0, 123500.0), (0.00123456, 0.001235), (-9.9999, -10.0)]
)
def test_rounding_keeps_four_significant_digits(value, rounded):
    assert significant(value) == rounded
