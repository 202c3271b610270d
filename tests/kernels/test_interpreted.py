"""Cases of `interpreted_*.py` that combine in another way what every run shows: for `make stress`."""

import re

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.interpreter import HERE, run_interpreted

LEAVES = re.compile(r"mark\.stress|(pairwise|each_once|first)\(")
FILES = sorted(path.name for path in HERE.glob("interpreted_*.py") if LEAVES.search(path.read_text(encoding="utf-8")))


def test_some_cases_are_left_to_stress():
    assert FILES


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FILES)
def test_what_is_left_of_each_file(name):
    run_interpreted(name, stress=True)
