"""Masked draws on a GPU's runner, through Triton's interpreter."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.interpreter import run_interpreted


def test_masked_draws_under_the_interpreter():
    run_interpreted("interpreted_masked.py")
