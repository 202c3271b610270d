"""The kernels of a step that verifies drafts, interpreted on the CPU."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.interpreter import run_interpreted


@pytest.mark.slow
@pytest.mark.timeout(600)  # a slow processor takes five minutes for the second
@pytest.mark.parametrize("name", ["interpreted_drafts.py", "interpreted_speculation.py"])
def test_interpreted_on_the_cpu(name):
    run_interpreted(name)
