"""Whole models on the kernels, interpreted on the CPU."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.interpreter import run_interpreted


@pytest.mark.slow
def test_interpreted_on_the_cpu():
    run_interpreted("interpreted_fused_model.py")
