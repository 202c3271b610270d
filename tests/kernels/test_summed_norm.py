"""The sum over ranks with its norm, by Triton's interpreter."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.interpreter import run_interpreted


def test_interpreted():
    run_interpreted("interpreted_summed_norm.py")
