"""The kernels of a step that verifies drafts, interpreted on the CPU."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.interpreter import run_interpreted


@pytest.mark.slow
@pytest.mark.timeout(600)  # a slow processor takes minutes
def test_interpreted_on_the_cpu():
    run_interpreted("interpreted_drafts.py", "interpreted_speculation.py")
